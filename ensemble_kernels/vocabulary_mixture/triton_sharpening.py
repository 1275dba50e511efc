"""`sharpen_prefixes` in Triton.

Floor: 2·R·U·b bytes + the ranges. The copy of the probabilities sums each chunk of them on its
way; a long range is then two parts of chunks and the sums between them. All sums are of float64:
b" " begins 138,690 tokens of a real union, and differences of float32 sums are not exact enough.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import _triton
from .._dispatch import check_contents
from .reference import check_columns

CHUNK = 1024
CANDIDATES = 128
WARPS = 4

_NO_COLUMN = tl.constexpr(2**31 - 1)


@triton.jit
def load_double(row, columns, column_stride, mask):
    values = tl.load(row + columns.to(tl.int64) * column_stride, mask=mask, other=0.0)
    return values.to(tl.float32).to(tl.float64)


@triton.jit
def copy_and_sum_kernel(
    probabilities,
    sharpened,
    chunk_sums,
    # sizes
    size,
    chunks,
    # strides
    row_stride,
    column_stride,
    # meta-parameters
    CHUNK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    columns = chunk * CHUNK + tl.arange(0, CHUNK)
    there = columns < size
    pointers = probabilities + row * row_stride + columns.to(tl.int64) * column_stride
    values = tl.load(pointers, mask=there, other=0.0)
    tl.store(sharpened + row * size + columns, values, mask=there)
    total = tl.sum(values.to(tl.float32).to(tl.float64), 0)
    tl.store(chunk_sums + row * chunks + chunk, total)


@triton.jit
def sharpen_kernel(
    probabilities,
    prefix_end,
    candidates,
    chunk_sums,
    sharpened,
    # sizes
    size,
    chunks,
    count,
    # strides
    row_stride,
    column_stride,
    end_stride,
    candidate_row_stride,
    candidate_stride,
    # meta-parameters
    threshold,
    CHUNK: tl.constexpr,
    CANDIDATES: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    start_of_row = probabilities + row * row_stride
    places = tl.program_id(1) * CANDIDATES + tl.arange(0, CANDIDATES)
    pointers = candidates + row * candidate_row_stride + places.to(tl.int64) * candidate_stride
    columns = tl.load(pointers, mask=places < count, other=-1).to(tl.int32)
    pointers = start_of_row + columns.to(tl.int64) * column_stride
    known = (columns >= 0) & (columns < size)
    held = tl.load(pointers, mask=known, other=0.0).to(tl.float32)
    likely = known & (held > threshold)
    # One at a time: there are at most 1 / threshold in a row, and mostly none among so many.
    while tl.max(likely.to(tl.int32), 0) > 0:
        start = tl.min(tl.where(likely, columns, _NO_COLUMN), 0)
        end = tl.minimum(tl.load(prefix_end + start * end_stride), size)
        first, last = start // CHUNK, (end - 1) // CHUNK
        inside = first * CHUNK + tl.arange(0, CHUNK)
        mask = (inside >= start) & (inside < end)
        total = tl.sum(load_double(start_of_row, inside, column_stride, mask), 0)
        whole = tl.arange(0, TILE)
        between = (whole > first) & (whole < last)
        total += tl.sum(tl.load(chunk_sums + row * chunks + whole, mask=between, other=0.0), 0)
        # Nothing more where the last chunk is the first.
        inside = last * CHUNK + tl.arange(0, CHUNK)
        mask = (inside >= (first + 1) * CHUNK) & (inside < end)
        total += tl.sum(load_double(start_of_row, inside, column_stride, mask), 0)
        # As PyTorch rounds it, by way of float32.
        total = total.to(tl.float32).to(sharpened.dtype.element_ty)
        tl.store(sharpened + row * size + start, total)
        likely = likely & (columns > start)


def sharpen_prefixes(
    probabilities: Tensor, prefix_end: Tensor, columns: Tensor, threshold: float
) -> Tensor:
    _triton.refuse_float64("probabilities", probabilities)
    if check_contents(columns.device.type):
        check_columns(columns, prefix_end.shape[0])
    (rows, size), count = probabilities.shape, columns.shape[1]
    chunks = triton.cdiv(size, CHUNK)
    sharpened = probabilities.new_empty((rows, size))
    chunk_sums = probabilities.new_empty((rows, chunks), dtype=torch.float64)
    if rows == 0:
        return sharpened
    _triton.launch(copy_and_sum_kernel, (rows, chunks))(
        *(probabilities, sharpened, chunk_sums, size, chunks, *probabilities.stride()),
        CHUNK=CHUNK,
        num_warps=WARPS,
    )
    if count:
        # The comparison is one of the dtype of the probabilities.
        threshold = torch.tensor(threshold, dtype=probabilities.dtype).item()
        _triton.launch(sharpen_kernel, (rows, triton.cdiv(count, CANDIDATES)))(
            *(probabilities, prefix_end, columns, chunk_sums, sharpened, size, chunks, count),
            *(*probabilities.stride(), *prefix_end.stride(), *columns.stride(), threshold),
            CHUNK=CHUNK,
            CANDIDATES=CANDIDATES,
            TILE=triton.next_power_of_2(chunks),
            num_warps=WARPS,
        )
    return sharpened
