"""The running state of one member in one run: its cache, its committed ids, its next logits.

The decoding loop talks to a context in plain data only (ids, bytes, log-probabilities), so that a
member on another device or in another process can take its place.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ensemble_kernels import token_statistics
from ensemble_kernels.profiling import annotate

from .attention import no_mask
from .cache import SegmentCache, cache_argument
from .drafts import Draft, write_draft
from .sampling import TokenChooser
from .usage import MemberUsage, OperatorClock
from .verification import Judgement, PackedCandidates, Position, RowStatistics, Verified, judge

if TYPE_CHECKING:
    from .member import Member


class Snapshot(NamedTuple):
    """What `DecodingContext.restore` needs."""

    length: int
    position: Position | None


class DecodingContext:
    """One member's state in one run. Everything before `position` is committed."""

    def __init__(self, member: Member, chooser: TokenChooser | None = None) -> None:
        self.member = member
        self.chooser = chooser or TokenChooser()
        self.retired = False
        self.cache = SegmentCache(member.num_layers)
        self.ids: list[int] = []
        self.prompt_length = 0
        self.usage = MemberUsage(member.name)
        self._cache_argument = cache_argument(member.model)
        self._no_mask = no_mask(member.device)
        self._one_token = torch.tensor([0, 1], dtype=torch.int32, device=member.device)
        self._position: Position | None = None
        self._verified: Verified | None = None
        self._lowest = 0  # the fewest ids since the last snapshot
        self._clock = OperatorClock()

    @property
    def response_ids(self) -> list[int]:
        """The ids committed after the prompt."""
        return self.ids[self.prompt_length :]

    @property
    def room(self) -> int | None:
        """Tokens that still fit into the model's context; None where it has no limit. See
        `Member.context_limit`."""
        limit = self.member.context_limit(self.prompt_length)
        return None if limit is None else limit - len(self.ids)

    def finished_usage(self) -> MemberUsage:
        """The usage so far, operators and memory included."""
        self.usage.operator_seconds = dict(self._clock.seconds)
        self.usage.model_bytes = self.member.memory_bytes
        self.usage.cache_bytes = max(self.usage.cache_bytes, self.cache.memory_bytes)
        return self.usage

    def prefill(self, prompt_ids: Sequence[int]) -> None:
        """Starts a run: empties the cache and feeds the prompt in one pass."""
        self.cache.reset()
        self.usage = MemberUsage(self.member.name)
        self._clock = OperatorClock()
        self.ids = list(prompt_ids)
        self.prompt_length = len(self.ids)
        self._position = self._verified = None
        tokens = torch.tensor([self.ids], device=self.member.device)
        logits = self._forward(tokens, logits_to_keep=1, **self._prefill_segments())
        self.usage.prompt_tokens += len(self.ids)
        self.cache.commit()
        statistics = self.statistics(logits, self.ids[-1:], [len(self.ids) - 1])
        self._position = Position(len(self.ids), logits[0], statistics.logsumexp[0])

    def _prefill_segments(self) -> dict[str, Tensor]:
        """SDPA reads a prompt fastest; where it cannot (a soft-cap), the prompt is one segment."""
        if not self.member.has_softcap:
            return {}
        device, length = self.member.device, len(self.ids)
        return {
            "position_ids": torch.arange(length, device=device)[None],
            "segment_offsets": torch.tensor([0, length], dtype=torch.int32, device=device),
        }

    def draft(self, length: int, pending: bytes = b"") -> Draft:
        """Drafts up to `length` tokens after the committed ones, fewer where the text ends, and up
        to three more to complete a character, of which the committed text may hold the first bytes
        (`pending`). Leaves the context as it was."""
        draft = write_draft(self, length, pending)
        self.cache.rollback()
        return draft._replace(rows=())

    def verify(self, candidates: Sequence[Sequence[int]]) -> list[Judgement]:
        """Scores all candidates in one packed pass behind the committed ids.

        Returns for each candidate what the member says of each of its tokens; for end-of-text
        that is of all its end-of-text ids together. The pass stays staged for `commit`.
        """
        position = self._committed_position()
        packed = PackedCandidates.of(candidates)
        if not packed.length:
            self._verified = Verified(packed, position.logits[None, :0], [])
            return [Judgement([], []) for _ in candidates]
        tokens, positions, offsets = packed.inputs(position.length, self.member.device)
        logits = self._forward(tokens, position_ids=positions, segment_offsets=offsets)
        self.usage.verified_tokens += packed.length
        # Row r predicts the token that is fed in row r + 1; what the last row of a candidate is
        # asked for here is never read.
        fed = tokens[0].tolist()
        statistics = self.statistics(logits, fed[1:] + fed[:1], positions[0].tolist())
        self._verified = Verified(packed, logits, statistics.logsumexp)
        return judge(self.member, position, self._verified, statistics.logprob)

    def commit(self, candidate: int, count: int, ids: Sequence[int]) -> None:
        """Makes the first `count` of a verified candidate's `ids` committed ones.

        Their keys and values and the logits of the last of them are those of the packed pass; a
        retired context only notes the ids.
        """
        if self.retired:
            self.ids += ids[:count]
            return
        if self._verified is None:
            raise RuntimeError("commit needs candidates that were verified after the last commit")
        packed, logits, logsumexp = self._verified
        first = packed.starts[candidate]
        start = time.perf_counter()
        self.cache.commit(first, count)
        self._clock.add("compact_kv_", time.perf_counter() - start)
        if count:
            last = first + count - 1
            self.ids += packed.candidates[candidate][:count]
            self._position = Position(len(self.ids), logits[last].clone(), logsumexp[last])
        self._verified = None

    @property
    def next_logits(self) -> Tensor:
        """What the model says after the committed ids: the logits `[n]` of the ids that the token
        table has."""
        logits = self._committed_position().logits
        return logits[: self.member.logits_size(logits)]

    def stand(self, row: Tensor) -> None:
        """Notes the logits `row [V]` behind the committed ids, as another pass gave them."""
        length = len(self.ids)
        statistics = self.statistics(row[None], [0], [length - 1])
        self._position = Position(length, row, statistics.logsumexp[0])

    def append(self, ids: Sequence[int]) -> None:
        """Feeds ids behind the committed ones, in one pass, and commits them."""
        count = len(ids)
        if not count:
            return
        logits = self.feed(ids, logits_to_keep=1)
        self.usage.committed_tokens += count
        length = len(self.ids) + count
        statistics = self.statistics(logits, ids[-1:], [length - 1])
        self.cache.commit()
        self.ids += ids
        self._position = Position(length, logits[0], statistics.logsumexp[0])

    def read(self, ids: Sequence[int], temperature: float = 1.0) -> tuple[Tensor, RowStatistics]:
        """As `append`, for a text that others write: the logits `[T, n]` after each of the ids,
        and their statistics at a temperature."""
        length, count = len(self.ids), len(ids)
        logits = self.feed(ids)
        self.usage.verified_tokens += count
        places = range(length, length + count)
        statistics = self.statistics(logits, [*ids[1:], 0], places, temperature)
        self.cache.commit()
        self.ids += ids
        self._position = Position(length + count, logits[-1], statistics.logsumexp[-1])
        return logits[:, : self.member.logits_size(logits)], statistics

    def cut(self, length: int) -> None:
        """Takes back all ids from `length` on. What follows them must be read before the next
        token can be asked for."""
        if length < len(self.ids):
            self.cache.truncate(length)
            del self.ids[length:]
            self._position = None
            self._lowest = min(self._lowest, length)

    def snapshot(self) -> Snapshot:
        """Where the context stands, for `restore`."""
        self._lowest = len(self.ids)
        return Snapshot(self._lowest, self._position)

    def restore(self, snapshot: Snapshot) -> None:
        """Goes back to the last snapshot, taken since the last prefill. Commits only write behind
        it, so whatever happened since then is undone by forgetting it. Ids that were cut stay cut,
        as their keys and values have been overwritten."""
        length = min(snapshot.length, self._lowest)
        if not self.retired:
            self.cache.rollback()
            self.cache.truncate(min(length, self.cache.committed))
        del self.ids[length:]
        self._position = snapshot.position if length == snapshot.length else None
        self._verified = None

    def release(self) -> None:
        """Gives the cache's memory back; `prefill` starts anew."""
        self.usage.cache_bytes = max(self.usage.cache_bytes, self.cache.memory_bytes)
        self.cache = SegmentCache(self.member.num_layers)
        self._position = self._verified = None

    def retire(self) -> None:
        """The member takes no further part in the run: only its ids may still grow."""
        self.release()
        self.retired = True

    def _committed_position(self) -> Position:
        if self._position is None:
            raise RuntimeError("the context has no prompt yet: call prefill first")
        return self._position

    def decode(self, token: int) -> Tensor:
        """Feeds one token behind the committed and staged ones; the logits `[V]` after it."""
        length = self.cache.length
        device = self.member.device
        self.usage.drafted_tokens += 1
        return self._forward(
            torch.tensor([[token]], device=device),
            position_ids=torch.tensor([[length]], device=device),
            segment_offsets=self._one_token,
        )[0]

    def _forward(
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
                "operator_clock": self._clock,
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
        self._clock.add("token_statistics", time.perf_counter() - start)
        statistics = RowStatistics(*fields)
        for best, position in zip(statistics.argmax, positions, strict=True):
            if best < 0:
                raise self.no_distribution(position)
        return statistics

    def feed(self, ids: Sequence[int], *, logits_to_keep: int = 0) -> Tensor:
        """One pass over `ids` behind the committed and staged ones, as one segment."""
        length, count, device = self.cache.length, len(ids), self.member.device
        return self._forward(
            torch.tensor([list(ids)], device=device),
            position_ids=torch.arange(length, length + count, device=device)[None],
            segment_offsets=torch.tensor([0, count], dtype=torch.int32, device=device),
            logits_to_keep=logits_to_keep,
        )

    def no_distribution(self, position: int) -> ValueError:
        return ValueError(
            f"member {self.member.name!r} gave logits with NaN, or with nothing but -inf, "
            f"after position {position}"
        )
