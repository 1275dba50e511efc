"""The first of the two kernels of `segment_attention`: what all rows see of the shared prefix."""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_softmax import add_spoils, attend, load_query, normalize, span_of_batch


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
    query_strides,
    key_strides,
    value_strides,
    per_row_strides,
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
    offsets_stride = per_row_strides[1]
    segment_offsets += batch * per_row_strides[0]
    prefix, first = span_of_batch(batch, prefix_length, key_start, plain_prefix, per_row_strides)
    packed = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    token = packed // group
    real = token < tl.load(segment_offsets + segments * offsets_stride)
    begin = split * SPLIT
    if (begin >= prefix) | (tl.max(real.to(tl.int32), 0) == 0):
        return
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
    in_tile = real[:, None] & (column < head_size)[None, :]
    query_tile = load_query(
        *(query, batch, head, token, column, in_tile, query_strides), VECTOR=VECTOR, UPCAST=UPCAST
    )
    key += (batch * key_strides[0] + key_head * key_strides[1]) * VECTOR
    value += (batch * value_strides[0] + key_head * value_strides[1]) * VECTOR
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
                *(scale, softcap, head_size, key_strides, value_strides),
                SEEN_BY_ALL=False,
                VECTOR=VECTOR,
                UPCAST=UPCAST,
            )
    for block in range(tl.maximum(begin, edge), end, BLOCK_KEYS):
        slot = block + tl.arange(0, BLOCK_KEYS)
        readable = (slot >= first) & (slot < end)
        peak, total, out = attend(
            *(peak, total, out, query_tile, key, value, slot, column, readable),
            *(readable[None, :], scale, softcap, head_size, key_strides, value_strides),
            SEEN_BY_ALL=True,
            VECTOR=VECTOR,
            UPCAST=UPCAST,
        )
    out, lse = normalize(peak, total, out)
    if window is not None:
        for block in range(begin, edge, BLOCK_KEYS):
            slot = block + tl.arange(0, BLOCK_KEYS)
            readable = (slot >= first) & (slot < end)
            seen = readable[None, :] & (slot[None, :] >= oldest[:, None])
            out = add_spoils(
                *(out, value, slot, column, readable, seen, head_size, value_strides),
                VECTOR=VECTOR,
                UPCAST=UPCAST,
            )
    state = (matrix * splits + split) * rows * group + packed
    tl.store(partial_lse + state, lse, mask=real)
    tl.store(partial_out + state[:, None] * head_size + column[None, :], out, mask=in_tile)
