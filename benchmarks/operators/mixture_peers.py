"""Mixtures of distributions by gathers, scatters and sparse products."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from benchmarks.operators.ceilings import dtype_name
from ensemble_kernels import VocabularyAlignment

VOCABULARIES = ((49_152, 262_144), (49_152, 262_144, 151_936))  # SmolLM2, Gemma 3, Qwen 2.5


@dataclass(frozen=True)
class Case:
    """Of an operator over the union of vocabularies of these sizes."""

    sizes: tuple[int, ...]
    rows: int
    dtype: torch.dtype

    def __str__(self) -> str:
        sizes = "+".join(map(str, self.sizes))
        return f"{dtype_name(self.dtype)}-v{sizes}-r{self.rows}"


@dataclass(frozen=True)
class Buffer:
    """Logits, and the map as each alternative wants it: all of it is read by every call."""

    logits: list[Tensor]
    alignment: VocabularyAlignment
    inverse: list[Tensor]  # per model [U] int64, V where it lacks the column
    columns: list[Tensor]  # per model [V] int64, the column of each id
    sparse: list[Tensor]  # per model [U, V] CSR of ones


@lru_cache(maxsize=4)
def alignment(sizes: tuple[int, ...]) -> VocabularyAlignment:
    """In an order of ids that has nothing to do with that of the bytes."""
    numbers = list(range(2 * sum(sizes)))
    random.Random(0).shuffle(numbers)
    return aligned(sizes, [number.to_bytes(4, "big") for number in numbers])


def aligned(sizes: tuple[int, ...], texts: list[bytes]) -> VocabularyAlignment:
    """Of vocabularies whose first half is in the largest one, and that all end their texts by an
    id of their own. `texts` are twice as many as there are ids, those of the largest first."""
    common, own = texts[: max(sizes)], iter(texts[max(sizes) :])
    tables = []
    for size in sizes:
        shared = size if size == max(sizes) else size // 2
        tables.append(common[:shared] + [next(own) for _ in range(size - shared)])
    return VocabularyAlignment.from_token_bytes(tables, [[size - 1] for size in sizes])


def buffer_of(
    logits: list[Tensor], sizes: tuple[int, ...], known: VocabularyAlignment | None = None
) -> Buffer:
    """`known`: the alignment of these sizes, where more is known of it."""
    mapping = copy.copy(known or alignment(sizes))
    device = logits[0].device
    maps = mapping.maps(device)
    # A map of its own, as cold as the logits.
    mapping._maps = {**mapping._maps, str(device): copy.deepcopy(maps)}
    inverse, columns, sparse = [], [], []
    for offsets, ids, size in zip(maps.offsets, maps.ids, sizes, strict=True):
        has = offsets.diff() > 0
        inverse.append(torch.full(has.shape, size, device=device).masked_scatter_(has, ids.long()))
        columns.append(torch.empty(size, dtype=torch.int64, device=device))
        columns[-1][ids.long()] = has.nonzero()[:, 0]
        csr = (
            offsets.clone(),
            ids.clone(),
            torch.ones(ids.shape[0], device=device),
            (has.shape[0], size),
        )
        sparse.append(torch.sparse_csr_tensor(*csr, check_invariants=False))
    return Buffer([tensor.clone() for tensor in logits], mapping, inverse, columns, sparse)


def as_returned(buffer: Any, mixed: Tensor) -> Sequence[Tensor]:
    return [mixed]


def by_gather(buffer: Buffer) -> Tensor:
    masses = []
    for logits, inverse in zip(buffer.logits, buffer.inverse, strict=True):
        own = torch.softmax(logits, -1, dtype=torch.float32)
        # One column more, of mass 0, for what the model lacks.
        masses.append(torch.nn.functional.pad(own, (0, 1)).index_select(1, inverse))
    return _normalised(_total(masses))


def by_scatter(buffer: Buffer) -> Tensor:
    rows = buffer.logits[0].shape[0]
    mixed = torch.zeros(rows, buffer.alignment.size, device=buffer.logits[0].device)
    for logits, columns in zip(buffer.logits, buffer.columns, strict=True):
        mixed.index_add_(1, columns, torch.softmax(logits, -1, dtype=torch.float32))
    return _normalised(mixed)


def by_product(buffer: Buffer) -> Tensor:
    masses = [
        sparse @ torch.softmax(logits, -1, dtype=torch.float32).t()
        for logits, sparse in zip(buffer.logits, buffer.sparse, strict=True)
    ]
    return _normalised(_total(masses).t())


def _total(masses: list[Tensor]) -> Tensor:
    for further in masses[1:]:
        masses[0].add_(further)
    return masses[0]


def _normalised(mixed: Tensor) -> Tensor:
    return mixed.div_(mixed.sum(-1, keepdim=True))
