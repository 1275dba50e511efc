"""The online softmax of the Triton kernels of `segment_attention`: a state `(peak [m], total [m],
out [m, d])` in float32, in base 2, which blocks of keys and partial states are added to.

Strides but those of columns are in units of VECTOR elements: loads can be as wide as that.
No row is multiplied by what it does not see: a hidden value adds 0 even if it is NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)


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
    key_slot_stride,
    key_column_stride,
    value_slot_stride,
    value_column_stride,
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
    key_tile = tl.load(
        key + slot[None, :] * key_slot_stride + column[:, None] * key_column_stride,
        mask=readable[None, :] & in_head[:, None],
        other=0.0,
    )
    value_tile = tl.load(
        value + slot[:, None] * value_slot_stride + column[None, :] * value_column_stride,
        mask=readable[:, None] & in_head[None, :],
        other=0.0,
    )
    if UPCAST:
        key_tile, value_tile = key_tile.to(tl.float32), value_tile.to(tl.float32)
    scores = tl.dot(query, key_tile, input_precision="ieee")
    if softcap is None:
        scores *= scale * _LOG2_E
    else:
        # tanh(x) = 1 - 2 / (exp(2x) + 1), which is right at both infinities.
        doubled = tl.exp2(scores * (2 * _LOG2_E * scale / softcap))
        scores = (1 - 2 / (doubled + 1)) * (softcap * _LOG2_E)
    scores = tl.where(seen, scores, -float("inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    # Nothing seen so far: (-inf) - (-inf) would be NaN.
    bound = tl.where(new_peak == -float("inf"), 0.0, new_peak)
    weights = tl.exp2(scores - bound[:, None])
    shrink = tl.exp2(peak - bound)
    total = total * shrink + tl.sum(weights, 1)
    out *= shrink[:, None]
    # The product would take 0 · NaN from a value that a row does not see but its neighbours do;
    # `count_spoils` tells who sees it.
    if not SEEN_BY_ALL:
        value_tile = tl.where(is_finite(value_tile), value_tile, 0.0).to(value_tile.dtype)
    weights = weights.to(value.dtype.element_ty)
    if UPCAST:
        weights = weights.to(tl.float32)
    out = tl.dot(weights, value_tile, out, input_precision="ieee")
    return new_peak, total, out


@triton.jit
def count_spoils(
    count,
    value,
    slot,
    column,
    readable,
    seen,
    # sizes
    head_size,
    # strides
    value_slot_stride,
    value_column_stride,
    # meta-parameters
    VECTOR: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """`count [m, d]` of the values seen that are NaN or infinite, one block of keys further."""
    slot = slot.to(tl.int64) * VECTOR
    value_tile = tl.load(
        value + slot[:, None] * value_slot_stride + column[None, :] * value_column_stride,
        mask=readable[:, None] & (column < head_size)[None, :],
        other=0.0,
    )
    spoils = tl.where(is_finite(value_tile), 0.0, 1.0)
    dtype: tl.constexpr = tl.float32 if UPCAST else value.dtype.element_ty
    return tl.dot(seen.to(dtype), spoils.to(dtype), count)


@triton.jit
def is_finite(states):
    return tl.abs(states.to(tl.float32)) < float("inf")


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
