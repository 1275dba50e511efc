"""`compact_kv_` in Triton.

Floor: 2 · (bytes of the kept slots), read once and written once; slots that keep their place are
neither. At decode size the launch costs more than the move, so one launch serves all layers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import _triton
from .._dispatch import check_contents
from .reference import check_keep

# Moves are of bits: as integers no NaN is made quiet and no dtype is special.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_TILE_BYTES = 16384
_MAX_COLUMN_BYTES = 512


@triton.jit
def compact_kv_kernel(
    cache,
    keep,
    destination_start,
    # sizes
    middle_size,
    batch,
    heads,
    kept,
    columns,
    # strides
    outer_stride,
    middle_stride,
    batch_stride,
    head_stride,
    slot_stride,
    column_stride,
    keep_batch_stride,
    keep_stride,
    start_stride,
    # meta-parameters
    BLOCK_SLOTS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """One block of columns of one matrix of slots, which is this program's alone."""
    matrix = tl.program_id(0).to(tl.int64)
    head = matrix % heads
    row = matrix // heads % batch
    middle = matrix // heads // batch % middle_size
    outer = matrix // heads // batch // middle_size
    column = tl.program_id(1).to(tl.int64) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    cache += outer * outer_stride + middle * middle_stride + row * batch_stride + head * head_stride
    cache += column[None, :] * column_stride
    keep += row * keep_batch_stride
    start = tl.load(destination_start + row * start_stride)
    for first in range(0, kept, BLOCK_SLOTS):
        index = first + tl.arange(0, BLOCK_SLOTS)
        source = tl.load(keep + index * keep_stride, mask=index < kept, other=-1)
        destination = start + index
        # False for the padding, -1, and for what is in its place.
        moves = (source > destination)[:, None] & (column < columns)[None, :]
        states = tl.load(cache + source[:, None] * slot_stride, mask=moves, other=0)
        # A warp may store where another has still to load. One barrier a tile is enough: later
        # tiles come from behind all destinations of this one, since `keep` ascends.
        tl.debug_barrier()
        tl.store(cache + destination[:, None] * slot_stride, states, mask=moves)


def compact_kv_(cache: Tensor, keep: Tensor, destination_start: Tensor) -> None:
    if check_contents(cache.device.type):
        check_keep(cache.shape[-2], keep, destination_start)
    item = cache.element_size()
    if item not in _BITS:
        raise _triton.Unsupported(f"cache must have elements of 1, 2, 4 or 8 bytes, got {item}")
    if keep.numel() == 0 or cache.numel() == 0:
        return
    # An offset into `keep` is of 32 bits.
    cache, keep = cache.view(_BITS[item]), keep.contiguous()
    by_row = keep.ndim == 2
    leading = list(zip(cache.shape[:-2], cache.stride()[:-2], strict=True))
    dimensions = _merged(leading[:-2]) + leading[-2:] if by_row else _merged(leading)
    if len(dimensions) > 4:
        for part in cache.unbind(0):
            compact_kv_(part, keep, destination_start)
        return
    dimensions = [(1, 0)] * (4 - len(dimensions)) + dimensions
    (outer, _), (middle, _), (batch, _), (heads, _) = dimensions
    kept, columns = keep.shape[-1], cache.shape[-1]
    block_columns = min(triton.next_power_of_2(columns), _MAX_COLUMN_BYTES // item)
    block_slots = min(triton.next_power_of_2(kept), _TILE_BYTES // item // block_columns)
    grid = (outer * middle * batch * heads, triton.cdiv(columns, block_columns))
    _triton.launch(compact_kv_kernel, grid)(
        *(cache, keep, destination_start),
        *(middle, batch, heads, kept, columns),
        *(stride for _, stride in dimensions),
        *cache.stride()[-2:],
        *(keep.stride(0) if by_row else 0, keep.stride(-1)),
        destination_start.stride(0) if by_row else 0,
        BLOCK_SLOTS=block_slots,
        BLOCK_COLUMNS=block_columns,
    )


def _merged(dimensions: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The sizes and strides of the same elements with as few dimensions as there can be."""
    merged: list[tuple[int, int]] = []
    for size, stride in dimensions:
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged
