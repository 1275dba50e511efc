"""`top_k_union` in Triton.

Floor: R·Σ V_m·b + map bytes. A first launch for all models reads the logits once in order, for
their NaN, and once through the map, from the cache; it leaves the best columns of each chunk of
the union as 64-bit keys, in which equal scores are ordered by column. PyTorch selects and sorts the
few keys that are left, on the device and without a tie; a second launch scores the candidates.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import _triton
from .._triton_rows import load_chunk
from .triton_columns import kernel_models, log_sum_of_ids

CHUNK = 1024
WARPS = 4
REGISTERS = 96
# Picked one by one in each chunk; of more than that, all keys are left to PyTorch.
MOST_PICKED = 32
CANDIDATES = 128
SHARERS = 32

_NO_KEY = tl.constexpr(-(2**63))
_COLUMN_BITS = tl.constexpr(2**31 - 1)
_SIGN_FREE_BITS = tl.constexpr(2**31 - 1)


@triton.jit
def sortable_keys(scores, columns):
    """Keys that are ordered by score, then by falling column; none for what is excluded."""
    scores = tl.where(scores == 0, 0.0, scores)  # -0.0 and 0.0 are equal, their bits are not
    bits = scores.to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ _SIGN_FREE_BITS, bits).to(tl.int64)
    keys = (ordered << 32) | (columns ^ _COLUMN_BITS).to(tl.int64)
    return tl.where(scores > -float("inf"), keys, _NO_KEY)


@triton.jit
def chunk_keys_kernel(
    logits,
    offsets,
    ids,
    weights,
    temperatures,
    keys,
    spoilt,
    # sizes
    widths,
    size,
    chunks,
    kept,
    # strides
    row_strides,
    column_strides,
    # meta-parameters
    MODELS: tl.constexpr,
    PICK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Of one chunk of the columns of one model's row the `kept` best keys, or all of them; and
    whether there is a NaN in one chunk of its logits. A model of weight 0 has neither."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    columns = chunk * CHUNK + tl.arange(0, CHUNK)
    for model in tl.static_range(MODELS):
        if tl.program_id(2) == model:
            has_say = tl.load(weights + model) > 0
            start = logits[model] + row * row_strides[model]
            values = load_chunk(start, chunk * CHUNK, widths[model], column_strides[model], CHUNK)
            part = (row * MODELS + model) * chunks + chunk
            nan = tl.max((values != values).to(tl.int32), 0)
            tl.store(spoilt + part, (nan > 0) & has_say)
            there = columns < tl.where(has_say, size, 0)
            scores = log_sum_of_ids(
                start,
                widths[model],
                column_strides[model],
                offsets[model],
                ids[model],
                columns,
                there,
                0.0,
                tl.load(temperatures + model),
            )
            left = sortable_keys(scores, columns)
            if PICK:
                for place in range(kept):
                    best = tl.max(left, 0)
                    tl.store(keys + part * kept + place, best)
                    left = tl.where(left == best, _NO_KEY, left)
            else:
                tl.store(keys + part * CHUNK + tl.arange(0, CHUNK), left)


@triton.jit
def candidate_scores_kernel(
    logits,
    offsets,
    ids,
    score_columns,
    temperatures,
    candidates,
    scores,
    # sizes
    widths,
    size,
    count,
    # strides
    row_strides,
    column_strides,
    # meta-parameters
    MODELS: tl.constexpr,
    CANDIDATES: tl.constexpr,
    SHARERS: tl.constexpr,
):
    """One model's scores of some candidates of a row, whose places behind the last hold `size`: n
    that take the score of one column get it less ln n each."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * CANDIDATES + tl.arange(0, CANDIDATES)
    for model in tl.static_range(MODELS):
        if tl.program_id(2) == model:
            sources = source_columns(
                candidates + row * count, score_columns[model], places, size, count
            )
            taken = log_sum_of_ids(
                logits[model] + row * row_strides[model],
                widths[model],
                column_strides[model],
                offsets[model],
                ids[model],
                sources,
                sources >= 0,
                0.0,
                tl.load(temperatures + model),
            )
            sharers = tl.zeros([CANDIDATES], tl.int32)
            for first in range(0, count, SHARERS):
                others = source_columns(
                    candidates + row * count,
                    score_columns[model],
                    first + tl.arange(0, SHARERS),
                    size,
                    count,
                )
                sharers += tl.sum((sources[:, None] == others[None, :]).to(tl.int32), 1)
            taken = tl.where(sources >= 0, taken - tl.log(sharers.to(tl.float32)), -float("inf"))
            pointers = scores + (row * MODELS + model) * count + places
            tl.store(pointers, taken, mask=places < count)


@triton.jit
def source_columns(candidates, score_columns, places, size, count):
    """The columns whose scores the candidates at these places take, -1 for none."""
    columns = tl.load(candidates + places, mask=places < count, other=size)
    return tl.load(score_columns + columns, mask=columns < size, other=-1)


def top_k_union(
    logits: list[Tensor],
    map_offsets: list[Tensor],
    map_ids: list[Tensor],
    score_columns: list[Tensor],
    weights: Tensor,
    temperature: Tensor,
    k: int,
) -> tuple[Tensor, Tensor]:
    models = kernel_models(logits, map_offsets, map_ids, weights, temperature)
    weights, temperature = weights.contiguous(), temperature.contiguous()
    count, rows, size = len(logits), logits[0].shape[0], map_offsets[0].shape[0] - 1
    asked, k = count * k, min(k, size)  # no model has more columns than there are
    if rows == 0:
        return weights.new_empty((0, asked), dtype=torch.int64), weights.new_empty(0, asked)
    chunks = triton.cdiv(max(size, *models.widths), CHUNK)
    pick = k <= MOST_PICKED
    kept = k if pick else CHUNK
    keys = weights.new_empty((rows, count, chunks * kept), dtype=torch.int64)
    spoilt = weights.new_empty((rows, count * chunks), dtype=torch.bool)
    _triton.launch(chunk_keys_kernel, (rows, chunks, count))(
        *(models.logits, models.offsets, models.ids, weights, temperature, keys, spoilt),
        *(models.widths, size, chunks, kept, models.row_strides, models.column_strides),
        MODELS=count,
        PICK=pick,
        CHUNK=CHUNK,
        num_warps=WARPS,
        **_triton.registers(REGISTERS),
    )
    columns = union_of_best(keys, k, size)
    width = columns.shape[1]
    scores = weights.new_empty((rows, count, width))
    _triton.launch(candidate_scores_kernel, (rows, triton.cdiv(width, CANDIDATES), count))(
        *(models.logits, models.offsets, models.ids),
        *(tuple(c.contiguous() for c in score_columns), temperature, columns, scores),
        *(models.widths, size, width, models.row_strides, models.column_strides),
        MODELS=count,
        CANDIDATES=CANDIDATES,
        SHARERS=SHARERS,
        num_warps=WARPS,
        **_triton.registers(REGISTERS),
    )
    shares = weights.log().softmax(0)[:, None]  # their sum may be more than a float32 holds
    mixed = (scores.softmax(-1) * shares).masked_fill(shares == 0, 0).sum(1)
    broken = (spoilt.any(-1) | mixed.isnan().any(-1))[:, None]
    columns = columns.masked_fill((columns == size) | broken, -1)
    behind = (0, asked - width)
    columns = torch.nn.functional.pad(columns, behind, value=-1)
    return columns, torch.nn.functional.pad(mixed, behind).masked_fill(broken, math.nan)


def union_of_best(keys: Tensor, k: int, size: int) -> Tensor:
    """`[R, M·k]`: the columns of each model's k best keys `[R, M, n]`, ascending and each once,
    then `size`."""
    best = keys.topk(min(k, keys.shape[-1]), sorted=False).values
    columns = (_COLUMN_BITS.value - (best & 0xFFFFFFFF)).masked_fill_(best == _NO_KEY.value, size)
    columns = torch.nn.functional.pad(columns, (0, k - columns.shape[-1]), value=size)
    columns = columns.flatten(1).sort(-1).values
    repeated = columns[:, 1:] == columns[:, :-1]
    columns[:, 1:].masked_fill_(repeated, size)
    return columns.sort(-1).values
