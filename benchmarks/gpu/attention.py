"""`segment_attention` on a GPU against SDPA and, where it is installed, flash-attn."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.case import Case, Peers, seeded
from benchmarks.operators.attention_peers import (
    Buffer,
    Visibility,
    as_returned,
    buffer_of,
    sdpa_peers,
)
from benchmarks.operators.ceilings import Work, dtype_name
from benchmarks.operators.frame import Alternative, Refused
from ensemble_kernels import segment_attention

FLASH = "flash-attn, varlen, one cache each"


def visible(prefix: int, lengths: tuple[int, ...], window: int | None) -> tuple[int, int]:
    """How many pairs of a row and a slot are visible, and how many slots are so to any row."""
    widest = prefix + max(lengths) if window is None else window
    pairs = 0
    for length in lengths:
        for row in range(length):
            hidden = min(max(prefix + row - widest + 1, 0), prefix)
            pairs += min(row + 1, widest) + prefix - hidden
    return pairs, prefix - min(max(prefix - widest + 1, 0), prefix) + sum(lengths)


def masked_softmax(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """Attention as it is defined, in the dtype of its inputs: `(out, lse)`."""
    group = query.shape[1] // key.shape[1]
    key, value = (states.repeat_interleave(group, 1) for states in (key, value))
    scores = query @ key.mT * query.shape[-1] ** -0.5
    wide = scores if scores.dtype == torch.float64 else scores.float()
    wide = wide.masked_fill(~mask, -torch.inf)
    return wide.softmax(-1).to(query.dtype) @ value, wide.logsumexp(-1)


@dataclass(frozen=True)
class Attention(Case):
    query_heads: int
    key_heads: int
    size: int
    window: int | None
    prefix: int
    lengths: tuple[int, ...]
    dtype: torch.dtype

    operator = "segment_attention"

    @property
    def name(self) -> str:
        window = "" if self.window is None else f"-w{self.window}"
        return (
            f"{dtype_name(self.dtype)}-h{self.query_heads}/{self.key_heads}-d{self.size}{window}"
            f"-p{self.prefix}-t{sum(self.lengths)}"
        )

    @property
    def bytes_each(self) -> int:
        _, slots = visible(self.prefix, self.lengths, self.window)
        return 2 * slots * self.key_heads * self.size * self.dtype.itemsize

    def work(self) -> Work:
        pairs, _ = visible(self.prefix, self.lengths, self.window)
        rows = sum(self.lengths) * self.query_heads
        queries = 2 * rows * self.size * self.dtype.itemsize + 4 * rows
        flops = 4 * self.query_heads * self.size * pairs
        return Work(self.bytes_each + queries, flops, self.dtype)

    def buffers(self, device: torch.device, count: int) -> list[Buffer]:
        generator = seeded(device, self.prefix)

        def states(heads: int, slots: int) -> Tensor:
            made = torch.randn(1, heads, slots, self.size, generator=generator, device=device)
            return made.to(self.dtype)

        rows = sum(self.lengths)
        offsets = torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32, device=device)
        query = states(self.query_heads, rows)
        key, value = (states(self.key_heads, self.prefix + rows) for _ in range(2))
        return [buffer_of(query, key, value, offsets) for _ in range(count)]

    def call(self, back_end: str, buffer: Buffer) -> tuple[Tensor, Tensor]:
        return segment_attention(
            *(buffer.query, buffer.key, buffer.value, buffer.offsets),
            window=self.window,
            return_lse=True,
            backend=back_end,
        )

    def visibility(self, device: torch.device) -> Visibility:
        return Visibility.of(self.prefix, self.lengths, self.window).to(device)

    def expected(self, buffer: Buffer) -> tuple[Tensor, ...]:
        mask = self.visibility(buffer.query.device).mask()
        states = (buffer.query, buffer.key, buffer.value)
        return masked_softmax(*(tensor.double() for tensor in states), mask)

    def composition(self, buffer: Buffer) -> tuple[Tensor, ...]:
        mask = self.visibility(buffer.query.device).mask()
        return masked_softmax(buffer.query, buffer.key, buffer.value, mask)

    def peers(self, buffers: list[Buffer]) -> Peers:
        visibility = self.visibility(buffers[0].query.device)
        mask = visibility.mask()
        # As it is added to the scores: SDPA on a GPU would make that of bools in every call.
        added = torch.zeros(mask.shape, dtype=self.dtype, device=mask.device)
        added.masked_fill_(~mask, -torch.inf)
        return [*sdpa_peers(buffers[0], visibility, added), flash_peer(self, buffers)]


def flash_peer(case: Attention, buffers: list[Buffer]) -> Alternative | Refused:
    """All candidates in one call, each with a cache of its own: the prefix is there once for
    each, copied beforehand. Its causal mask ends at the last row, and so is that of a candidate."""
    if case.dtype == torch.float32:
        return Refused(FLASH, "flash-attn has no float32")
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError as error:
        return Refused(FLASH, f"flash-attn cannot be imported: {error}")
    lengths, longest = case.lengths, max(case.lengths)
    offsets = buffers[0].offsets
    slots = torch.tensor(
        [0, *accumulate(case.prefix + n for n in lengths)], dtype=torch.int32, device=offsets.device
    )
    caches: dict[int, tuple[Any, ...]] = {
        id(buffer): (
            buffer.query[0].transpose(0, 1).contiguous(),
            *(
                torch.cat([own[part][0] for own in buffer.alone], 1).transpose(0, 1).contiguous()
                for part in (0, 1)
            ),
        )
        for buffer in buffers
    }
    window = (-1, -1) if case.window is None else (case.window - 1, 0)

    def call(buffer: Buffer) -> Tensor:
        out = flash_attn_varlen_func(
            *caches[id(buffer)],
            *(offsets, slots, longest, case.prefix + longest),
            causal=True,
            window_size=window,
        )
        return out.transpose(0, 1)[None]

    return Alternative(FLASH, call, as_returned)
