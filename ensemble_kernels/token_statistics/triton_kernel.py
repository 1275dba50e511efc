"""`token_statistics` and `segment_mean` in Triton.

Floor of `token_statistics`: R·V·b bytes. A program holds one chunk of one row in registers, so
that each logit is read once; a second launch merges the chunks of each row, 16 bytes each. Chunks
are of one size whatever the number of rows, so that no row depends on its neighbours.
Floor of `segment_mean`: T·b + 4·N bytes; both are launches more than bytes at the loop's sizes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import _checks, _triton
from .._dispatch import check_contents
from .._triton_rows import finite_or_zero, load_chunk
from .reference import check_token_ids

CHUNK = 4096
CHUNK_WARPS = 8  # 16 logits a thread: two loads of 16 bytes in 16 bits, four in float32
SEGMENT_TILE = 256

_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)
_NO_COLUMN = tl.constexpr(2**31 - 1)


@triton.jit
def chunk_statistics_kernel(
    logits,
    maxima,
    totals,
    moments,
    argmaxima,
    # sizes
    vocab_size,
    chunks,
    # strides
    row_stride,
    column_stride,
    # meta-parameters
    temperature,
    CHUNK: tl.constexpr,
):
    """Of one chunk of one row: the highest logit, the lowest column that has it, and of
    exp((logit - highest) / temperature) the sum and the sum weighted by the exponent of 2."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    columns = chunk * CHUNK + tl.arange(0, CHUNK)
    start = logits + row * row_stride
    values = load_chunk(start, chunk * CHUNK, vocab_size, column_stride, CHUNK)
    highest = tl.max(values, 0)
    argmax = tl.min(tl.where(values == highest, columns, _NO_COLUMN), 0)
    total, moment = softmax_sums(values, highest, temperature)
    part = row * chunks + chunk
    tl.store(maxima + part, highest)
    tl.store(totals + part, total)
    tl.store(moments + part, moment)
    tl.store(argmaxima + part, argmax)


@triton.jit
def softmax_sums(values, highest, temperature):
    """The sum of 2^e and of e · 2^e, e = (value - highest) · log2(e) / temperature. Both are NaN
    where a value is NaN or +inf, 0 where all are -inf."""
    exponents = (values - finite_or_zero(highest)) * (_LOG2_E / temperature)
    powers = tl.exp2(exponents)
    # 0 · -inf is NaN. A NaN is no larger than 0 but stays in its power.
    weighted = powers * tl.where(powers > 0, exponents, 0.0)
    return tl.sum(powers, 0), tl.sum(weighted, 0)


@triton.jit
def merge_chunks_kernel(
    logits,
    token_ids,
    maxima,
    totals,
    moments,
    argmaxima,
    logprob,
    argmax,
    max_logprob,
    logsumexp,
    entropy,
    # sizes
    vocab_size,
    chunks,
    # strides
    row_stride,
    column_stride,
    token_id_stride,
    # meta-parameters
    temperature,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, TILE)
    there = lanes < chunks
    parts = row * chunks + lanes
    chunk_maxima = tl.load(maxima + parts, mask=there, other=-float("inf"))
    chunk_totals = tl.load(totals + parts, mask=there, other=0.0)
    chunk_moments = tl.load(moments + parts, mask=there, other=0.0)
    chunk_argmaxima = tl.load(argmaxima + parts, mask=there, other=_NO_COLUMN)

    # 1. All relative to the row's maximum.
    highest = tl.max(chunk_maxima, 0)
    exponents = (chunk_maxima - finite_or_zero(highest)) * (_LOG2_E / temperature)
    powers = tl.exp2(exponents)
    shifts = tl.where(powers > 0, exponents, 0.0)
    total = tl.sum(powers * chunk_totals, 0)
    moment = tl.sum(powers * (chunk_moments + shifts * chunk_totals), 0)
    total = tl.where(highest == -float("inf"), float("nan"), total)
    column = tl.min(tl.where(chunk_maxima == highest, chunk_argmaxima, _NO_COLUMN), 0)

    # 2. In natural logarithms; a NaN of the total is one in each.
    log_total = tl.log2(total) * _LN_2
    token_id = tl.load(token_ids + row * token_id_stride)
    # The ids of a GPU are not checked: one that is out of range must not be read.
    known = (token_id >= 0) & (token_id < vocab_size)
    pointer = logits + row * row_stride + token_id * column_stride
    logit = tl.load(pointer, mask=known, other=float("nan")).to(tl.float32)
    # By halves, since the distance of two logits may be more than a float32 holds.
    distance = (0.5 * logit - 0.5 * highest) / temperature * 2
    tl.store(logprob + row, distance - log_total)
    tl.store(max_logprob + row, -log_total)
    tl.store(logsumexp + row, highest / temperature + log_total)
    tl.store(entropy + row, log_total - _LN_2 * moment / total)
    tl.store(argmax + row, tl.where(total == total, column, -1).to(tl.int64))


def token_statistics(
    logits: Tensor, token_ids: Tensor, *, vocab_size: int, temperature: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    _triton.refuse_float64("logits", logits)
    if check_contents(logits.device.type):
        check_token_ids(token_ids, vocab_size)
    rows, chunks = logits.shape[0], triton.cdiv(vocab_size, CHUNK)
    logprob, max_logprob, logsumexp, entropy = (
        logits.new_empty(rows, dtype=torch.float32) for _ in range(4)
    )
    argmax = logits.new_empty(rows, dtype=torch.int64)
    maxima, totals, moments = (
        logits.new_empty((rows, chunks), dtype=torch.float32) for _ in range(3)
    )
    argmaxima = logits.new_empty((rows, chunks), dtype=torch.int32)
    parts = maxima, totals, moments, argmaxima
    if rows:
        _triton.launch(chunk_statistics_kernel, (rows, chunks))(
            *(logits, *parts, vocab_size, chunks, *logits.stride(), float(temperature)),
            CHUNK=CHUNK,
            num_warps=CHUNK_WARPS,
        )
        _triton.launch(merge_chunks_kernel, (rows,))(
            *(logits, token_ids, *parts, logprob, argmax, max_logprob, logsumexp, entropy),
            *(vocab_size, chunks, *logits.stride(), token_ids.stride(0), float(temperature)),
            TILE=triton.next_power_of_2(chunks),
            num_warps=1 if chunks <= 128 else 4,
        )
    return logprob, argmax, max_logprob, logsumexp, entropy


@triton.jit
def segment_mean_kernel(
    values,
    segment_offsets,
    means,
    # strides
    value_stride,
    offset_stride,
    # meta-parameters
    TILE: tl.constexpr,
):
    segment = tl.program_id(0).to(tl.int64)
    begin = tl.load(segment_offsets + segment * offset_stride)
    end = tl.load(segment_offsets + (segment + 1) * offset_stride)
    sums = tl.zeros([TILE], tl.float64)
    for start in range(begin, end, TILE):
        rows = start + tl.arange(0, TILE)
        pointers = values + rows.to(tl.int64) * value_stride
        sums += tl.load(pointers, mask=rows < end, other=0.0).to(tl.float32).to(tl.float64)
    mean = tl.sum(sums, 0) / (end - begin).to(tl.float64)  # a sum may be more than a float32 holds
    tl.store(means + segment, tl.where(end > begin, mean.to(tl.float32), -float("inf")))


def segment_mean(values: Tensor, segment_offsets: Tensor) -> Tensor:
    _triton.refuse_float64("values", values)
    if check_contents(values.device.type):
        _checks.offsets_content("segment_offsets", [segment_offsets.tolist()], values.shape[0])
    segments = segment_offsets.shape[0] - 1
    means = values.new_empty(segments, dtype=torch.float32)
    if segments:
        _triton.launch(segment_mean_kernel, (segments,))(
            *(values, segment_offsets, means, values.stride(0), segment_offsets.stride(0)),
            TILE=SEGMENT_TILE,
            num_warps=4,
        )
    return means
