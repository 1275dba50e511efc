"""Segment attention by PyTorch's own attention functions.

Masks, block masks and the caches of single candidates are made beforehand, as a model would once
for all layers; what depends on the states (expanded heads, folded rows) is part of the call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention as sdpa

from benchmarks.operators.frame import Alternative, Refused, compiled_peer

# SmolLM2 135M, Gemma 3 270M and Llama 3 8B: query heads, key heads, size, window.
HEADS = ((9, 3, 64, None), (4, 1, 256, 512), (32, 8, 128, None))
PREFIXES = (256, 2048, 8192)
LENGTHS = ((5, 5), (5, 7, 8), (5, 16, 11, 9, 8, 15), (256,) * 4)


@dataclass(frozen=True)
class Buffer:
    query: Tensor  # [1, Hq, T, D]
    key: Tensor  # [1, Hkv, P + T, D]
    value: Tensor
    offsets: Tensor
    alone: list[tuple[Tensor, Tensor]]  # per candidate its own cache, prefix and segment


@dataclass(frozen=True)
class Visibility:
    """Which slot each row sees, by the segments and logical positions of both."""

    segments: Tensor  # [P + T], -1 in the prefix
    positions: Tensor  # [P + T]
    prefix: int
    window: int | None

    @classmethod
    def of(cls, prefix: int, lengths: tuple[int, ...], window: int | None) -> Visibility:
        segments = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        positions = torch.cat([torch.arange(prefix), *(prefix + torch.arange(n) for n in lengths)])
        return cls(torch.cat([torch.full((prefix,), -1), segments]), positions, prefix, window)

    def to(self, device: torch.device) -> Visibility:
        segments, positions = (t.to(device) for t in (self.segments, self.positions))
        return Visibility(segments, positions, self.prefix, self.window)

    def rule(self) -> Callable[..., Tensor]:
        segments, positions, window = self.segments, self.positions, self.window
        row_segments, row_positions = (t[self.prefix :].clone() for t in (segments, positions))

        def visible(batch: Any, head: Any, row: Tensor, slot: Tensor) -> Tensor:
            ahead = row_positions[row] - positions[slot]
            own = (segments[slot] < 0) | (segments[slot] == row_segments[row])
            seen = own & (ahead >= 0)
            return seen if window is None else seen & (ahead < window)

        return visible

    def mask(self) -> Tensor:
        """`[T, P + T]` bool."""
        slots = torch.arange(self.segments.shape[0], device=self.segments.device)
        return self.rule()(0, 0, slots[: slots.shape[0] - self.prefix, None], slots)


def buffer_of(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor) -> Buffer:
    prefix = key.shape[2] - query.shape[2]
    alone = [
        (_alone(key, prefix, begin, end), _alone(value, prefix, begin, end))
        for begin, end in pairwise(offsets.tolist())
    ]
    return Buffer(query.clone(), key.clone(), value.clone(), offsets, alone)


def _alone(states: Tensor, prefix: int, begin: int, end: int) -> Tensor:
    own = states[:, :, prefix + begin : prefix + end]
    return torch.cat([states[:, :, :prefix], own], 2)


def as_returned(buffer: Buffer, out: Tensor) -> list[Tensor]:
    return [out]


def peers(buffer: Buffer, visibility: Visibility) -> list[Alternative | Refused]:
    return [*sdpa_peers(buffer, visibility, visibility.mask()), _flex(buffer, visibility)]


def sdpa_peers(buffer: Buffer, visibility: Visibility, mask: Tensor) -> list[Alternative]:
    """`mask [T, P + T]` as SDPA takes it: of bools, or to be added to the scores."""
    return [
        Alternative(
            "SDPA, dense mask, enable_gqa",
            lambda b: sdpa(b.query, b.key, b.value, attn_mask=mask, enable_gqa=True),
            as_returned,
        ),
        Alternative("SDPA, dense mask, heads repeated", _repeated(mask), as_returned),
        _folded(buffer, mask),
        _per_candidate(buffer, mask, visibility),
    ]


def _repeated(mask: Tensor) -> Callable[[Buffer], Tensor]:
    def call(buffer: Buffer) -> Tensor:
        group = buffer.query.shape[1] // buffer.key.shape[1]
        key, value = (s.repeat_interleave(group, 1) for s in (buffer.key, buffer.value))
        return sdpa(buffer.query, key, value, attn_mask=mask)

    return call


def _folded(buffer: Buffer, mask: Tensor) -> Alternative:
    batch, heads, rows, size = buffer.query.shape
    key_heads = buffer.key.shape[1]
    group = heads // key_heads
    tall = mask.repeat(group, 1)

    def call(buffer: Buffer) -> Tensor:
        query = buffer.query.reshape(batch, key_heads, group * rows, size)
        out = sdpa(query, buffer.key, buffer.value, attn_mask=tall)
        return out.view(batch, heads, rows, size)

    return Alternative("SDPA, heads of a group as rows", call, as_returned)


def _per_candidate(buffer: Buffer, mask: Tensor, visibility: Visibility) -> Alternative:
    spans = list(pairwise(buffer.offsets.tolist()))
    prefix = visibility.prefix
    masks = [
        torch.cat([mask[a:b, :prefix], mask[a:b, prefix + a : prefix + b]], 1) for a, b in spans
    ]

    def call(buffer: Buffer) -> list[Tensor]:
        return [
            sdpa(buffer.query[:, :, a:b], key, value, attn_mask=own, enable_gqa=True)
            for (a, b), own, (key, value) in zip(spans, masks, buffer.alone, strict=True)
        ]

    return Alternative(
        "SDPA, one call per candidate", call, lambda _, outs: [torch.cat(list(outs), 2)]
    )


def _flex(buffer: Buffer, visibility: Visibility) -> Alternative | Refused:
    rows, slots = buffer.query.shape[2], buffer.key.shape[2]
    block_mask = create_block_mask(visibility.rule(), None, None, rows, slots, device="cpu")
    return compiled_peer(
        "FlexAttention, compiled",
        flex_attention,
        lambda flex, b: flex(b.query, b.key, b.value, block_mask=block_mask, enable_gqa=True),
        buffer,
        as_returned,
        marker="cpp_fused_flex_attention",
    )
