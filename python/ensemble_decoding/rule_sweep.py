"""What CoSD's rule would do to known texts, for a grid of its two numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from .cosd_verdict import Rule
from .member import Member
from .option_checks import check_number
from .progress import progress_bar
from .request import check_member
from .teacher_forcing import Forced, Text, checked_texts, forced

ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
BETAS = (0.25, 0.5, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class SweepPoint:
    """One rule on all texts.

    Attributes:
        alpha, beta: the rule.
        replacements: places where it replaces the drafter's token.
        gained, lost: of these, those where the assistant alone is right, and the drafter alone.
        log_likelihood: of the texts, in nats a byte, where at each replacement the assistant's
            probability of what follows stands for the drafter's.
    """

    alpha: float
    beta: float
    replacements: int
    gained: int
    lost: int
    log_likelihood: float


@dataclass(frozen=True)
class Sweep:
    """The points of a grid, by alpha, then beta; and the log-likelihood of the drafter alone."""

    points: list[SweepPoint]
    drafted_tokens: int
    drafter_log_likelihood: float

    @property
    def best(self) -> SweepPoint:
        """The point with the highest log-likelihood."""
        return max(self.points, key=lambda point: point.log_likelihood)

    def __str__(self) -> str:
        lines = ["alpha   beta  replaced  gained    lost  nats/byte"]
        for p in self.points:
            lines.append(
                f"{p.alpha:5.2f}  {p.beta:5.2f}  {p.replacements:8d}  {p.gained:6d}  {p.lost:6d}  "
                f"{p.log_likelihood:9.4f}"
            )
        lines.append(
            f"the drafter alone: {self.drafter_log_likelihood:.4f} nats a byte, "
            f"{self.drafted_tokens} tokens"
        )
        return "\n".join(lines)

    def plot(self, path: str | PathLike[str]) -> None:
        """Draws replacements and log-likelihood as two heat maps, as PNG, SVG or PDF."""
        from .calibration_plot import save_sweep

        save_sweep(self, path)


def sweep(
    draft: Member,
    assistant: Member,
    texts: Sequence[Any],
    alphas: Sequence[float] = ALPHAS,
    betas: Sequence[float] = BETAS,
    *,
    progress: bool = True,
) -> Sweep:
    """Tries the rule with each `alpha` and `beta` on known texts.

    Both models read each text once. At each place where a token of both begins and their likeliest
    ones differ as bytes, the rule is asked. Where it replaces, what the text goes on with is taken
    from the assistant's token, if that ends where one of the drafter's ends too.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """
    for name, member in (("draft", draft), ("assistant", assistant)):
        check_member(name, member)
    checked = checked_texts(texts)
    check_grid(alphas, betas)
    read = [
        (text, list(forced(draft, text)), list(forced(assistant, text)))
        for text in progress_bar(checked, "texts", progress)
    ]
    rules = [Rule(float(alpha), float(beta)) for alpha in alphas for beta in betas]
    points = [_point(rule, read) for rule in rules]
    alone = _point(Rule(0.0, 0.0), read)
    return Sweep(points, sum(len(own) for _, own, _ in read), alone.log_likelihood)


def check_grid(alphas: Any, betas: Any) -> None:
    """Checks the grid of a sweep.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """
    for name, values in (("alphas", alphas), ("betas", betas)):
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise TypeError(f"{name} must be a list of numbers, got {type(values).__name__}")
        if not values:
            raise ValueError(f"{name} must hold at least one number, got an empty list")
        for index, value in enumerate(values):
            check_number(f"{name}[{index}]", value)
            if not 0 <= value < math.inf or (name == "alphas" and value > 1):
                most = "from 0 to 1" if name == "alphas" else "finite and at least 0"
                raise ValueError(f"{name}[{index}] must be {most}, got {value}")


def _point(rule: Rule, read: Sequence[tuple[Text, list[Forced], list[Forced]]]) -> SweepPoint:
    replacements = gained = lost = size = 0
    total = 0.0
    for _, own, theirs in read:
        ends = {one.end for one in own}
        by_start = {one.start: one for one in theirs}
        reached = 0
        for ours in own:
            if ours.start < reached:
                continue  # inside the assistant's token
            other, taken = by_start.get(ours.start), ours
            if other is not None and _replaces(rule, ours, other):
                replacements += 1
                gained += other.right and not ours.right
                lost += ours.right and not other.right
                taken = other if other.end in ends else ours
            total += taken.log_probability
            reached = taken.end
        size += reached
    return SweepPoint(rule.alpha, rule.beta, replacements, gained, lost, total / max(size, 1))


def _replaces(rule: Rule, ours: Forced, other: Forced) -> bool:
    """Whether the drafter's likeliest token is replaced."""
    if ours.best == other.best:
        return False
    return rule.replaces(ours.best_probability, other.best_probability)
