"""The union of the likeliest tokens by softmax, topk and maps of indices."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.operators import mixture_peers
from ensemble_kernels import VocabularyAlignment


class Buffer(NamedTuple):
    mixture: mixture_peers.Buffer
    # Per model [U + 1] int64: the id whose score a column takes, V where there is none; the last
    # is that of no column.
    sources: list[Tensor]


@lru_cache(maxsize=4)
def aligned_with_subtokens(sizes: tuple[int, ...]) -> VocabularyAlignment:
    """What a model lacks begins, for it, with some token: any, but always the same."""
    aligned = mixture_peers.alignment(sizes)
    return aligned.with_first_subtokens(
        [
            {token: int.from_bytes(token, "big") % (size - 1) for token in missing}
            for size, missing in (
                (size, aligned.missing_tokens(model)) for model, size in enumerate(sizes)
            )
        ]
    )


def buffer_of(logits: list[Tensor], sizes: tuple[int, ...]) -> Buffer:
    mixture = mixture_peers.buffer_of(logits, sizes, aligned_with_subtokens(sizes))
    taken = mixture.alignment.maps(logits[0].device).score_columns
    sources = [
        torch.cat(
            [inverse[scored.clamp(min=0)].where(scored >= 0, size), inverse.new_tensor([size])]
        )
        for inverse, scored, size in zip(mixture.inverse, taken, sizes, strict=True)
    ]
    return Buffer(mixture, sources)


def by_probabilities(buffer: Buffer, k: int) -> tuple[Tensor, Tensor]:
    """The softmax of each whole vocabulary, whose chosen masses are made to sum to 1."""
    own = [torch.softmax(logits, -1, dtype=torch.float32) for logits in buffer.mixture.logits]
    columns = _union(buffer, own, k)
    mixed = torch.zeros(columns.shape)
    for probabilities, sources in zip(own, buffer.sources, strict=True):
        taken, absent, sharers = _taken(probabilities, sources[columns])
        masses = taken.masked_fill(absent, 0.0) / sharers
        mixed += masses / masses.sum(-1, keepdim=True)
    return _packed(buffer, columns), mixed / len(own)


def by_logits(buffer: Buffer, k: int) -> tuple[Tensor, Tensor]:
    """The softmax of what was chosen alone."""
    columns = _union(buffer, buffer.mixture.logits, k)
    mixed = torch.zeros(columns.shape)
    for logits, sources in zip(buffer.mixture.logits, buffer.sources, strict=True):
        taken, absent, sharers = _taken(logits, sources[columns])
        scores = taken.float().masked_fill(absent, -torch.inf) - sharers.log()
        mixed += scores.softmax(-1)
    return _packed(buffer, columns), mixed / len(buffer.sources)


def best_of_each(logits: list[Tensor], k: int) -> list[Tensor]:
    """Without the map, the other models' candidates and the probabilities."""
    return [own.topk(k).values for own in logits]


def _union(buffer: Buffer, scores: list[Tensor], k: int) -> Tensor:
    """`[R, M·k]` int64: the columns of each model's k best, ascending, each once, then U."""
    best = [
        columns[own.topk(k).indices]
        for own, columns in zip(scores, buffer.mixture.columns, strict=True)
    ]
    found = torch.cat(best, -1).sort(-1).values
    repeated = torch.nn.functional.pad(found[:, 1:] == found[:, :-1], (1, 0))
    return found.masked_fill(repeated, buffer.mixture.alignment.size).sort(-1).values


def _taken(scores: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The scores of `ids [R, W]`, which of them are none, and how many are the same."""
    width = scores.shape[1]
    sharers = (ids[:, :, None] == ids[:, None, :]).sum(-1)
    return scores.gather(1, ids.clamp(max=width - 1)), ids == width, sharers


def _packed(buffer: Buffer, columns: Tensor) -> Tensor:
    return columns.masked_fill(columns == buffer.mixture.alignment.size, -1)
