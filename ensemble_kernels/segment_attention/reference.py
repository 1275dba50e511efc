"""`segment_attention` in plain PyTorch.

Most of a long prefix is seen by every row and needs no mask. Only the near slots do: the rows'
own, and the prefix slots at the edge of the window. The two parts are merged by their LSE.

Floor: 2(P+T)·Hkv·D·b + 2T·Hq·D·b + 4·T·Hq bytes, 4·Hq·D·Σ visible FLOPs. The query rows of one
key head are folded into one matrix, so each key is read once per key head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .. import _checks
from .._dispatch import check_contents
from .parts import Hidden, Part, fused_part, hidden_mask, masked_part, merge

_LOW_PRECISION = (torch.bfloat16, torch.float16)
# So many prefix slots at most are masked together with the rows' own, since one part is quicker
# than two: no mask grows with the prefix.
_NEAR_SLOTS = 512


def segment_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segment_offsets: Tensor,
    prefix_length: Tensor | None = None,
    key_start: Tensor | None = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    batch, _, rows, _ = query.shape
    plain_prefix = key.shape[2] - rows
    if check_contents(query.device.type):
        check_lengths(segment_offsets, prefix_length, rows, plain_prefix)
    on_cpu = query.device.type == "cpu"
    attend: Callable[..., Part | None] = _attend_views if on_cpu else _attend_positions
    offsets = _per_row(segment_offsets.expand(batch, -1), on_cpu)
    prefixes = [plain_prefix] * batch if prefix_length is None else _per_row(prefix_length, on_cpu)
    firsts = [0] * batch if key_start is None else _per_row(key_start, on_cpu)
    parts = [
        attend(
            *(query[b], key[b], value[b]),
            *(offsets[b], prefixes[b], firsts[b]),
            *(scale, window, softcap),
        )
        for b in range(batch)
    ]
    return _assemble(query, parts)


def _per_row(lengths: Tensor, read: bool) -> list[Any] | Tensor:
    return lengths.tolist() if read else lengths


def _assemble(query: Tensor, parts: list[Part | None]) -> tuple[Tensor, Tensor]:
    """The parts of the batch rows, each without the padding rows at its end, in one tensor."""
    batch, heads, rows, size = query.shape
    if batch == 1 and parts[0] is not None and parts[0].out.numel() == query.numel():
        out, lse = parts[0]
        return out.to(query.dtype).view(query.shape), lse.float().view(1, heads, rows)
    out = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
    lse = torch.full(query.shape[:3], -torch.inf, device=query.device)
    for b, part in enumerate(parts):
        if part is not None:
            real = part.lse.numel() // heads
            out[b, :, :real] = part.out.view(heads, real, size)
            lse[b, :, :real] = part.lse.view(heads, real)
    return out, lse


def _attend_views(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    offsets: list[int],
    prefix: int,
    first: int,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Part | None:
    """One batch row, where lengths can be read: slots that no row sees and padding rows are cut
    off as views, and only the near slots are compared by position."""
    rows = offsets[-1]
    if rows == 0:
        return None
    longest = max(b - a for a, b in pairwise(offsets))
    begin = edge = max(0, min(first, prefix))
    if window is not None:
        # Row r of its segment sees the prefix from slot prefix + r - window + 1 on.
        begin = min(max(begin, prefix - window + 1), prefix)
        edge = min(max(begin, prefix + longest - window), prefix)
    if prefix - begin <= _NEAR_SLOTS:
        edge = prefix
    hidden = _near_hidden(
        tuple(offsets),
        prefix - begin if edge > begin else 0,
        edge - begin,
        None if window is None or prefix - begin + longest <= window else window,
        max(first - prefix, 0),
        query.shape[0] // key.shape[0],
        query.dtype,
    )
    query = _fold(query[:, :rows], key.shape[0])
    key, value = key[:, begin : prefix + rows], value[:, begin : prefix + rows]
    if softcap is not None or key.stride(-1) != 1 or value.stride(-1) != 1 or first > prefix:
        return masked_part(query, key, value, hidden, scale, softcap)
    if hidden is None:
        return fused_part(query, key, value, None, scale)
    shared = slice(edge - begin, prefix - begin)
    if shared.start == shared.stop:
        return _near_part(query, key, value, hidden, scale)
    near = _near_part(query, _without(key, shared), _without(value, shared), hidden, scale)
    return merge(fused_part(query, key[:, shared], value[:, shared], None, scale), near)


def _near_part(query: Tensor, key: Tensor, value: Tensor, hidden: Hidden, scale: float) -> Part:
    part = fused_part(query, key, value, hidden.bias, scale)
    if not bool(part.out.sum().isnan()):
        return part
    # NaN that a row does not see may have reached it, or it sees it: masking tells.
    if query.dtype in _LOW_PRECISION:  # whose matrix product would round the scores
        query, key, value = query.float(), key.float(), value.float()
    return masked_part(query, key, value, hidden, scale, None)


def _without(states: Tensor, slots: slice) -> Tensor:
    behind = states[:, slots.stop :]
    return torch.cat([states[:, : slots.start], behind], 1) if slots.start else behind


def _attend_positions(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    offsets: Tensor,
    prefix: int | Tensor,
    first: int | Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Part | None:
    """One batch row, where no length may be read back: all slots that may be hidden are compared
    by position."""
    rows, slots = query.shape[1], key.shape[1]
    if rows == 0:
        return None
    row = torch.arange(rows, device=query.device, dtype=torch.int32)
    segment = torch.searchsorted(offsets, row, right=True) - 1
    plain = isinstance(prefix, int) and isinstance(first, int) and window is None
    compared = torch.arange(slots - rows if plain else 0, slots, device=query.device)
    mask = hidden_mask(compared, offsets[segment], prefix, window, first)
    folded = _fold(query, key.shape[0])
    out, lse = masked_part(folded, key, value, Hidden(mask, 0), scale, softcap)
    padding = (row >= offsets[-1]).repeat(folded.shape[1] // rows)[:, None]
    return Part(out.masked_fill_(padding, 0), lse.masked_fill_(padding, -torch.inf))


def _fold(query: Tensor, key_heads: int) -> Tensor:
    heads, rows, size = query.shape
    return query.reshape(key_heads, heads // key_heads * rows, size).contiguous()


@lru_cache(maxsize=32)
def _near_hidden(
    offsets: tuple[int, ...],
    distance: int,
    count: int,
    window: int | None,
    first: int,
    group: int,
    dtype: torch.dtype,
) -> Hidden | None:
    """What is hidden among the `count` prefix slots that begin `distance` before the rows' own,
    and those; None if nothing is. Slots count from the end of the prefix, so that one mask
    serves all layers and, while the window slides, all rounds of the same shape."""
    row_start = torch.tensor([a for a, b in pairwise(offsets) for _ in range(a, b)], device="cpu")
    edge = torch.arange(-distance, count - distance, device="cpu")
    slots = torch.cat([edge, torch.arange(offsets[-1], device="cpu")])
    mask = hidden_mask(slots, row_start, 0, window, first or -distance)
    if not bool(mask.any()):
        return None
    bias = torch.zeros(mask.shape, dtype=dtype, device="cpu").masked_fill_(mask, -torch.inf)
    return Hidden(mask, count, bias.repeat(group, 1))


def check_lengths(
    segment_offsets: Tensor, prefix_length: Tensor | None, rows: int, longest_prefix: int
) -> None:
    offsets = segment_offsets.tolist()
    _checks.offsets_content(
        "segment_offsets", offsets if segment_offsets.ndim == 2 else [offsets], rows
    )
    for length in [] if prefix_length is None else prefix_length.tolist():
        if not 0 <= length <= longest_prefix:
            raise ValueError(
                f"prefix_length must be from 0 to S - T = {longest_prefix}, got {length}"
            )
