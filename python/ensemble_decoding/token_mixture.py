"""The mixture of the members' next-token distributions, over the tokens that an alignment makes
comparable: ids of one token table, all byte strings, or the likeliest byte strings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ensemble_kernels import VocabularyAlignment, mix_distributions, top_k_union

from .member import Member
from .user_cache import cache_folder

Combine = Callable[[Tensor, list[float]], Tensor]

# `top_k_union` ignores a model of weight 0 altogether. With this weight it contributes candidates
# and next to no probability, so that the others' distributions can be had one by one.
_NEXT_TO_NOTHING = 1e-37
# How far from 1 the sum of what `combine` returns may be: a float32 mean over 300,000 tokens is
# closer by far, a mean without its weights further away.
_SUM_TOLERANCE = 1e-3


class Token(NamedTuple):
    """A chosen token: its bytes, or that the text ends; `id` is its id in the first member's table,
    where it must be that one among several of the same bytes."""

    data: bytes
    ended: bool
    id: int | None = None


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
    def mix(self, rows: Sequence[Tensor], weights: Sequence[float]) -> Mixed:
        """`rows[j] [V_j]`: member j's logits; of weight 0 it has no say. The weights sum to 1."""

    @abstractmethod
    def token(self, column: int) -> Token:
        """What a column of the mixture stands for."""

    def probability(self, j: int, row: Tensor, mixed: Mixed, index: int) -> float:
        """The probability that voter j, with `row [V_j]`, gives entry `index` of the mixture."""
        assert mixed.members is not None
        return float(mixed.members[j, index])

    def _mixed(
        self, members: Tensor, weights: Sequence[float], columns: Tensor | None = None
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
            if self._mean == "geometric":
                # In logarithms: a product of small masses must not underflow to no support at all.
                logs = (scale * own.log()).sum(0)
                fell_back = not bool((logs > -torch.inf).any())
                mixed = mixed if fell_back else torch.softmax(logs, 0)
        return Mixed(mixed / mixed.sum(), columns, fell_back, members)


class IdentityMixture(TokenMixture):
    """Of members with equal token tables: column i is id i. The probability of all end-of-text ids
    together stands at the first of them."""

    def __init__(self, members: Sequence[Member], mean: str, combine: Combine | None) -> None:
        super().__init__(mean, combine)
        self._table = members[0].table
        self._special = torch.tensor(self._table.suppressed_ids(), dtype=torch.int64)

    def mix(self, rows: Sequence[Tensor], weights: Sequence[float]) -> Mixed:
        shape, dtype = (len(rows), rows[0].shape[0]), _wide(rows[0].dtype)
        members = torch.zeros(shape, dtype=dtype, device=rows[0].device)
        for j, row in enumerate(rows):
            if weights[j]:
                members[j] = self._distribution(row)
        return self._mixed(members, weights)

    def _distribution(self, row: Tensor) -> Tensor:
        own = torch.softmax(row.to(_wide(row.dtype)), 0)
        ends = self._table.end_of_text_ids
        if ends:
            own[ends[0]] = own[list(ends)].sum()
            own[list(ends[1:])] = 0
        # What falls on ids that are neither text nor end-of-text is lost: it lowers the say.
        return own.index_fill_(0, self._special.to(own.device), 0)

    def token(self, column: int) -> Token:
        if column in self._table.end_of_text_ids:
            return Token(b"", True)
        return Token(self._table.spell((column,)), False, column)


class _AlignedMixture(TokenMixture):
    """Columns are those of an alignment of the members' vocabularies."""

    def __init__(self, members: Sequence[Member], mean: str, combine: Combine | None) -> None:
        super().__init__(mean, combine)
        self._alignment = VocabularyAlignment.cached(
            [member.table.token_bytes for member in members],
            [member.end_of_text_ids for member in members],
            [member.table.canonical_ids for member in members],
            folder=cache_folder() / "alignments",
        )

    def token(self, column: int) -> Token:
        ended = column == self._alignment.end_of_text
        return Token(b"" if ended else self._alignment.tokens[column], ended)


class UnionMixture(_AlignedMixture):
    """GaC: the mean over all byte strings that any member has as a token."""

    def mix(self, rows: Sequence[Tensor], weights: Sequence[float]) -> Mixed:
        batch = [row[None] for row in rows]
        if self._combine is None:
            mixture = mix_distributions(batch, self._alignment, weights=weights, mean=self._mean)
            return Mixed(mixture.probabilities[0], None, bool(mixture.fell_back[0]))
        members = torch.zeros((len(rows), self._alignment.size), device=rows[0].device)
        for j in range(len(rows)):
            if weights[j]:
                alone = [float(i == j) for i in range(len(rows))]
                own = mix_distributions(batch, self._alignment, weights=alone)
                # Alone it was renormalised; beside others its lost mass lowers its say.
                kept = 1 - own.lost_mass[j, 0]
                members[j] = own.probabilities[0] * kept if kept > 0 else 0
        return self._mixed(members, weights)

    def probability(self, j: int, row: Tensor, mixed: Mixed, index: int) -> float:
        if mixed.members is not None:
            return super().probability(j, row, mixed, index)
        maps = self._alignment.maps("cpu")
        start, end = maps.offsets[j][index : index + 2].tolist()
        row = row.to(_wide(row.dtype))
        own = row[maps.ids[j][start:end].to(row.device)]
        return float((own.logsumexp(0) - row.logsumexp(0)).exp()) if start < end else 0.0


class TopKMixture(_AlignedMixture):
    """UniTE: the mean over the union of each voter's k likeliest byte strings."""

    def __init__(
        self, members: Sequence[Member], mean: str, combine: Combine | None, k: int
    ) -> None:
        super().__init__(members, mean, combine)
        self._k = k
        self._alignment = self._alignment.with_first_subtokens(
            [
                _first_subtokens(member, self._alignment.missing_tokens(j))
                for j, member in enumerate(members)
            ]
        )

    def mix(self, rows: Sequence[Tensor], weights: Sequence[float]) -> Mixed:
        batch = [row[None] for row in rows]
        voters = [j for j, weight in enumerate(weights) if weight]
        unions = []
        for j in voters:
            alone = [_NEXT_TO_NOTHING if weight else 0.0 for weight in weights]
            alone[j] = 1.0
            unions.append(top_k_union(batch, self._alignment, k=self._k, weights=alone))
        # The same candidates in each, behind which there is only padding.
        columns = unions[0].columns[0]
        columns = columns[columns >= 0]
        members = torch.zeros((len(rows), columns.shape[0]), device=columns.device)
        for j, union in zip(voters, unions, strict=True):
            own = union.probabilities[0, : columns.shape[0]]
            members[j] = own.where(own > 2 * _NEXT_TO_NOTHING, 0)
        return self._mixed(members, weights, columns)


def _first_subtokens(member: Member, missing: Sequence[bytes]) -> dict[bytes, int]:
    """The first token with which the member's tokenizer writes each token that it lacks."""
    encoded = ((token, member.encoder.encode(token).ids) for token in missing)
    return {token: ids[0] for token, ids in encoded if ids}


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


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
