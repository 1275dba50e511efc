"""What the Triton kernels over a union vocabulary share: the models as kernel arguments, and the
sum over the ids of a column."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from .. import _triton
from .._dispatch import check_contents
from .reference import check_temperature, check_weights

MOST_MODELS = 5

_LN_2 = tl.constexpr(0.6931471805599453)


class KernelModels(NamedTuple):
    """The models as the kernels take them: one entry a model, no table of pointers in memory."""

    logits: tuple[Tensor, ...]
    widths: tuple[int, ...]
    row_strides: tuple[int, ...]
    column_strides: tuple[int, ...]
    offsets: tuple[Tensor, ...]
    ids: tuple[Tensor, ...]


def kernel_models(
    logits: list[Tensor],
    map_offsets: list[Tensor],
    map_ids: list[Tensor],
    weights: Tensor,
    temperature: Tensor,
) -> KernelModels:
    if len(logits) > MOST_MODELS:
        raise _triton.Unsupported(
            f"logits must be of at most {MOST_MODELS} models for backend='triton', "
            f"got {len(logits)}"
        )
    for model, given in enumerate(logits):
        _triton.refuse_float64(f"logits[{model}]", given)
    if check_contents(weights.device.type):
        check_weights(weights.tolist())
        check_temperature(temperature.tolist())
    return KernelModels(
        tuple(logits),
        tuple(given.shape[1] for given in logits),
        tuple(given.stride(0) for given in logits),
        tuple(given.stride(1) for given in logits),
        tuple(offsets.contiguous() for offsets in map_offsets),
        tuple(ids.contiguous() for ids in map_ids),
    )


@triton.jit
def log_sum_of_ids(row, width, column_stride, offsets, ids, columns, there, highest, temperature):
    """Per column ln Σ exp((logit - highest) / temperature) over its ids; -inf where it has none,
    as where `there` is false. Ids that the logits lack count for nothing."""
    begin = tl.load(offsets + columns, mask=there, other=0)
    end = tl.load(offsets + columns + 1, mask=there, other=0)
    log_sum = _score_of_ids(row, width, column_stride, ids, begin, end, highest, temperature)
    for turn in range(1, tl.max(end - begin, 0)):
        score = _score_of_ids(
            row, width, column_stride, ids, begin + turn, end, highest, temperature
        )
        high, low = tl.maximum(log_sum, score), tl.minimum(log_sum, score)
        # ln 2 also where both are -inf, or +inf, whose difference is NaN.
        more = tl.where(low == high, _LN_2, tl.log(1.0 + tl.exp(low - high)))
        # A GPU's maximum of NaN and a number is the number.
        ordered = (log_sum == log_sum) & (score == score)
        log_sum = tl.where(ordered, high + more, float("nan"))
    return log_sum


@triton.jit
def _score_of_ids(row, width, column_stride, ids, places, end, highest, temperature):
    found = tl.load(ids + places, mask=places < end, other=-1)
    known = (found >= 0) & (found < width)
    pointers = row + found.to(tl.int64) * column_stride
    logits = tl.load(pointers, mask=known, other=-float("inf")).to(tl.float32)
    # Rounded as PyTorch rounds it, for `top_k_union` ranks such scores.
    return tl.div_rn(logits - highest, temperature)


@triton.jit
def total_weight(weights, MODELS: tl.constexpr):
    """The highest weight, and the sum in units of it, which a float32 holds."""
    highest = 0.0
    for model in tl.static_range(MODELS):
        highest = tl.maximum(highest, tl.load(weights + model))
    total = 0.0
    for model in tl.static_range(MODELS):
        total += tl.load(weights + model) / highest
    return highest, total


@triton.jit
def share_of(weights, model, highest, total):
    return tl.load(weights + model) / highest / total
