"""`token_statistics` and `segment_mean` in plain PyTorch.

Floor of `token_statistics`: R·V·b bytes. It works on a few rows at a time, which stay in the
cache while they are read again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _checks
from .._dispatch import check_contents

_CHUNK_ELEMENTS = 1 << 18  # 1 MiB of float32
_BLOCK = 512
# exp(-80) is 2e-35: even a million such tokens change no digit of a sum that is at least 1. It
# stands in for smaller ones, -inf included, since 0 · -inf is NaN and denormals are slow.
_NEGLIGIBLE = -80.0


def token_statistics(
    logits: Tensor, token_ids: Tensor, *, vocab_size: int, temperature: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if check_contents(logits.device.type):
        check_token_ids(token_ids, vocab_size)
    logits = logits[:, :vocab_size]
    rows = logits.shape[0]
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    chunk_rows = max(1, _CHUNK_ELEMENTS // vocab_size)
    shifted = torch.empty(min(rows, chunk_rows), vocab_size, dtype=dtype, device=logits.device)
    weights = torch.empty_like(shifted)
    block_maxima = shifted.new_empty(rows, -(-vocab_size // _BLOCK))
    # Of exp((logit - maximum) / temperature): the sum, and the sum weighted by its exponent.
    total, moment = shifted.new_empty(rows), shifted.new_empty(rows)
    for start in range(0, rows, chunk_rows):
        chunk = slice(start, min(start + chunk_rows, rows))
        _reduce_chunk(
            *(logits[chunk], temperature, shifted, weights),
            *(block_maxima[chunk], total[chunk], moment[chunk]),
        )
    maximum = block_maxima.amax(-1)
    log_total = total.log()
    argmax = _argmax(logits, block_maxima).masked_fill_(log_total.isnan(), -1)
    # In float64, since the distance of two logits may be more than a float32 holds.
    logit = logits.gather(1, token_ids[:, None])[:, 0].double()
    statistics = (
        (logit - maximum.double()) / temperature - log_total,
        -log_total,
        maximum / temperature + log_total,
        log_total - moment / total,
    )
    logprob, max_logprob, logsumexp, entropy = (field.float() for field in statistics)
    return logprob, argmax, max_logprob, logsumexp, entropy


def _reduce_chunk(
    logits: Tensor,
    temperature: float,
    shifted: Tensor,
    weights: Tensor,
    block_maxima: Tensor,
    total: Tensor,
    moment: Tensor,
) -> None:
    rows, columns = logits.shape
    shifted, weights = shifted[:rows], weights[:rows]
    shifted.copy_(logits)
    whole = columns // _BLOCK
    if whole:
        blocks = shifted[:, : whole * _BLOCK].unflatten(1, (whole, _BLOCK))
        torch.amax(blocks, -1, out=block_maxima[:, :whole])
    if columns % _BLOCK:
        block_maxima[:, whole] = shifted[:, whole * _BLOCK :].amax(-1)
    shifted -= block_maxima.amax(-1, keepdim=True)
    if temperature != 1:
        shifted /= temperature
    shifted.clamp_min_(_NEGLIGIBLE)
    torch.exp(shifted, out=weights)
    torch.sum(weights, -1, out=total)
    weights *= shifted
    torch.sum(weights, -1, out=moment)


def _argmax(logits: Tensor, block_maxima: Tensor) -> Tensor:
    """`[R]`: the first column of each row's maximum, looked for in its first block that has it.
    (PyTorch's argmax over a whole row takes as long as all the rest.)"""
    columns = torch.arange(_BLOCK, device=logits.device)
    columns = block_maxima.argmax(-1, keepdim=True) * _BLOCK + columns
    columns.clamp_max_(logits.shape[1] - 1)
    return columns.gather(1, logits.gather(1, columns).argmax(-1, keepdim=True))[:, 0]


def segment_mean(values: Tensor, segment_offsets: Tensor) -> Tensor:
    if check_contents(values.device.type):
        _checks.offsets_content("segment_offsets", [segment_offsets.tolist()], values.shape[0])
    # One row of members per segment: sums by difference would carry NaN and -inf along.
    row = torch.arange(values.shape[0], device=values.device)
    begin, end = segment_offsets[:-1, None], segment_offsets[1:, None]
    members = (row >= begin) & (row < end)
    total = torch.where(members, values.double(), 0).sum(-1)
    count = (end - begin)[:, 0]
    return (total / count).masked_fill_(count == 0, -torch.inf).float()


def check_token_ids(token_ids: Tensor, vocab_size: int) -> None:
    for row, token_id in enumerate(token_ids.tolist()):
        if not 0 <= token_id < vocab_size:
            raise ValueError(
                f"token_ids[{row}] must be from 0 to vocab_size - 1 = {vocab_size - 1}, "
                f"got {token_id}"
            )
