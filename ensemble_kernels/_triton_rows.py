"""Parts of the Triton kernels that read rows of logits."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_chunk(row, start, size, column_stride, CHUNK: tl.constexpr):
    """Columns `start .. start + CHUNK - 1` of a row as float32, -inf from `size` on."""
    columns = start + tl.arange(0, CHUNK)
    pointers = row + columns.to(tl.int64) * column_stride
    # A mask that is not uniform over 16 bytes would split the loads of all chunks but the last.
    if start + CHUNK <= size:
        values = tl.load(pointers).to(tl.float32)
    else:
        values = tl.load(pointers, mask=columns < size, other=-float("inf")).to(tl.float32)
    return values


@triton.jit
def finite_or_zero(maximum):
    """What to subtract: of -inf from -inf nothing but NaN would come."""
    return tl.where(maximum == -float("inf"), 0.0, maximum)
