"""The online softmax of the Triton kernels of `segment_attention`: a state `(peak [m], total [m],
out [m, d])` in float32, in base 2, which blocks of keys and partial states are added to.

Strides are those of a tensor, in its order; all but the last, of columns, in units of VECTOR
elements: loads can be as wide as that.
No row is multiplied by what it does not see: a hidden value adds 0 even if it is NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def span_of_batch(batch, prefix_length, key_start, plain_prefix, per_row_strides):
    """The slots of prefix of a batch row, and the first slot that it may see."""
    prefix = plain_prefix
    if prefix_length is not None:
        prefix = tl.load(prefix_length + batch * per_row_strides[2])
    first = 0
    if key_start is not None:
        first = tl.maximum(tl.load(key_start + batch * per_row_strides[3]), 0)
    return prefix, first


@triton.jit
def column_offsets(column, stride, VECTOR: tl.constexpr):
    """Of 64 bits, but where the stride is 1: one of a D that is not the last in memory is long."""
    return column.to(tl.int64) * stride if VECTOR == 1 else column


@triton.jit
def load_query(
    query,
    batch,
    head,
    token,
    column,
    in_tile,
    query_strides,
    # meta-parameters
    VECTOR: tl.constexpr,
    UPCAST: tl.constexpr,
):
    query += batch * VECTOR * query_strides[0]
    query += column_offsets(column, query_strides[3], VECTOR)[None, :]
    row = (head * query_strides[1] + token.to(tl.int64) * query_strides[2]) * VECTOR
    tile = tl.load(query + row[:, None], mask=in_tile, other=0.0)
    return tile.to(tl.float32) if UPCAST else tile


@triton.jit
def attend(
    peak,
    total,
    out,
    query,
    key,
    value,
    slot,
    column,
    readable,
    seen,
    scale,
    softcap,
    # sizes
    head_size,
    # strides
    key_strides,
    value_strides,
    # meta-parameters
    SEEN_BY_ALL: tl.constexpr,
    VECTOR: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """The state `(peak, total, out)` of an online softmax in base 2, one block of keys further.

    `readable [n]`: slots that some row of the tile sees; `seen [m, n]`: by which row, or by all.
    """
    slot = slot.to(tl.int64) * VECTOR
    in_head = column < head_size
    key_columns = column_offsets(column, key_strides[3], VECTOR)
    value_columns = column_offsets(column, value_strides[3], VECTOR)
    key_tile = tl.load(
        key + slot[None, :] * key_strides[2] + key_columns[:, None],
        mask=readable[None, :] & in_head[:, None],
        other=0.0,
    )
    value_tile = tl.load(
        value + slot[:, None] * value_strides[2] + value_columns[None, :],
        mask=readable[:, None] & in_head[None, :],
        other=0.0,
    )
    if UPCAST:
        key_tile, value_tile = key_tile.to(tl.float32), value_tile.to(tl.float32)
    scores = tl.dot(query, key_tile, input_precision="ieee")
    if softcap is None:
        scores *= scale * _LOG2_E
    else:
        # tanh(x) = 1 - 2 / (exp(2x) + 1), which is right at both infinities; but near 0 the
        # difference has lost its digits, which a wide cap would show.
        scores *= scale / softcap
        square = scores * scores
        near = scores * (1 - square * (1 / 3 - square * (2 / 15)))
        far = 1 - 2 / (tl.exp2(scores * (2 * _LOG2_E)) + 1)
        scores = tl.where(tl.abs(scores) < 0.1, near, far) * (softcap * _LOG2_E)
    scores = tl.where(seen, scores, -float("inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    # Nothing seen so far: (-inf) - (-inf) would be NaN.
    bound = tl.where(new_peak == -float("inf"), 0.0, new_peak)
    weights = tl.exp2(scores - bound[:, None])
    shrink = tl.exp2(peak - bound)
    total = total * shrink + tl.sum(weights, 1)
    out *= shrink[:, None]
    # The product would take 0 · NaN from a value that a row does not see but its neighbours do;
    # `add_spoils` adds it where it is seen.
    if not SEEN_BY_ALL:
        finite = tl.abs(value_tile.to(tl.float32)) < float("inf")
        value_tile = tl.where(finite, value_tile, 0.0).to(value_tile.dtype)
    weights = weights.to(value.dtype.element_ty)
    if UPCAST:
        weights = weights.to(tl.float32)
    out = tl.dot(weights, value_tile, out, input_precision="ieee")
    return new_peak, total, out


@triton.jit
def add_spoils(
    out,
    value,
    slot,
    column,
    readable,
    seen,
    # sizes
    head_size,
    # strides
    value_strides,
    # meta-parameters
    VECTOR: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """`out [m, d]`, to which one block's NaN and infinities are added where they are seen. They
    must not be shrunk any more: 0 · inf is NaN."""
    slot = slot.to(tl.int64) * VECTOR
    value_columns = column_offsets(column, value_strides[3], VECTOR)
    value_tile = tl.load(
        value + slot[:, None] * value_strides[2] + value_columns[None, :],
        mask=readable[:, None] & (column < head_size)[None, :],
        other=0.0,
    ).to(tl.float32)
    # One product counts both infinities, in two digits to the base 64; NaN is both of them.
    tl.static_assert(value_tile.shape[0] < 64)
    positive = (value_tile != value_tile) | (value_tile == float("inf"))
    negative = (value_tile != value_tile) | (value_tile == -float("inf"))
    spoils = tl.where(positive, 1.0, 0.0) + tl.where(negative, 64.0, 0.0)
    dtype: tl.constexpr = tl.float32 if UPCAST else value.dtype.element_ty
    # TF32 would be exact too, but lays the product out otherwise than float32 lays out the output,
    # and the two together spilled registers.
    counts = tl.dot(seen.to(dtype), spoils.to(dtype), input_precision="ieee").to(tl.int32)
    out += tl.where(counts % 64 > 0, float("inf"), 0.0)
    return out + tl.where(counts >= 64, -float("inf"), 0.0)


@triton.jit
def merge_state(peak, total, out, other_lse, other_out):
    """The state of an online softmax in base 2 together with a normalised part."""
    other_peak = other_lse * _LOG2_E
    new_peak = tl.maximum(peak, other_peak)
    bound = tl.where(new_peak == -float("inf"), 0.0, new_peak)
    shrink, share = tl.exp2(peak - bound), tl.exp2(other_peak - bound)
    return new_peak, total * shrink + share, out * shrink[:, None] + other_out * share[:, None]


@triton.jit
def normalize(peak, total, out):
    """The output, and the natural LSE; 0 and -inf for a row that has seen nothing."""
    lse = (peak + tl.log2(total)) / _LOG2_E
    return out / tl.where(total == 0, 1.0, total)[:, None], lse
