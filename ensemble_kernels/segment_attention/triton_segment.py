"""The second of the two kernels of `segment_attention`: the states that the first one left, merged,
and what each row sees of its own segment."""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_softmax import (
    add_spoils,
    attend,
    load_query,
    merge_state,
    normalize,
    span_of_batch,
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
    """The rows of one tile of one segment: the splits of the prefix, then its own keys."""
    tile = tl.program_id(0)
    matrix = tl.program_id(1).to(tl.int64)
    batch, key_head = matrix // key_heads, matrix % key_heads
    offsets_stride = per_row_strides[1]
    segment_offsets += batch * per_row_strides[0]
    prefix, first = span_of_batch(batch, prefix_length, key_start, plain_prefix, per_row_strides)
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
    peak = tl.full([BLOCK_ROWS], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    state = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
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

    query_tile = load_query(
        *(query, batch, head, token, column, in_tile, query_strides), VECTOR=VECTOR, UPCAST=UPCAST
    )
    key += (batch * key_strides[0] + key_head * key_strides[1]) * VECTOR
    value += (batch * value_strides[0] + key_head * value_strides[1]) * VECTOR
    distance = packed // group
    hidden_before = distance * 0
    begin = 0
    if window is not None:
        hidden_before = distance - window + 1
        begin = tl.maximum(first_token - window + 1, 0) // BLOCK_KEYS * BLOCK_KEYS
    end = tl.minimum(tl.cdiv((tile - tiles_before + 1) * BLOCK_ROWS, group), length)
    end = tl.where(start < last, end, 0)
    for block in range(begin, end, BLOCK_KEYS):
        own = block + tl.arange(0, BLOCK_KEYS)
        slot = prefix + start + own
        readable = (own < end) & (slot >= first)
        seen = (own[None, :] <= distance[:, None]) & (own[None, :] >= hidden_before[:, None])
        peak, total, state = attend(
            *(peak, total, state, query_tile, key, value, slot, column, readable),
            *(seen & readable[None, :], scale, softcap, head_size, key_strides, value_strides),
            SEEN_BY_ALL=False,
            VECTOR=VECTOR,
            UPCAST=UPCAST,
        )
    state, row_lse = normalize(peak, total, state)
    for block in range(begin, end, BLOCK_KEYS):
        own = block + tl.arange(0, BLOCK_KEYS)
        slot = prefix + start + own
        readable = (own < end) & (slot >= first)
        seen = (own[None, :] <= distance[:, None]) & (own[None, :] >= hidden_before[:, None])
        state = add_spoils(
            *(state, value, slot, column, readable),
            *(seen & readable[None, :], head_size, value_strides),
            VECTOR=VECTOR,
            UPCAST=UPCAST,
        )
    result = (matrix // key_heads * key_heads * group + head) * rows + token
    tl.store(lse + result, row_lse, mask=real)
    tl.store(
        out + result[:, None] * head_size + column[None, :],
        state.to(out.dtype.element_ty),
        mask=in_tile,
    )
