"""Candidates packed for one verifying pass, and what a member says of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .member import Member


class Position(NamedTuple):
    """Where a context stands: after `length` ids, with the logits of the last one."""

    length: int
    logits: Tensor
    logsumexp: float


class RowStatistics(NamedTuple):
    """`ensemble_kernels.TokenStatistics` as lists, one entry for each row."""

    logprob: list[float]
    argmax: list[int]
    max_logprob: list[float]
    logsumexp: list[float]
    entropy: list[float]


class Judgement(NamedTuple):
    """What a member says of a candidate's tokens: their log-probabilities, and their logits."""

    log_probabilities: list[float]
    logits: list[float]


class PackedCandidates(NamedTuple):
    """Candidates one behind the other; candidate c has the rows `starts[c] : starts[c + 1]`."""

    candidates: list[list[int]]
    starts: list[int]

    @classmethod
    def of(cls, candidates: Sequence[Sequence[int]]) -> PackedCandidates:
        starts = [0]
        for ids in candidates:
            starts.append(starts[-1] + len(ids))
        return cls([list(ids) for ids in candidates], starts)

    @property
    def length(self) -> int:
        return self.starts[-1]

    def inputs(self, prefix: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens `[1, T]`, their positions `[1, T]`, which start again behind the prefix for each
        candidate, and the offsets of the segments `[N + 1]` int32."""
        tokens = [token for ids in self.candidates for token in ids]
        positions = [prefix + i for ids in self.candidates for i in range(len(ids))]
        return (
            torch.tensor([tokens], device=device),
            torch.tensor([positions], device=device),
            torch.tensor(self.starts, dtype=torch.int32, device=device),
        )


class Verified(NamedTuple):
    """A verifying pass: the logits `[T, V]` of its rows, and their log-sum-exp."""

    packed: PackedCandidates
    logits: Tensor
    logsumexp: list[float]


def judge(
    member: Member, position: Position, verified: Verified, logprob: Sequence[float]
) -> list[Judgement]:
    """Each token is judged by the row before it, a candidate's first one by the last committed
    row. `logprob[r]` is that of the token in row r + 1, where it is not an end of text."""
    (candidates, starts), logits, logsumexp = verified
    judgements = []
    for ids, start in zip(candidates, starts, strict=False):
        judgement = Judgement([], [])
        for i, token in enumerate(ids):
            row = position.logits if i == 0 else logits[start + i - 1]
            total = position.logsumexp if i == 0 else logsumexp[start + i - 1]
            if i and not member.is_end_of_text(token):
                log_probability = logprob[start + i - 1]
            else:
                log_probability = _logit(member, row, token) - total
            judgement.log_probabilities.append(log_probability)
            judgement.logits.append(log_probability + total)
        judgements.append(judgement)
    return judgements


def _logit(member: Member, row: Tensor, token: int) -> float:
    """For an end of text that of all of them together."""
    if member.is_end_of_text(token):
        return float(row[list(member.end_of_text_ids)].float().logsumexp(0))
    return float(row[token])
