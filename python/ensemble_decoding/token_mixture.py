"""The mixture of the members' next-token distributions, over the tokens that an alignment makes
comparable: ids of one token table, all byte strings, or the likeliest byte strings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .member import Member

Combine = Callable[[Tensor, list[float]], Tensor]

# How far from 1 the sum of what `combine` returns may be: a float32 mean over 300,000 tokens is
# closer by far, a mean without its weights further away.
_SUM_TOLERANCE = 1e-3


class Token(NamedTuple):
    """A chosen token: its bytes, or that the text ends; `id` is its id in the first member's table,
    where it must be that one among several of the same bytes."""

    data: bytes
    ended: bool
    id: int | None = None


def token_of(member: Member, token_id: int) -> Token:
    """What an id of a member stands for."""
    ended = member.is_end_of_text(token_id)
    return Token(b"" if ended else member.table.spell((token_id,)), ended, token_id)


class Mixed(NamedTuple):
    """A mixture: `probabilities [n]`, which sum to 1, of the tokens `columns [n]` (None: column i
    is i), and whether the geometric mean had no support."""

    probabilities: Tensor
    columns: Tensor | None
    fell_back: bool = False
    members: Tensor | None = None
    """`[M, n]`: the voters' own, 0 for the others; None where only the mixture was made."""


class TokenMixture(ABC):
    """Mixes logits of several members, of whom it keeps nothing but their vocabularies.

    Args:
        mean: "arithmetic" or "geometric".
        combine: takes the place of the mean.
    """

    def __init__(self, mean: str, combine: Combine | None) -> None:
        self._mean = mean
        self._combine = combine

    @abstractmethod
    def mix(
        self, rows: Sequence[Tensor], weights: Sequence[float], mean: str | None = None
    ) -> Mixed:
        """`rows[j] [V_j]`: member j's logits; of weight 0 it has no say. The weights sum to 1.
        `mean` takes the place of the usual one."""

    @abstractmethod
    def token(self, column: int) -> Token:
        """What a column of the mixture stands for."""

    @abstractmethod
    def find(self, mixed: Mixed, token: Token) -> int | None:
        """The entry of the mixture that stands for a token; None where it is none of them."""

    @abstractmethod
    def alone(self, row: Tensor, mixed: Mixed) -> Tensor:
        """The softmax of the first member's `row [V]` over the entries of the mixture, `[n]`; ids
        that are none of them, special ones for example, are left out and not made up for."""

    @abstractmethod
    def sharpened(self, mixed: Mixed, threshold: float) -> Mixed:
        """The mixture where each token of the first member with more than `threshold` has, beside
        its own, the probability of all tokens that begin with it. Not normalised."""

    def probability(self, j: int, row: Tensor, mixed: Mixed, index: int) -> float:
        """The probability that voter j, with `row [V_j]`, gives entry `index` of the mixture."""
        assert mixed.members is not None
        return float(mixed.members[j, index])

    def _mixed(
        self,
        members: Tensor,
        weights: Sequence[float],
        mean: str | None,
        columns: Tensor | None = None,
    ) -> Mixed:
        """The mixture of distributions `members [M, n]`; rows of weight 0 are not looked at."""
        voters = [j for j, weight in enumerate(weights) if weight]
        shares = [weights[j] for j in voters]
        own = members[voters]
        fell_back = False
        if self._combine is not None:
            mixed = _checked(self._combine(own, shares), own)
        else:
            scale = torch.tensor(shares, dtype=own.dtype, device=own.device)[:, None]
            mixed = (scale * own).sum(0)
            if (mean or self._mean) == "geometric":
                # In logarithms: a product of small masses must not underflow to no support at all.
                logs = (scale * own.log()).sum(0)
                fell_back = not bool((logs > -torch.inf).any())
                mixed = mixed if fell_back else torch.softmax(logs, 0)
        return Mixed(mixed / mixed.sum(), columns, fell_back, members)


def _checked(combined: Tensor, members: Tensor) -> Tensor:
    """What `combine` made of the voters' distributions `members [M, n]`."""
    if not isinstance(combined, Tensor):
        raise TypeError(f"combine must return a Tensor, got {type(combined).__name__}")
    if combined.shape != members.shape[1:] or not combined.is_floating_point():
        raise ValueError(
            f"combine must return floating-point probabilities of shape "
            f"{list(members.shape[1:])}, got {list(combined.shape)} of {combined.dtype}"
        )
    if not bool(((combined >= 0) & (combined < torch.inf)).all()):
        raise ValueError("combine must return probabilities that are finite and not negative")
    total = float(combined.sum(dtype=torch.float64))
    lost = 1 - float(members.sum(1).min())
    if not abs(total - 1) <= lost + _SUM_TOLERANCE:
        raise ValueError(f"combine must return probabilities that sum to about 1, got {total:.4g}")
    # What no voter can write, a smoothing `combine` must not bring up.
    return combined.where((members > 0).any(0), 0)


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
