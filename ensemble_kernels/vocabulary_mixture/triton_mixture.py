"""`mix_distributions` in Triton.

Floor: R·Σ V_m·b + map + 4·R·U bytes. Three launches for all models together: the softmax sums of
chunks of the logits; the mixture of chunks of the union, not yet normalised; its normalisation.
The second gathers logits, and the third reads and writes 4·R·U bytes, that the one before it left
in the cache. Chunks have one size and are merged in one order, so no result depends on other rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import _triton
from .._triton_rows import finite_or_zero, load_chunk
from .triton_columns import kernel_models, log_sum_of_ids, share_of, total_weight

LOGIT_CHUNK = 4096
LOGIT_WARPS = 8
UNION_CHUNK = 512
UNION_WARPS = 8
UNION_REGISTERS = 64  # four blocks of 256 threads a multiprocessor


@triton.jit
def softmax_chunks_kernel(
    logits,
    temperatures,
    maxima,
    totals,
    # sizes
    widths,
    rows,
    chunks,
    # strides
    row_strides,
    column_strides,
    # meta-parameters
    MODELS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Of one chunk of one model's row the maximum and Σ exp((logit - maximum) / temperature):
    -inf and 0 behind the row, NaN in the sum for a NaN or +inf in the chunk."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    for model in tl.static_range(MODELS):
        if tl.program_id(2) == model:
            start = logits[model] + row * row_strides[model]
            values = load_chunk(start, chunk * CHUNK, widths[model], column_strides[model], CHUNK)
            highest = tl.max(values, 0)
            shifted = values - finite_or_zero(highest)
            total = tl.sum(tl.exp(shifted / tl.load(temperatures + model)), 0)
            part = (model * rows + row) * chunks + chunk
            tl.store(maxima + part, highest)
            tl.store(totals + part, total)


@triton.jit
def merge_sums(maxima, totals, first, chunks, temperature, TILE: tl.constexpr):
    """The maximum of `chunks` chunks and the sum relative to it: NaN if that of a chunk is, or if
    there is nothing but -inf."""
    lanes = tl.arange(0, TILE)
    chunk_maxima = tl.load(maxima + first + lanes, mask=lanes < chunks, other=-float("inf"))
    chunk_totals = tl.load(totals + first + lanes, mask=lanes < chunks, other=0.0)
    highest = tl.max(chunk_maxima, 0)
    powers = tl.exp((chunk_maxima - finite_or_zero(highest)) / temperature)
    total = tl.sum(powers * chunk_totals, 0)
    return highest, tl.where(highest == -float("inf"), float("nan"), total)


@triton.jit
def log_sums_and_total(
    logits,
    offsets,
    ids,
    maxima,
    totals,
    temperature,
    # sizes
    width,
    chunks,
    # strides
    row_stride,
    column_stride,
    # places
    row,
    model_row,
    columns,
    there,
    # meta-parameters
    TILE: tl.constexpr,
):
    """Of one model, relative to the maximum of its row: ln of the sum over the ids of each column,
    and the sum of the row, which is NaN where its softmax is."""
    highest, total = merge_sums(maxima, totals, model_row * chunks, chunks, temperature, TILE)
    start = logits + row * row_stride
    log_sums = log_sum_of_ids(
        start, width, column_stride, offsets, ids, columns, there, highest, temperature
    )
    return log_sums, total


@triton.jit
def mix_chunks_kernel(
    logits,
    offsets,
    ids,
    weights,
    temperatures,
    maxima,
    totals,
    mixed,
    masses,
    peaks,
    sums,
    # sizes
    widths,
    rows,
    size,
    chunks,
    union_chunks,
    # strides
    row_strides,
    column_strides,
    # meta-parameters
    MODELS: tl.constexpr,
    GEOMETRIC: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
):
    """One chunk of a row's mixture and the mass of each model in it. Of the geometric mean the
    logarithms, since a product of small masses must not underflow to an empty support, with their
    maximum and the sum of their exponentials."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    columns = chunk * CHUNK + tl.arange(0, CHUNK)
    there = columns < size
    highest_weight, weight_sum = total_weight(weights, MODELS)
    mixture = tl.zeros([CHUNK], tl.float32)
    for model in tl.static_range(MODELS):
        model_row = model * rows + row
        log_sums, total = log_sums_and_total(
            logits[model],
            offsets[model],
            ids[model],
            maxima,
            totals,
            tl.load(temperatures + model),
            widths[model],
            chunks,
            row_strides[model],
            column_strides[model],
            row,
            model_row,
            columns,
            there,
            TILE,
        )
        # Not the exponential of the difference, whose error would be that of all columns.
        mass = tl.where(there, tl.exp(log_sums) / total, 0.0)
        tl.store(masses + model_row * union_chunks + chunk, tl.sum(mass, 0))
        share = share_of(weights, model, highest_weight, weight_sum)
        value = log_sums - tl.log(total) if GEOMETRIC else mass
        # A model of weight 0 has no say: 0 · NaN and 0 · -inf must not reach the mixture.
        mixture += tl.where(share > 0, share * value, 0.0)
    tl.store(mixed + row * size + columns, mixture, mask=there)
    if GEOMETRIC:
        logs = tl.where(there, mixture, -float("inf"))
        peak = tl.max(logs, 0)
        part = row * union_chunks + chunk
        tl.store(peaks + part, peak)
        tl.store(sums + part, tl.sum(tl.exp(logs - finite_or_zero(peak)), 0))


@triton.jit
def normalise_kernel(
    logits,
    offsets,
    ids,
    weights,
    temperatures,
    maxima,
    totals,
    mixed,
    masses,
    peaks,
    sums,
    lost_mass,
    fell_back,
    # sizes
    widths,
    rows,
    size,
    chunks,
    union_chunks,
    # strides
    row_strides,
    column_strides,
    # meta-parameters
    MODELS: tl.constexpr,
    GEOMETRIC: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    UNION_TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    columns = chunk * CHUNK + tl.arange(0, CHUNK)
    there = columns < size
    lanes = tl.arange(0, UNION_TILE)

    # 1. What each model loses, and what is left of all: NaN where a model with a say is broken.
    highest_weight, weight_sum = total_weight(weights, MODELS)
    kept = 0.0
    for model in tl.static_range(MODELS):
        model_row = model * rows + row
        parts = masses + model_row * union_chunks + lanes
        mass = tl.sum(tl.load(parts, mask=lanes < union_chunks, other=0.0), 0)
        lost = 1.0 - mass
        tl.store(lost_mass + model_row, tl.where(lost < 0, 0.0, lost), mask=chunk == 0)
        share = share_of(weights, model, highest_weight, weight_sum)
        kept += tl.where(share > 0, share * mass, 0.0)

    # 2. The row sums to 1.
    targets = mixed + row * size + columns
    values = tl.load(targets, mask=there, other=0.0)
    empty = False
    if GEOMETRIC:
        peak, total = merge_sums(peaks, sums, row * union_chunks, union_chunks, 1.0, UNION_TILE)
        empty = (peak == -float("inf")) & (kept == kept)
        if empty:
            values = tl.zeros([CHUNK], tl.float32)
            for model in tl.static_range(MODELS):
                share = share_of(weights, model, highest_weight, weight_sum)
                log_sums, total = log_sums_and_total(
                    logits[model],
                    offsets[model],
                    ids[model],
                    maxima,
                    totals,
                    tl.load(temperatures + model),
                    widths[model],
                    chunks,
                    row_strides[model],
                    column_strides[model],
                    row,
                    model * rows + row,
                    columns,
                    there,
                    TILE,
                )
                values += tl.where(share > 0, share * tl.exp(log_sums) / total, 0.0)
            values = values / kept
        else:
            broken = tl.where(kept == kept, 0.0, float("nan"))
            values = tl.exp(values - peak) / total + broken
    else:
        values = values / kept
    tl.store(targets, values, mask=there)
    tl.store(fell_back + row, empty, mask=chunk == 0)


def mix_distributions(
    logits: list[Tensor],
    map_offsets: list[Tensor],
    map_ids: list[Tensor],
    weights: Tensor,
    temperature: Tensor,
    geometric: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    models = kernel_models(logits, map_offsets, map_ids, weights, temperature)
    weights, temperature = weights.contiguous(), temperature.contiguous()
    count, rows, size = len(logits), logits[0].shape[0], map_offsets[0].shape[0] - 1
    chunks = triton.cdiv(max(models.widths), LOGIT_CHUNK)
    union_chunks = triton.cdiv(size, UNION_CHUNK)
    maxima, totals = (weights.new_empty((count, rows, chunks)) for _ in range(2))
    masses = weights.new_empty((count, rows, union_chunks))
    peaks, sums = (weights.new_empty((rows, union_chunks)) for _ in range(2))
    mixed = weights.new_empty((rows, size))
    lost_mass = weights.new_empty((count, rows))
    fell_back = weights.new_empty(rows, dtype=torch.bool)
    if rows == 0:
        return mixed, lost_mass, fell_back
    _triton.launch(softmax_chunks_kernel, (rows, chunks, count))(
        *(models.logits, temperature, maxima, totals, models.widths, rows, chunks),
        *(models.row_strides, models.column_strides),
        MODELS=count,
        CHUNK=LOGIT_CHUNK,
        num_warps=LOGIT_WARPS,
    )
    inputs = models.logits, models.offsets, models.ids, weights, temperature, maxima, totals
    sizes = models.widths, rows, size, chunks, union_chunks
    strides = models.row_strides, models.column_strides
    options = {
        "MODELS": count,
        "GEOMETRIC": geometric,
        "CHUNK": UNION_CHUNK,
        "TILE": triton.next_power_of_2(chunks),
        "num_warps": UNION_WARPS,
        **_triton.registers(UNION_REGISTERS),
    }
    _triton.launch(mix_chunks_kernel, (rows, union_chunks))(
        *(*inputs, mixed, masses, peaks, sums, *sizes, *strides), **options
    )
    _triton.launch(normalise_kernel, (rows, union_chunks))(
        *(*inputs, mixed, masses, peaks, sums, lost_mass, fell_back, *sizes, *strides),
        UNION_TILE=triton.next_power_of_2(union_chunks),
        **options,
    )
    return mixed, lost_mass, fell_back
