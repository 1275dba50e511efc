"""`compact_kv_` against whole-cache gathers, copies layer by layer, and a plain copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.operators.ceilings import Work, dtype_name
from benchmarks.operators.frame import Alternative, Setting, back_ends, copies_needed
from ensemble_kernels import compact_kv_


@dataclass(frozen=True)
class Case:
    name: str
    layers: int
    heads: int
    slots: int
    size: int
    keep: tuple[int, ...]  # counted from the first slot that they go to
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)}-{self.name}-s{self.slots}-n{len(self.keep)}"


class Buffer(NamedTuple):
    cache: Tensor  # [layers, 2, 1, H, S, D]
    keep: Tensor
    start: int
    kept: Tensor  # as many bytes as are moved, in one piece, and where to copy them
    target: Tensor


PREFIX, PACKED = 2048, 40
ONE_CANDIDATE = tuple(range(20, 25))
SCATTERED = (7, 15, 22, 30, 38)
# 2048 of 4096 slots: the second half, and 16 of each 32, all of which move.
HALF = tuple(range(2048, 4096))
RUNS = tuple(slot for run in range(16, 4096, 32) for slot in range(run, run + 16))
DTYPES = (torch.float32, torch.bfloat16)


def _commit(name: str, keep: tuple[int, ...], dtype: torch.dtype) -> Case:
    return Case(name, 30, 3, PREFIX + PACKED, 64, keep, dtype)


def _large(name: str, keep: tuple[int, ...], dtype: torch.dtype) -> Case:
    return Case(name, 30, 3, 4096, 64, keep, dtype)


CASES = {
    "full": [
        make(name, keep, dtype)
        for make, name, keep in (
            (_commit, "one-candidate", ONE_CANDIDATE),
            (_commit, "scattered", SCATTERED),
            (_large, "half", HALF),
            (_large, "runs-of-16", RUNS),
        )
        for dtype in DTYPES
    ],
    "quick": [_commit("one-candidate", ONE_CANDIDATE, torch.float32)],
    "tiny": [Case("tiny", 2, 2, 12, 4, (2, 5), torch.float32)],
}


def test_compact_kv(case: Case, setting: Setting, figures: Callable[..., None]) -> None:
    moved = 2 * case.layers * case.heads * case.size * len(case.keep) * case.dtype.itemsize
    ours = [
        Alternative(
            name,
            lambda b, name=name: compact_kv_(b.cache, b.keep, b.start, backend=name),
            the_cache,
        )
        for name in back_ends("compact_kv_")
    ]
    peers = [
        Alternative("index_select, narrow().copy_", whole_cache, the_cache),
        Alternative("the same layer by layer", by_layer, the_cache),
        Alternative("memcpy of as many bytes", lambda b: b.target.copy_(b.kept), None),
    ]
    figures(
        "compact_kv_",
        case,
        [*ours, *peers],
        buffers_of(case, copies_needed(2 * moved, setting.size)),
        Work(2 * moved, copies=True),
        bytes_each=2 * moved,
        tolerance=0.0,
        in_place=True,
    )


def buffers_of(case: Case, count: int, device: torch.device | str = "cpu") -> list[Buffer]:
    """Where few slots move, one cache serves several buffers: they are elsewhere in it."""
    shape = (case.layers, 2, 1, case.heads, case.slots, case.size)
    generator = torch.Generator(device=device).manual_seed(0)
    values = torch.randn(shape, generator=generator, device=device).to(case.dtype)
    reach = max(case.keep) + 1
    starts = range(case.slots - reach, -1, -reach)
    caches = [values.clone() for _ in range(-(-count // len(starts)))]
    moved = (2 * case.layers * case.heads, len(case.keep), case.size)
    made = []
    for cache in caches:
        for start in starts:
            kept, target = torch.ones(2, *moved, dtype=case.dtype, device=device)
            keep = torch.tensor(case.keep, device=device) + start
            made.append(Buffer(cache, keep, start, kept, target))
    return made[:count]


def the_cache(buffer: Buffer, returned: object) -> list[Tensor]:
    return [buffer.cache]


def whole_cache(buffer: Buffer) -> None:
    kept = buffer.cache.index_select(-2, buffer.keep)
    buffer.cache.narrow(-2, buffer.start, kept.shape[-2]).copy_(kept)


def by_layer(buffer: Buffer) -> None:
    for layer in buffer.cache:
        for states in layer:
            kept = states.index_select(-2, buffer.keep)
            states.narrow(-2, buffer.start, kept.shape[-2]).copy_(kept)
