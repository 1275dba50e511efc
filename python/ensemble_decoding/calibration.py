"""Whether a member's probabilities can be believed, and the temperature with which they can.

Method: Guo et al., "On Calibration of Modern Neural Networks" (temperature scaling, expected
calibration error).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from .cosd_options import check_temperature
from .member import Member
from .progress import progress_bar
from .request import check_member
from .teacher_forcing import Text, checked_texts, forced
from .typed_json import from_json

_FORMAT = "ensemble-decoding calibration 1"
# Of the first search, a factor of 1.19 apart.
_TEMPERATURES = [2 ** (step / 4) for step in range(-12, 13)]
_FINER = 9
_BINS = 15


@dataclass(frozen=True)
class Bin:
    """The tokens whose likeliest prediction has a probability in one of 15 equal ranges: how many,
    its mean probability, and the share of right predictions."""

    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Calibration:
    """What `calibrate` found of a member.

    Attributes:
        member: its name.
        tokens: how many it was fitted on.
        temperature: what its logits are to be divided by.
        nll_before, nll_after: mean negative log-likelihood of a token, in nats.
        ece_before, ece_after: expected calibration error: the mean distance of the bins' confidence
            to their accuracy, weighted by their counts.
        bins_before, bins_after: the reliability diagram.
    """

    member: str
    tokens: int
    temperature: float
    nll_before: float
    nll_after: float
    ece_before: float
    ece_after: float
    bins_before: list[Bin]
    bins_after: list[Bin]

    def __str__(self) -> str:
        return (
            f"{self.member}: temperature {self.temperature:.3f} on {self.tokens} tokens; negative "
            f"log-likelihood {self.nll_before:.4f} -> {self.nll_after:.4f} nats, expected "
            f"calibration error {self.ece_before:.4f} -> {self.ece_after:.4f}"
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Writes it as JSON."""
        written = {"format": _FORMAT, **asdict(self)}
        Path(path).write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Calibration:
        """Reads what `save` wrote.

        Raises:
            OSError: the file cannot be read.
            ValueError: it holds no calibration; says what is wrong where.
        """
        try:
            read = json.loads(Path(path).read_text(encoding="utf-8"))
            found = read.pop("format", None) if isinstance(read, dict) else None
            if found != _FORMAT:
                raise ValueError(f"its format must be {_FORMAT!r}, got {found!r}")
            calibration = from_json(read, cls, "calibration")
            check_temperature("calibration.temperature", calibration.temperature)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"path must be a calibration that Calibration.save wrote, got {path}: {error}"
            ) from error
        return calibration

    def plot(self, path: str | PathLike[str]) -> None:
        """Draws the reliability diagram, before and after, as PNG, SVG or PDF."""
        from .calibration_plot import save_reliability

        save_reliability(self, path)


def calibrate(member: Member, texts: Sequence[Any], *, progress: bool = True) -> Calibration:
    """Fits a temperature to a member by the log-likelihood of known texts.

    Three passes over the texts: a coarse search, a finer one, and the calibration error.

    Args:
        member: the member.
        texts: known continuations, see `checked_texts`. Some thousand tokens tell two decimals.
        progress: show bars on standard error.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """
    check_member("member", member)
    checked = checked_texts(texts)
    coarse = _nlls(member, checked, _TEMPERATURES, progress)
    best = min(range(len(coarse)), key=coarse.__getitem__)
    low, high = (_TEMPERATURES[min(max(best + d, 0), len(coarse) - 1)] for d in (-1, 1))
    finer = [low * (high / low) ** (step / (_FINER - 1)) for step in range(_FINER)]
    temperature = _lowest(finer, _nlls(member, checked, finer, progress))
    before, after = list[tuple[float, bool]](), list[tuple[float, bool]]()
    losses = [0.0, 0.0]
    for text in progress_bar(checked, "calibration error", progress):
        for one in forced(member, text, [temperature]):
            ((confidence, own),) = one.at_temperatures
            before.append((one.best_probability, one.right))
            after.append((confidence, one.right))
            losses[0] -= one.log_probability
            losses[1] -= own
    count, bins = len(before), (_bins(before), _bins(after))
    if not count:
        raise ValueError(f"texts must hold a token that {member.name} can read, got none")
    return Calibration(
        member=member.name,
        tokens=count,
        temperature=temperature,
        nll_before=losses[0] / count,
        nll_after=losses[1] / count,
        ece_before=_expected_error(bins[0]),
        ece_after=_expected_error(bins[1]),
        bins_before=bins[0],
        bins_after=bins[1],
    )


def _nlls(
    member: Member, texts: Sequence[Text], temperatures: Sequence[float], progress: bool
) -> list[float]:
    """The negative log-likelihood of all texts at each temperature."""
    sums = [0.0] * len(temperatures)
    for text in progress_bar(texts, "likelihoods", progress):
        for one in forced(member, text, temperatures):
            for i, (_, own) in enumerate(one.at_temperatures):
                sums[i] -= own
    return sums


def _lowest(temperatures: Sequence[float], losses: Sequence[float]) -> float:
    """The lowest point of the parabola through the lowest point and its neighbours, over the
    logarithm of the temperature; at an end of the range that end."""
    best = min(range(len(losses)), key=losses.__getitem__)
    if not 0 < best < len(losses) - 1:
        return temperatures[best]
    left, middle, right = losses[best - 1 : best + 2]
    bend = left - 2 * middle + right
    shift = 0.5 * (left - right) / bend if bend > 0 else 0.0
    step = math.log(temperatures[best + 1] / temperatures[best])
    return temperatures[best] * math.exp(shift * step)


def _expected_error(bins: Sequence[Bin]) -> float:
    count = sum(one.count for one in bins)
    return math.fsum(one.count * abs(one.confidence - one.accuracy) for one in bins) / count


def _bins(predictions: Sequence[tuple[float, bool]]) -> list[Bin]:
    groups: list[list[tuple[float, bool]]] = [[] for _ in range(_BINS)]
    for confidence, right in predictions:
        groups[min(int(confidence * _BINS), _BINS - 1)].append((confidence, right))
    return [
        Bin(
            len(group),
            math.fsum(confidence for confidence, _ in group) / max(len(group), 1),
            sum(right for _, right in group) / max(len(group), 1),
        )
        for group in groups
    ]
