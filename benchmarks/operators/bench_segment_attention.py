"""`segment_attention` against SDPA and compiled FlexAttention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch

from benchmarks.operators.attention_peers import (
    HEADS,
    LENGTHS,
    PREFIXES,
    Buffer,
    Visibility,
    as_returned,
    buffer_of,
    peers,
)
from benchmarks.operators.ceilings import Work, dtype_name
from benchmarks.operators.frame import TOLERANCE, Alternative, Setting, back_ends, copies_needed
from ensemble_kernels import segment_attention
from tests.kernels.attention_strategies import pack


@dataclass(frozen=True)
class Case:
    query_heads: int
    key_heads: int
    size: int
    window: int | None
    prefix: int
    lengths: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        window = "" if self.window is None else f"-w{self.window}"
        return (
            f"{dtype_name(self.dtype)}-h{self.query_heads}/{self.key_heads}-d{self.size}{window}"
            f"-p{self.prefix}-t{sum(self.lengths)}"
        )


DTYPES = (torch.float32, torch.bfloat16)

CASES = {
    "full": [
        Case(*heads, prefix, lengths, dtype)
        for heads, prefix, lengths, dtype in product(HEADS, PREFIXES, LENGTHS, DTYPES)
    ],
    # Each case compiles FlexAttention, so that two have to show both the dtypes and the window.
    "quick": [
        Case(*heads, 2048, LENGTHS[1], dtype) for heads, dtype in zip(HEADS, DTYPES, strict=False)
    ],
    "tiny": [Case(4, 2, 16, 9, 32, (3, 4), torch.float32)],
}


def test_segment_attention(case: Case, setting: Setting, figures: Callable[..., None]) -> None:
    made = pack(
        case.lengths, case.prefix, case.query_heads, case.key_heads, case.size, dtype=case.dtype
    )
    visibility = Visibility.of(case.prefix, case.lengths, case.window)
    buffer = buffer_of(*made)
    work, states = floor(case, visibility)
    ours = [
        Alternative(
            name,
            lambda b, name=name: segment_attention(
                b.query, b.key, b.value, b.offsets, window=case.window, backend=name
            ),
            as_returned,
        )
        for name in back_ends("segment_attention")
    ]
    buffers: list[Buffer] = [buffer]
    buffers += [buffer_of(*made) for _ in range(copies_needed(states, setting.size) - 1)]
    figures(
        "segment_attention",
        case,
        [*ours, *peers(buffer, visibility)],
        buffers,
        work,
        bytes_each=states,
        tolerance=TOLERANCE[case.dtype],
    )


def floor(case: Case, visibility: Visibility) -> tuple[Work, int]:
    """The work, and the bytes of it that are keys and values: prefix slots that the window hides
    from every row need not be read."""
    mask = visibility.mask()
    rows, element = sum(case.lengths), case.dtype.itemsize
    slots = int(mask.any(0).sum())
    states = 2 * slots * case.key_heads * case.size * element
    queries = 2 * rows * case.query_heads * case.size * element + 4 * rows * case.query_heads
    flops = 4 * case.query_heads * case.size * int(mask.sum())
    return Work(states + queries, flops, case.dtype), states
