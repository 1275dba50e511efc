"""Parts of the attention of one batch row, and their merge.

`query [Hkv, G·T, D]` holds the rows of the G query heads of each key head; `key` and
`value [Hkv, n, D]` are views of the cache. A part is `(out [Hkv, G·T, D], lse [Hkv, G·T, 1])` in
float32 or better, the LSE as natural logarithm; a row that sees nothing of it has 0 and -inf.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

_LOG2_E = math.log2(math.e)


class Part(NamedTuple):
    out: Tensor
    lse: Tensor


class Hidden(NamedTuple):
    """What is hidden from which row: `mask [T, first + last]` stands for the first `first` and
    the last `last` slots of a view; every row sees the slots between them. `bias` is the same as
    -inf and 0, for the rows of each query head."""

    mask: Tensor
    first: int
    bias: Tensor | None = None

    def spans(self, slots: int) -> list[tuple[slice, Tensor]]:
        last = self.mask.shape[1] - self.first
        end = (slice(slots - last, slots), self.mask[:, self.first :])
        return [(slice(0, self.first), self.mask[:, : self.first]), end] if self.first else [end]


def hidden_mask(
    slots: Tensor, row_start: Tensor, prefix: int | Tensor, window: int | None, first: int | Tensor
) -> Tensor:
    """`[T, n]`: whether row t may not see slot `slots[n]`.

    `row_start [T]` is the first row of each row's segment; slots before `first` are hidden.
    """
    row_start = row_start[:, None]
    row = torch.arange(len(row_start), device=slots.device)[:, None]
    own = slots - prefix
    visible = (own < 0) | ((own >= row_start) & (own <= row))
    if window is not None:
        distance = row - row_start - torch.where(own < 0, own, own - row_start)
        visible &= distance < window
    visible &= slots >= first
    return ~visible


def fused_part(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float
) -> Part:
    """All slots, or those where `bias [G·T, n]` is 0 and not -inf, by PyTorch's fused CPU kernel,
    which keeps the scores of low precision inputs in float32. The last dimension must be
    contiguous and each row must see a slot; a hidden NaN gives NaN."""
    # The kernel divides its work by heads and blocks of 32 rows. One key head with few rows would
    # leave threads idle, so its rows are then spread over two heads that share the keys.
    heads, rows, size = query.shape
    spread = 2 if heads == 1 and rows % 2 == 0 and rows > 32 else 1
    shared = (heads, spread, key.shape[1], size)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query.view(heads, spread, rows // spread, size),
        key.unsqueeze(1).expand(shared),
        value.unsqueeze(1).expand(shared),
        attn_mask=None if bias is None else bias.view(1, spread, rows // spread, -1),
        scale=scale,
    )
    return Part(out.reshape(query.shape), lse.reshape(heads, rows, 1))


def masked_part(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hidden: Hidden | None,
    scale: float,
    softcap: float | None,
) -> Part:
    """All slots but the hidden ones, by two matrix products in the dtype of the inputs."""
    # Base 2 inside: PyTorch's exp takes a slow path for -inf and for results that underflow.
    factor = scale * _LOG2_E if softcap is None else scale / softcap
    # A factor that is 0 in float32 makes PyTorch's bfloat16 product leave its result unwritten.
    tiny = abs(factor) < torch.finfo(torch.float32).tiny
    alpha = 1.0 if tiny else factor
    scores = torch.baddbmm(query.new_empty(()), query, key.mT, beta=0, alpha=alpha)
    if scores.dtype != torch.float64:
        scores = scores.float()
    if tiny:
        scores.mul_(factor)
    if softcap is not None:
        scores.tanh_().mul_(softcap * _LOG2_E)
    if hidden is not None:
        by_row = scores.unflatten(1, (-1, hidden.mask.shape[0]))
        for span, mask in hidden.spans(key.shape[1]):
            by_row[..., span].masked_fill_(mask, -torch.inf)
    # A row that sees nothing has the maximum -inf; the bound keeps (-inf) - (-inf) out.
    peak = scores.amax(-1, keepdim=True).clamp_min_(torch.finfo(scores.dtype).min)
    weights = scores.sub_(peak).exp2_()
    total = weights.sum(-1, keepdim=True)
    out = _product(weights, value)
    # 0 · NaN: a hidden value must not reach the row. On the CPU a look at the small result tells
    # whether there is anything to repair; elsewhere the look would stop the queue.
    if hidden is not None and (value.device.type != "cpu" or bool(out.sum().isnan())):
        out = _product_without_hidden(weights, value, hidden)
    lse = total.log2().add_(peak).mul_(1 / _LOG2_E)
    return Part(out.mul_(total.clamp_min_(1).reciprocal_()), lse)


def _product(weights: Tensor, value: Tensor) -> Tensor:
    if weights.dtype == value.dtype:
        return torch.bmm(weights, value)
    return torch.bmm(weights.to(value.dtype), value).to(weights.dtype)


def _product_without_hidden(weights: Tensor, value: Tensor, hidden: Hidden) -> Tensor:
    slots, rows = value.shape[1], hidden.mask.shape[0]
    seen_by_all = slice(hidden.first, slots - hidden.mask.shape[1] + hidden.first)
    out = _product(weights[..., seen_by_all], value[:, seen_by_all])
    for span, mask in hidden.spans(slots):
        near = value[:, span]
        out += _product(weights[..., span], near.where(near.isfinite(), 0))
        seen = (~mask).to(weights.dtype).repeat(weights.shape[1] // rows, 1)
        held = torch.cat([near == torch.inf, near == -torch.inf, near.isnan()], -1)
        above, below, spoiled = (torch.matmul(seen, held.to(weights.dtype)) > 0).chunk(3, -1)
        out += torch.where(above, torch.inf, 0.0) - torch.where(below, torch.inf, 0.0)
        out.masked_fill_(spoiled, torch.nan)
    return out


def merge(first: Part, second: Part) -> Part:
    """The slots of both parts together. At most one of a row's two parts may be empty."""
    # Both shares, since a difference of outs would turn an infinity into NaN.
    distance = second.lse - first.lse
    out = first.out * torch.sigmoid(-distance) + second.out * torch.sigmoid(distance)
    return Part(out, torch.logaddexp(first.lse, second.lse))
