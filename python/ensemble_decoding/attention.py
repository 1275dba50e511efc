"""Segment attention under transformers' attention interface.

While a member decodes, its model's attention implementation is `ensemble_segments`. A forward pass
that is given `segment_offsets` goes through `ensemble_kernels.segment_attention`; every other pass
goes through transformers' own SDPA function with its own mask, so that calls from elsewhere stay
causal and padded.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from ensemble_kernels import segment_attention

from .attention_switch import NAME
from .usage import OperatorClock

_HARMLESS = {"position_ids", "cache_position"}

_sdpa_attention = AttentionInterface()["sdpa"]
_sdpa_mask = AttentionMaskInterface()["sdpa"]


def no_mask(device: torch.device) -> Tensor:
    """An `attention_mask` that keeps transformers from building one: a mask of four dimensions is
    handed through as it is, and `segment_offsets` says all that there is to hide."""
    return torch.empty(1, 1, 0, 0, dtype=torch.bool, device=device)


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    segment_offsets: Tensor | None = None,
    operator_clock: OperatorClock | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if segment_offsets is None and softcap is not None:
        out = _capped_attention(query, key, value, attention_mask, scaling, softcap)
        return out.transpose(1, 2).contiguous(), None
    if segment_offsets is None:
        return _sdpa_attention(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            sliding_window=sliding_window,
            softcap=softcap,
            **kwargs,
        )
    # A model that reads its prompt in both directions would decode, but not what it does alone.
    if not getattr(module, "is_causal", True):
        raise ValueError(f"the attention of {type(module).__name__} is not causal")
    # What else there may be (attention sinks, a position bias) would be left out without a word.
    for name, argument in kwargs.items():
        if isinstance(argument, Tensor) and name not in _HARMLESS:
            raise ValueError(f"segment attention does not know the argument {name!r}")
    if query.shape[2] == 1 and softcap is None:
        out = _one_token_attention(query, key, value, scaling, sliding_window)
    else:
        start = time.perf_counter()
        out = segment_attention(
            query,
            key,
            value,
            segment_offsets,
            scale=scaling,
            window=sliding_window,
            softcap=softcap,
        )
        if operator_clock is not None:
            operator_clock.add("segment_attention", time.perf_counter() - start)
    return out.transpose(1, 2).contiguous(), None


def _capped_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float | None,
    softcap: float,
) -> Tensor:
    """Ordinary calls of models with a soft-cap, which SDPA does not know. `mask` is boolean, as
    SDPA's; None is causal."""
    batch, heads, rows, size = query.shape
    slots = key.shape[2]
    if mask is None:
        mask = torch.ones(rows, slots, dtype=torch.bool, device=query.device).tril(slots - rows)
    grouped = query.reshape(batch, key.shape[1], -1, size)
    scores = grouped @ key.mT * (size**-0.5 if scale is None else scale)
    scores = (scores / softcap).tanh().mul(softcap).view(batch, heads, rows, slots)
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    # Not -inf: the NaN of a row of padding that sees nothing would reach others through its value.
    hidden = torch.finfo(scores.dtype).min
    weights = scores.masked_fill(~mask, hidden).softmax(-1, dtype=dtype).to(query.dtype)
    return (weights.view(batch, key.shape[1], -1, slots) @ value).view(batch, heads, rows, -1)


def _one_token_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None
) -> Tensor:
    """SDPA for one token behind its prefix: the window is a slice, and the heads of a key head are
    the rows of one product, so nothing is masked, repeated or copied."""
    if window is not None and key.shape[2] > window:
        key, value = key[:, :, -window:], value[:, :, -window:]
    batch, heads, _, head_dim = query.shape
    grouped = query.reshape(batch, key.shape[1], heads // key.shape[1], head_dim)
    out = scaled_dot_product_attention(grouped, key, value, scale=scale)
    return out.reshape(batch, heads, 1, value.shape[-1])


# Without a mask function of the same name transformers would build no mask at all, and ordinary
# calls would lose their padding and the sliding window without a word.
AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _sdpa_mask)
