"""`segment_attention` in Triton.

Floor: 2(P+T)·Hkv·D·b + 2T·Hq·D·b + 4·T·Hq bytes, 4·Hq·D·Σ visible FLOPs. The rows of the G query
heads of one key head are packed, row t·G + g, so that a tile of them reads each key once.

Two launches. The prefix pass packs rows of all segments densely, since all of them see the same
keys; it works on splits of a fixed size and leaves of each a partial state: the normalised output
and the natural LSE, in float32. The segment pass merges the splits in the order of their index and
goes on with the keys of the row's own segment, in tiles that belong to one segment each. Blocks of
keys are counted from the start of the prefix and of the segment, and tiles have a fixed size: a
row's bits depend neither on its neighbours nor on how many candidates there are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import _triton
from .._dispatch import check_contents
from .reference import check_lengths
from .triton_softmax import attend, count_spoils, merge_state, normalize

# Beyond these, no tile is small enough for the registers: float32 goes without tensor cores.
_LARGEST_HEAD = {torch.float32: 128, torch.float16: 256, torch.bfloat16: 256}
# A partial state of a row costs 4·D bytes, as much as two bfloat16 keys, once for each split.
SPLIT = 512


@triton.jit(do_not_specialize=["rows", "segments", "plain_prefix", "splits", "window"])
def prefix_kernel(
    query,
    key,
    value,
    partial_out,
    partial_lse,
    segment_offsets,
    prefix_length,
    key_start,
    scale,
    softcap,
    window,
    # sizes
    rows,
    key_heads,
    group,
    head_size,
    segments,
    plain_prefix,
    splits,
    # strides
    query_batch_stride,
    query_head_stride,
    query_row_stride,
    query_column_stride,
    key_batch_stride,
    key_head_stride,
    key_slot_stride,
    key_column_stride,
    value_batch_stride,
    value_head_stride,
    value_slot_stride,
    value_column_stride,
    offsets_batch_stride,
    offsets_stride,
    prefix_stride,
    start_stride,
    # meta-parameters
    SPLIT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    VECTOR: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """The partial states of one tile of packed rows behind one split of the prefix."""
    split = tl.program_id(1)
    matrix = tl.program_id(2).to(tl.int64)
    batch, key_head = matrix // key_heads, matrix % key_heads
    segment_offsets += batch * offsets_batch_stride
    prefix = plain_prefix
    if prefix_length is not None:
        prefix = tl.load(prefix_length + batch * prefix_stride)
    packed = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    token = packed // group
    real = token < tl.load(segment_offsets + segments * offsets_stride)
    if (split * SPLIT >= prefix) | (tl.max(real.to(tl.int32), 0) == 0):
        return
    first = 0
    if key_start is not None:
        first = tl.maximum(tl.load(key_start + batch * start_stride), 0)
    begin = split * SPLIT
    end = tl.minimum(begin + SPLIT, prefix)
    edge = begin
    oldest = tl.zeros([BLOCK_ROWS], tl.int32)
    if window is not None:
        row_start = tl.zeros([BLOCK_ROWS], tl.int32)
        for segment in range(segments):
            offset = tl.load(segment_offsets + segment * offsets_stride)
            row_start = tl.where(offset <= token, offset, row_start)
        oldest = tl.maximum(prefix + token - row_start - window + 1, 0)
        # Up to its edge, the window differs from row to row.
        edge = tl.minimum(tl.cdiv(tl.max(oldest, 0), BLOCK_KEYS) * BLOCK_KEYS, end)
        begin = tl.maximum(begin, tl.min(oldest, 0) // BLOCK_KEYS * BLOCK_KEYS)
    begin = tl.maximum(begin, first // BLOCK_KEYS * BLOCK_KEYS)

    head = key_head * group + packed % group
    column = tl.arange(0, BLOCK_COLUMNS)
    query += batch * VECTOR * query_batch_stride + column[None, :] * query_column_stride
    query_row = (head * query_head_stride + token.to(tl.int64) * query_row_stride) * VECTOR
    query_tile = tl.load(
        query + query_row[:, None],
        mask=real[:, None] & (column < head_size)[None, :],
        other=0.0,
    )
    if UPCAST:
        query_tile = query_tile.to(tl.float32)
    key += (batch * key_batch_stride + key_head * key_head_stride) * VECTOR
    value += (batch * value_batch_stride + key_head * value_head_stride) * VECTOR
    peak = tl.full([BLOCK_ROWS], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    out = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
    if window is not None:
        for block in range(begin, edge, BLOCK_KEYS):
            slot = block + tl.arange(0, BLOCK_KEYS)
            readable = (slot >= first) & (slot < end)
            seen = readable[None, :] & (slot[None, :] >= oldest[:, None])
            peak, total, out = attend(
                *(peak, total, out, query_tile, key, value, slot, column, readable, seen),
                *(scale, softcap, head_size),
                *(key_slot_stride, key_column_stride, value_slot_stride, value_column_stride),
                SEEN_BY_ALL=False,
                VECTOR=VECTOR,
                UPCAST=UPCAST,
            )
        spoils = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
        for block in range(begin, edge, BLOCK_KEYS):
            slot = block + tl.arange(0, BLOCK_KEYS)
            readable = (slot >= first) & (slot < end)
            seen = readable[None, :] & (slot[None, :] >= oldest[:, None])
            spoils = count_spoils(
                *(spoils, value, slot, column, readable, seen, head_size),
                *(value_slot_stride, value_column_stride),
                VECTOR=VECTOR,
                UPCAST=UPCAST,
            )
        out = tl.where(spoils > 0, float("nan"), out)
    for block in range(tl.maximum(begin, edge), end, BLOCK_KEYS):
        slot = block + tl.arange(0, BLOCK_KEYS)
        readable = (slot >= first) & (slot < end)
        peak, total, out = attend(
            *(peak, total, out, query_tile, key, value, slot, column, readable),
            *(readable[None, :], scale, softcap, head_size),
            *(key_slot_stride, key_column_stride, value_slot_stride, value_column_stride),
            SEEN_BY_ALL=True,
            VECTOR=VECTOR,
            UPCAST=UPCAST,
        )
    out, lse = normalize(peak, total, out)
    state = (matrix * splits + split) * rows * group + packed
    tl.store(partial_lse + state, lse, mask=real)
    tl.store(
        partial_out + state[:, None] * head_size + column[None, :],
        out,
        mask=real[:, None] & (column < head_size)[None, :],
    )


@triton.jit(do_not_specialize=["rows", "segments", "plain_prefix", "splits", "window"])
def segment_kernel(
    query,
    key,
    value,
    partial_out,
    partial_lse,
    out,
    lse,
    segment_offsets,
    prefix_length,
    key_start,
    scale,
    softcap,
    window,
    # sizes
    rows,
    key_heads,
    group,
    head_size,
    segments,
    plain_prefix,
    splits,
    # strides
    query_batch_stride,
    query_head_stride,
    query_row_stride,
    query_column_stride,
    key_batch_stride,
    key_head_stride,
    key_slot_stride,
    key_column_stride,
    value_batch_stride,
    value_head_stride,
    value_slot_stride,
    value_column_stride,
    offsets_batch_stride,
    offsets_stride,
    prefix_stride,
    start_stride,
    # meta-parameters
    SPLIT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    VECTOR: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """The rows of one tile of one segment: the splits of the prefix, then its own keys."""
    tile = tl.program_id(0)
    matrix = tl.program_id(1).to(tl.int64)
    batch, key_head = matrix // key_heads, matrix % key_heads
    segment_offsets += batch * offsets_batch_stride
    # Which segment? The rows of padding count as one more.
    start, length, tiles_before = 0, 0, 0
    last = tl.load(segment_offsets + segments * offsets_stride)
    tiles = 0
    segment_start = 0
    for segment in range(segments + 1):
        segment_end = rows
        if segment < segments:
            segment_end = tl.load(segment_offsets + (segment + 1) * offsets_stride)
        if tiles <= tile:
            start, length, tiles_before = segment_start, segment_end - segment_start, tiles
        tiles += tl.cdiv((segment_end - segment_start) * group, BLOCK_ROWS)
        segment_start = segment_end
    if tile >= tiles:
        return
    packed = (tile - tiles_before) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    token = start + packed // group
    real = packed < length * group
    head = key_head * group + packed % group
    column = tl.arange(0, BLOCK_COLUMNS)
    in_tile = real[:, None] & (column < head_size)[None, :]
    result = (matrix // key_heads * key_heads * group + head) * rows + token
    peak = tl.full([BLOCK_ROWS], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    state = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
    prefix = plain_prefix
    if prefix_length is not None:
        prefix = tl.load(prefix_length + batch * prefix_stride)
    first = 0
    if key_start is not None:
        first = tl.maximum(tl.load(key_start + batch * start_stride), 0)
    first_token = (tile - tiles_before) * BLOCK_ROWS // group
    oldest = first
    if window is not None:
        oldest = tl.maximum(first, prefix + first_token - window + 1)
    for split in range(oldest // SPLIT, tl.where(start < last, tl.cdiv(prefix, SPLIT), 0)):
        row = (matrix * splits + split) * rows * group + start * group + packed
        split_lse = tl.load(partial_lse + row, mask=real, other=-float("inf"))
        # A split that the row does not see has left nothing but its LSE.
        split_out = tl.load(
            partial_out + row[:, None] * head_size + column[None, :],
            mask=in_tile & (split_lse != -float("inf"))[:, None],
            other=0.0,
        )
        peak, total, state = merge_state(peak, total, state, split_lse, split_out)

    query += batch * VECTOR * query_batch_stride + column[None, :] * query_column_stride
    query_row = (head * query_head_stride + token.to(tl.int64) * query_row_stride) * VECTOR
    query_tile = tl.load(
        query + query_row[:, None],
        mask=in_tile,
        other=0.0,
    )
    if UPCAST:
        query_tile = query_tile.to(tl.float32)
    key += (batch * key_batch_stride + key_head * key_head_stride) * VECTOR
    value += (batch * value_batch_stride + key_head * value_head_stride) * VECTOR
    begin = 0
    if window is not None:
        begin = tl.maximum(first_token - window + 1, 0) // BLOCK_KEYS * BLOCK_KEYS
    end = tl.minimum(tl.cdiv((tile - tiles_before + 1) * BLOCK_ROWS, group), length)
    end = tl.where(start < last, end, 0)
    distance = packed // group
    hidden_before = distance * 0
    if window is not None:
        hidden_before = distance - window + 1
    for block in range(begin, end, BLOCK_KEYS):
        own = block + tl.arange(0, BLOCK_KEYS)
        slot = prefix + start + own
        readable = (own < end) & (slot >= first)
        seen = (own[None, :] <= distance[:, None]) & (own[None, :] >= hidden_before[:, None])
        seen &= readable[None, :]
        peak, total, state = attend(
            *(peak, total, state, query_tile, key, value, slot, column, readable, seen),
            *(scale, softcap, head_size),
            *(key_slot_stride, key_column_stride, value_slot_stride, value_column_stride),
            SEEN_BY_ALL=False,
            VECTOR=VECTOR,
            UPCAST=UPCAST,
        )
    spoils = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
    for block in range(begin, end, BLOCK_KEYS):
        own = block + tl.arange(0, BLOCK_KEYS)
        slot = prefix + start + own
        readable = (own < end) & (slot >= first)
        seen = (own[None, :] <= distance[:, None]) & (own[None, :] >= hidden_before[:, None])
        seen &= readable[None, :]
        spoils = count_spoils(
            *(spoils, value, slot, column, readable, seen, head_size),
            *(value_slot_stride, value_column_stride),
            VECTOR=VECTOR,
            UPCAST=UPCAST,
        )
    state = tl.where(spoils > 0, float("nan"), state)
    state, row_lse = normalize(peak, total, state)
    tl.store(lse + result, row_lse, mask=real)
    tl.store(
        out + result[:, None] * head_size + column[None, :],
        state.to(out.dtype.element_ty),
        mask=in_tile,
    )


def segment_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segment_offsets: Tensor,
    prefix_length: Tensor | None = None,
    key_start: Tensor | None = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    batch, heads, rows, head_size = query.shape
    key_heads, plain_prefix = key.shape[1], key.shape[2] - rows
    if check_contents(query.device.type):
        check_lengths(segment_offsets, prefix_length, rows, plain_prefix)
    if query.dtype not in _LARGEST_HEAD:
        expected = ", ".join(str(dtype).removeprefix("torch.") for dtype in _LARGEST_HEAD)
        got = str(query.dtype).removeprefix("torch.")
        raise _triton.Unsupported(f"query must be of dtype {expected} for Triton, got {got}")
    vector = _vector(query, key, value)
    largest = _LARGEST_HEAD[query.dtype] if vector > 1 else 128
    if head_size > largest:
        raise _triton.Unsupported(
            f"query must have D of at most {largest} for Triton in its dtype and strides, "
            f"got {head_size}"
        )
    out = query.new_empty(query.shape)
    lse = query.new_empty((batch, heads, rows), dtype=torch.float32)
    if out.numel() == 0:
        return out, lse
    group, splits = heads // key_heads, triton.cdiv(plain_prefix, SPLIT)
    segments = segment_offsets.shape[-1] - 1
    states = batch * key_heads * splits * rows * group
    partial_out = query.new_empty((states, head_size), dtype=torch.float32)
    partial_lse = query.new_empty(states, dtype=torch.float32)
    offsets = segment_offsets.expand(batch, -1)
    lengths = (segment_offsets, prefix_length, key_start, scale, softcap, window)
    sizes = (rows, key_heads, group, head_size, segments, plain_prefix, splits)
    strides = (
        *(stride for states in (query, key, value) for stride in _in_units(states, vector)),
        *offsets.stride(),
        *(0 if per_row is None else per_row.stride(0) for per_row in (prefix_length, key_start)),
    )
    options = _meta_parameters(query.dtype, head_size, vector)
    block_rows = options["BLOCK_ROWS"]
    if splits:
        grid = (triton.cdiv(rows * group, block_rows), splits, batch * key_heads)
        _triton.launch(prefix_kernel, grid)(
            *(query, key, value, partial_out, partial_lse),
            *(*lengths, *sizes, *strides),
            **options,
        )
    # Each segment, and the padding, may end with a tile that is not full.
    tiles = rows * group // block_rows + segments + 1
    _triton.launch(segment_kernel, (tiles, batch * key_heads))(
        *(query, key, value, partial_out, partial_lse, out, lse),
        *(*lengths, *sizes, *strides),
        **options,
    )
    return out, lse


# By the padded size of a head: rows, keys, warps, stages.
_TILES = {
    16: (64, 32, 4, 2),
    32: (64, 32, 4, 2),
    64: (64, 32, 4, 2),
    128: (64, 16, 8, 2),
    256: (32, 16, 4, 2),
}


def _vector(*tensors: Tensor) -> int:
    """The elements, 8 or 1, that all strides but those of columns, which are 1, are multiples of.
    Triton would see multiples of 16 by itself, but D is 72 in some models."""
    strides = [stride for states in tensors for stride in states.stride()[:-1]]
    aligned = all(states.stride(-1) == 1 for states in tensors)
    return 8 if aligned and all(stride % 8 == 0 for stride in strides) else 1


def _in_units(states: Tensor, vector: int) -> tuple[int, ...]:
    *strides, column_stride = states.stride()
    return *(stride // vector for stride in strides), column_stride


def _meta_parameters(dtype: torch.dtype, head_size: int, vector: int) -> dict[str, int | bool]:
    """Of both kernels: the largest tiles that no target spills registers for. They must not depend
    on how many rows there are, so that bits do not."""
    columns = max(triton.next_power_of_2(head_size), 16)
    if dtype == torch.float32:
        rows, keys, warps, stages = 16, 16, 8, 1
    elif vector == 1:  # each element has a pointer of its own
        rows, keys, warps, stages = 32, 16, 8, 1
    else:
        rows, keys, warps, stages = _TILES[columns]
    return {
        "SPLIT": SPLIT,
        "BLOCK_ROWS": rows,
        "BLOCK_KEYS": keys,
        "BLOCK_COLUMNS": columns,
        "VECTOR": vector,
        # The interpreter multiplies matrices of bfloat16 as if they were integers.
        "UPCAST": _triton.interpreted(),
        "num_warps": warps,
        "num_stages": stages,
    }
