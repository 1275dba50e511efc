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

from .attention import no_mask
from .cache import SegmentCache, cache_argument
from .drafts import Draft
from .sampling import TokenChooser
from .text import complete_prefix
from .trace import MemberUsage, OperatorClock
from .verification import Judgement, PackedCandidates, Position, Verified, judge

if TYPE_CHECKING:
    from .member import Member

# At most this many tokens beyond the draft's length to complete a character: four bytes are the
# longest character, and its first one has been drafted.
_COMPLETION_TOKENS = 3


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
        _, logsumexp = self._statistics(logits, tokens[0, -1:], [len(self.ids) - 1])
        self._position = Position(len(self.ids), logits[0], logsumexp[0])

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
        position = self._committed_position()
        most = length + _COMPLETION_TOKENS
        if self.room is not None:
            length, most = min(length, self.room), min(most, self.room)
        logits, data, ids = position.logits, b"", list[int]()
        complete = 0
        while True:
            token = self._choose(logits, ids)
            ids.append(token)
            if self.member.is_end_of_text(token):
                break
            data += self.member.table.spell((token,))
            if complete_prefix(pending + data) == len(pending + data):
                complete = len(ids)
            if len(ids) >= length and complete == len(ids):
                break
            if len(ids) == most:
                break
            logits = self.decode(token)
        self.cache.rollback()
        ended = self.member.is_end_of_text(ids[-1])
        if not ended and complete:
            # Still inside a character: fall back to the last token that ended one. If there is
            # none, the draft stands as it is.
            ids = ids[:complete]
            data = self.member.table.spell(ids)
        return Draft(ids, data, ended)

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
        targets = torch.cat([tokens[0, 1:], tokens[0, :1]])
        logprob, logsumexp = self._statistics(logits, targets, positions[0].tolist())
        self._verified = Verified(packed, logits, logsumexp)
        return judge(self.member, position, self._verified, logprob)

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

    def append(self, ids: Sequence[int]) -> None:
        """Feeds ids behind the committed ones, in one pass, and commits them."""
        length, count = self._committed_position().length, len(ids)
        if not count:
            return
        device = self.member.device
        tokens = torch.tensor([list(ids)], device=device)
        logits = self._forward(
            tokens,
            position_ids=torch.arange(length, length + count, device=device)[None],
            segment_offsets=torch.tensor([0, count], dtype=torch.int32, device=device),
            logits_to_keep=1,
        )
        self.usage.committed_tokens += count
        length += count
        _, logsumexp = self._statistics(logits, tokens[0, -1:], [length - 1])
        self.cache.commit()
        self.ids += ids
        self._position = Position(length, logits[0], logsumexp[0])

    def snapshot(self) -> Snapshot:
        """Where the context stands, for `restore`."""
        return Snapshot(len(self.ids), self._position)

    def restore(self, snapshot: Snapshot) -> None:
        """Goes back to a snapshot taken since the last prefill. Commits only write behind it, so
        whatever happened since then is undone by forgetting it."""
        if not self.retired:
            self.cache.rollback()
            self.cache.truncate(snapshot.length)
        del self.ids[snapshot.length :]
        self._position = snapshot.position
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
        with torch.no_grad():
            logits = self.member.model(
                input_ids=tokens, use_cache=True, logits_to_keep=logits_to_keep, **keywords
            ).logits[0]
        self.usage.seconds += time.perf_counter() - start
        self.usage.forward_passes += 1
        return logits

    def _statistics(
        self, logits: Tensor, targets: Tensor, positions: Sequence[int]
    ) -> tuple[list[float], list[float]]:
        """Log-probability of each target and logsumexp of each row. A row without a distribution
        (NaN, or nothing but -inf) is an error here, before anything is chosen from it."""
        start = time.perf_counter()
        size = self.member.logits_size(logits)
        statistics = token_statistics(logits, targets, vocab_size=size)
        fields = torch.stack(
            [statistics.logprob, statistics.logsumexp, statistics.argmax.to(torch.float32)]
        ).tolist()
        self._clock.add("token_statistics", time.perf_counter() - start)
        for best, position in zip(fields[2], positions, strict=True):
            if best < 0:
                raise self._no_distribution(position)
        return fields[0], fields[1]

    def _choose(self, logits: Tensor, drafted: Sequence[int]) -> int:
        """The next token among text and end-of-text."""
        row = logits[: self.member.logits_size(logits)]
        ids = [*self.ids, *drafted] if self.chooser.processors else self.ids
        place = len(self.ids) - self.prompt_length + len(drafted)
        # A greedy choice is seldom a suppressed id, so it is made first and mended where it is one.
        token = -1 if self.chooser.reads_suppressed else self.chooser.choose(row, ids, place)
        if token < 0 or self.member.is_suppressed(token):
            allowed = row.index_fill(0, self.member.suppressed_index(row.device), -torch.inf)
            token = self.chooser.choose(allowed, ids, place)
        if not float(row[token]) > -torch.inf or self.member.is_suppressed(token):
            raise self._no_distribution(len(self.ids) + len(drafted))
        return token

    def _no_distribution(self, position: int) -> ValueError:
        return ValueError(
            f"member {self.member.name!r} gave logits with NaN, or with nothing but -inf, "
            f"after position {position}"
        )
