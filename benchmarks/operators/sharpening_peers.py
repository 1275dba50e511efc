"""Prefixes of likely tokens by running sums over the whole vocabulary."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.operators.mixture_peers import aligned
from ensemble_kernels import VocabularyAlignment

THRESHOLD = 0.1
LETTERS = b"abcdefghijklmnopqrstuvwxyz"


class Buffer(NamedTuple):
    values: Tensor  # [R, U]
    candidates: Tensor  # [R, n] int64, all tokens of the first model
    alignment: VocabularyAlignment
    last: Tensor  # [R, n] int64, of the tokens that a candidate begins the last column


@lru_cache(maxsize=4)
def nested_alignment(sizes: tuple[int, ...]) -> VocabularyAlignment:
    """Of the shortest strings of letters, which all vocabularies have, and longer ones: as in real
    vocabularies a letter begins thousands of tokens, two letters hundreds."""
    return aligned(sizes, [spelled(number) for number in range(2 * sum(sizes))])


def spelled(number: int) -> bytes:
    """Another string for each number, the shorter ones first. Its last digit is its first letter,
    so that all letters begin about equally many."""
    text = bytearray()
    number += 1
    while number:
        number, letter = divmod(number - 1, len(LETTERS))
        text.append(LETTERS[letter])
    return bytes(text)


def buffers_of(
    alignment: VocabularyAlignment,
    rows: int,
    dtype: torch.dtype,
    count: int,
    generator: torch.Generator,
) -> list[Buffer]:
    """Likely are, in each row, the two candidates that begin most tokens."""
    device = generator.device
    candidates = alignment.model_columns(0).to(device)
    ends = alignment.maps(device).prefix_end.long()[candidates]
    widest = candidates[(ends - candidates).topk(2).indices]
    scores = torch.randn(rows, alignment.size, generator=generator, device=device)
    scores[:, widest] = 12.0  # a fifth of the mass each, at 290,000 columns
    values = scores.softmax(-1).to(dtype)
    return [
        Buffer(
            values.clone(),
            candidates.repeat(rows, 1),
            alignment,
            (ends - 1).repeat(rows, 1),
        )
        for _ in range(count)
    ]


def by_sums(buffer: Buffer, *, sums: torch.dtype, result: torch.dtype) -> Tensor:
    """Sums of type `sums` up to each column, of which the differences are the masses."""
    held = buffer.values.gather(1, buffer.candidates)
    reached = buffer.values.cumsum(-1, dtype=sums)
    masses = reached.gather(1, buffer.last) - reached.gather(1, buffer.candidates) + held
    sharpened = torch.where(held > THRESHOLD, masses, held.to(sums)).to(result)
    return buffer.values.to(result).scatter(1, buffer.candidates, sharpened)
