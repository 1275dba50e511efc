"""The running state of one member in one run: its committed ids, what it verified, its next logits.

The decoding loop talks to a context in plain data only (ids, bytes, log-probabilities), so that a
member on another device or in another process can take its place.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from .cache import SegmentCache
from .drafts import Draft, write_draft
from .forward_passes import ForwardPasses
from .sampling import TokenChooser
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
        self.passes = ForwardPasses(member)
        self.ids: list[int] = []
        self.prompt_length = 0
        self._position: Position | None = None
        self._verified: Verified | None = None
        self._lowest = 0  # the fewest ids since the last snapshot

    @property
    def cache(self) -> SegmentCache:
        """The keys and values of the committed ids, and of what is staged behind them."""
        return self.passes.cache

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

    def prefill(self, prompt_ids: Sequence[int]) -> None:
        """Starts a run: empties the cache and feeds the prompt in one pass."""
        self.ids = list(prompt_ids)
        self.prompt_length = len(self.ids)
        self._position = self._verified = None
        logits = self.passes.prefill(self.ids)
        self.cache.commit()
        statistics = self.passes.statistics(logits, self.ids[-1:], [len(self.ids) - 1])
        self._position = Position(len(self.ids), logits[0], statistics.logsumexp[0])

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
        logits = self.passes.forward(tokens, position_ids=positions, segment_offsets=offsets)
        self.passes.usage.verified_tokens += packed.length
        # Row r predicts the token that is fed in row r + 1; what the last row of a candidate is
        # asked for here is never read.
        fed = tokens[0].tolist()
        statistics = self.passes.statistics(logits, fed[1:] + fed[:1], positions[0].tolist())
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
        self.passes.clock.add("compact_kv_", time.perf_counter() - start)
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
        statistics = self.passes.statistics(row[None], [0], [length - 1])
        self._position = Position(length, row, statistics.logsumexp[0])

    def append(self, ids: Sequence[int]) -> None:
        """Feeds ids behind the committed ones, in one pass, and commits them."""
        count = len(ids)
        if not count:
            return
        logits = self.passes.feed(ids, logits_to_keep=1)
        self.passes.usage.committed_tokens += count
        length = len(self.ids) + count
        statistics = self.passes.statistics(logits, ids[-1:], [length - 1])
        self.cache.commit()
        self.ids += ids
        self._position = Position(length, logits[0], statistics.logsumexp[0])

    def read(self, ids: Sequence[int], temperature: float = 1.0) -> tuple[Tensor, RowStatistics]:
        """As `append`, for a text that others write: the logits `[T, n]` after each of the ids,
        and their statistics at a temperature."""
        length, count = len(self.ids), len(ids)
        logits = self.passes.feed(ids)
        self.passes.usage.verified_tokens += count
        places = range(length, length + count)
        statistics = self.passes.statistics(logits, [*ids[1:], 0], places, temperature)
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
        self.passes.release()
        self._position = self._verified = None

    def retire(self) -> None:
        """The member takes no further part in the run: only its ids may still grow."""
        self.release()
        self.retired = True

    def _committed_position(self) -> Position:
        if self._position is None:
            raise RuntimeError("the context has no prompt yet: call prefill first")
        return self._position
