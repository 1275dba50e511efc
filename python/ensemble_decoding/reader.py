"""A member that reads what another writes, and says what it would have written."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from ensemble_kernels.profiling import annotate

from .context import DecodingContext
from .sampling import first_maximum
from .text import Encoding
from .text_follower import TextFollower, shared_prefix
from .token_choice import without_special


class Opinion(NamedTuple):
    """What a reader says at one place of the text where one of its tokens begins or could begin.

    `own` is its id of what follows there, `probability` that of this id (for an end of text that of
    all of them together); None and 0 where it cannot write what follows. `best` is its likeliest id
    among text and end-of-text. `row [n]` are its logits, behind the first `before` of its ids.
    """

    own: int | None
    probability: float
    best: int
    best_probability: float
    entropy: float
    row: Tensor
    before: int


class _Row(NamedTuple):
    """Logits `[n]`, and of their softmax the likeliest id, log-sum-exp and entropy (in nats)."""

    logits: Tensor
    best: int
    logsumexp: float
    entropy: float


class Reader:
    """Follows a text: its context holds an encoding of the text's beginning, which is cut back
    where the text, or the way in which it is encoded, changes.

    Args:
        context: the reader's, with nothing but the prompt in it.
        writer: the context of the member that writes. With an equal token table its ids are taken
            as they are; else the reader's tokenizer encodes the text.
        temperature: over which its logits are taken.
    """

    def __init__(
        self, context: DecodingContext, writer: DecodingContext, temperature: float = 1.0
    ) -> None:
        self.context = context
        self._temperature = temperature
        table = context.member.table
        self.shares_ids = table.fingerprint == writer.member.table.fingerprint
        self._follower = None if self.shares_ids else TextFollower(context.member.encoder, table)
        # By the number of ids before them.
        self._rows: dict[int, _Row] | None = None

    def encode(self, data: bytes, writer_ids: Sequence[int]) -> Encoding:
        """The reader's ids of the response `data`, which the writer has as `writer_ids`; without
        an end of text."""
        if self._follower is not None:
            with annotate("align"):
                return self._follower.encode(data)
        member, ids = self.context.member, list(writer_ids)
        if ids and member.is_end_of_text(ids[-1]):
            ids.pop()
        return Encoding(ids, member.table.ends(ids), [])

    def keep(self, encoding: Encoding) -> None:
        """Cuts back what is not in the encoding of the text."""
        context = self.context
        shared = shared_prefix(context.ids, [*context.ids[: context.prompt_length], *encoding.ids])
        context.cut(shared)
        if self._rows is not None:
            self._rows = {place: row for place, row in self._rows.items() if place <= shared}

    def read(self, encoding: Encoding, start: int, length: int, ended: bool) -> dict[int, Opinion]:
        """Reads the rest of a text; the opinions by the place (in bytes) from `start` on, for each
        place where one of the reader's tokens ends.

        `encoding` is that of the whole text of `length` bytes. Nothing is said of the end of a text
        that goes on; `ended` says that it does not.
        """
        context, prompt = self.context, self.context.prompt_length
        if self._rows is None:
            self._rows = {prompt: self._row_of(context.next_logits)}
        self.keep(encoding)
        ids, first = [*context.ids[:prompt], *encoding.ids], len(context.ids)
        if first not in self._rows:
            first -= 1
        if first < len(ids):
            self._read_from(first, ids)
        # What stands before is never asked for again, and its logits take memory.
        oldest = min(first, prompt + bisect_right(encoding.ends, start))
        self._rows = {place: row for place, row in self._rows.items() if place >= oldest}
        places = encoding.ends[bisect_left(encoding.ends, start) :]
        if places[-1:] == [length] and not ended:
            places.pop()
        if not start and (length or ended) and places[:1] != [0]:
            places.insert(0, 0)
        with annotate("align"):
            return {
                place: self._opinion(encoding, place, ended and place == length) for place in places
            }

    def last(self, encoding: Encoding) -> Tensor:
        """Reads the rest of a text; the logits `[n]` behind all of it."""
        context = self.context
        self.keep(encoding)
        context.append(encoding.ids[len(context.ids) - context.prompt_length :])
        return context.next_logits

    def _read_from(self, first: int, ids: Sequence[int]) -> None:
        context, rows = self.context, self._rows or {}
        context.cut(first)
        logits, statistics = context.read(ids[first:], self._temperature)
        read = zip(statistics.argmax, statistics.logsumexp, statistics.entropy, strict=True)
        for i, (best, logsumexp, entropy) in enumerate(read, 1):
            rows[first + i] = _Row(logits[i - 1], int(best), logsumexp, entropy)
        self._rows = rows

    def _row_of(self, logits: Tensor) -> _Row:
        place = len(self.context.ids) - 1
        statistics = self.context.passes.statistics(logits[None], [0], [place], self._temperature)
        best, logsumexp, entropy = (
            getattr(statistics, name)[0] for name in ("argmax", "logsumexp", "entropy")
        )
        return _Row(logits, int(best), logsumexp, entropy)

    def _opinion(self, encoding: Encoding, place: int, at_end: bool) -> Opinion:
        member, count = self.context.member, bisect_right(encoding.ends, place)
        before = self.context.prompt_length + count
        assert self._rows is not None
        row, own = self._rows[before], None
        if at_end:
            own = next(iter(member.end_of_text_ids), None)
        elif self._begins_at(encoding, count, place):
            own = encoding.ids[count]
        best = row.best
        if member.is_suppressed(best):
            best = first_maximum(without_special(member, row.logits))
        return Opinion(
            own,
            0.0 if own is None else self._probability(row, own),
            best,
            self._probability(row, best),
            row.entropy,
            row.logits,
            before,
        )

    def _begins_at(self, encoding: Encoding, index: int, place: int) -> bool:
        """Whether an id begins at `place`, and not behind bytes for which there is no token."""
        if index == len(encoding.ids):
            return False
        (size,) = self.context.member.table.ends(encoding.ids[index : index + 1])
        return encoding.ends[index] - size == place

    def _probability(self, row: _Row, token: int) -> float:
        member = self.context.member
        if member.is_end_of_text(token) and len(member.end_of_text_ids) > 1:
            ends = row.logits[list(member.end_of_text_ids)].float()
            scaled = float((ends / self._temperature).logsumexp(0))
        else:
            scaled = float(row.logits[token]) / self._temperature
        return math.exp(min(0.0, scaled - row.logsumexp))
