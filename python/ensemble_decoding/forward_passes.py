"""One member's forward passes in one run: its model over its cache, and what they cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ensemble_kernels import token_statistics
from ensemble_kernels.profiling import annotate

from .attention import no_mask
from .cache import SegmentCache, cache_argument
from .usage import MemberUsage, OperatorClock
from .verification import RowStatistics

if TYPE_CHECKING:
    from .member import Member


class ForwardPasses:
    """Feeds tokens to a member's model, counts and times it, and reads statistics off the logits.

    A pass stages its keys and values in `cache`; who asked for it commits them or drops them.
    """

    def __init__(self, member: Member) -> None:
        self.member = member
        self.cache = SegmentCache(member.num_layers)
        self.usage = MemberUsage(member.name)
        self.clock = OperatorClock()
        self._cache_argument = cache_argument(member.model)
        self._no_mask = no_mask(member.device)
        self._one_token = torch.tensor([0, 1], dtype=torch.int32, device=member.device)

    def finished_usage(self) -> MemberUsage:
        """The usage so far, operators and memory included."""
        self.usage.operator_seconds = dict(self.clock.seconds)
        self.usage.model_bytes = self.member.memory_bytes
        self.usage.cache_bytes = max(self.usage.cache_bytes, self.cache.memory_bytes)
        return self.usage

    def release(self) -> None:
        """Gives the cache's memory back."""
        self.usage.cache_bytes = max(self.usage.cache_bytes, self.cache.memory_bytes)
        self.cache = SegmentCache(self.member.num_layers)

    def prefill(self, ids: Sequence[int]) -> Tensor:
        """Starts anew: empties the cache and feeds a prompt in one pass; the logits `[1, V]` after
        its last token."""
        self.cache.reset()
        self.usage = MemberUsage(self.member.name)
        self.clock = OperatorClock()
        tokens = torch.tensor([list(ids)], device=self.member.device)
        logits = self.forward(tokens, logits_to_keep=1, **self._prefill_segments(len(ids)))
        self.usage.prompt_tokens += len(ids)
        return logits

    def _prefill_segments(self, length: int) -> dict[str, Tensor]:
        """SDPA reads a prompt fastest; where it cannot (a soft-cap), the prompt is one segment."""
        if not self.member.has_softcap:
            return {}
        device = self.member.device
        return {
            "position_ids": torch.arange(length, device=device)[None],
            "segment_offsets": torch.tensor([0, length], dtype=torch.int32, device=device),
        }

    def decode(self, token: int) -> Tensor:
        """Feeds one token behind the committed and staged ones; the logits `[V]` after it."""
        length = self.cache.length
        device = self.member.device
        self.usage.drafted_tokens += 1
        return self.forward(
            torch.tensor([[token]], device=device),
            position_ids=torch.tensor([[length]], device=device),
            segment_offsets=self._one_token,
        )[0]

    def feed(self, ids: Sequence[int], *, logits_to_keep: int = 0) -> Tensor:
        """One pass over `ids` behind the committed and staged ones, as one segment."""
        length, count, device = self.cache.length, len(ids), self.member.device
        return self.forward(
            torch.tensor([list(ids)], device=device),
            position_ids=torch.arange(length, length + count, device=device)[None],
            segment_offsets=torch.tensor([0, count], dtype=torch.int32, device=device),
            logits_to_keep=logits_to_keep,
        )

    def forward(
        self,
        tokens: Tensor,
        *,
        position_ids: Tensor | None = None,
        segment_offsets: Tensor | None = None,
        logits_to_keep: int = 0,
    ) -> Tensor:
        """One forward pass over `tokens [1, T]`; the logits `[T or logits_to_keep, V]`."""
        keywords: dict[str, object] = {self._cache_argument: self.cache}
        if segment_offsets is not None:
            keywords |= {
                "position_ids": position_ids,
                "attention_mask": self._no_mask,
                "segment_offsets": segment_offsets,
                "operator_clock": self.clock,
            }
        start = time.perf_counter()
        self.cache.stage(tokens.shape[1])
        with torch.no_grad(), annotate("forward"):
            logits = self.member.model(
                input_ids=tokens, use_cache=True, logits_to_keep=logits_to_keep, **keywords
            ).logits[0]
        self.usage.seconds += time.perf_counter() - start
        self.usage.forward_passes += 1
        return logits

    def statistics(
        self,
        logits: Tensor,
        targets: Sequence[int],
        positions: Sequence[int],
        temperature: float = 1.0,
    ) -> RowStatistics:
        """What `token_statistics` says of `logits [R, V]`, over `temperature`, and a target for
        each row. A row without a distribution (NaN, or nothing but -inf) is an error here, before
        anything is chosen from it; `positions` say where."""
        start = time.perf_counter()
        size = self.member.logits_size(logits)
        ids = torch.tensor(list(targets), device=logits.device)
        found = token_statistics(logits, ids, vocab_size=size, temperature=temperature)
        # In float64, which holds every id.
        fields = torch.stack([field.double() for field in found]).tolist()
        self.clock.add("token_statistics", time.perf_counter() - start)
        statistics = RowStatistics(*fields)
        for best, position in zip(statistics.argmax, positions, strict=True):
            if best < 0:
                raise self.no_distribution(position)
        return statistics

    def no_distribution(self, position: int) -> ValueError:
        return ValueError(
            f"member {self.member.name!r} gave logits with NaN, or with nothing but -inf, "
            f"after position {position}"
        )
