"""A run in which the first member drafts and the others read what it wrote."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import torch

from .drafter import Drafter
from .drafts import Draft
from .generation import DecodingRun
from .member import Member
from .options import GenerationOptions
from .output import EnsembleOutput
from .reader import Opinion, Reader
from .text import Encoding
from .token_mixture import Token, token_of
from .trace import Trace


class DraftedToken(NamedTuple):
    """One token of a draft: which of its tokens, what it is, the drafter's probability of it (1
    where nobody asks)."""

    number: int
    token: Token
    probability: float


class Replacement(NamedTuple):
    """What stands in the place of a drafted token: its bytes or the end of the text, and how the
    drafter writes it."""

    data: bytes
    ended: bool
    ids: list[int]


class Committed(NamedTuple):
    """What a round committed: its bytes, for each member by how many ids its response grew, and
    whether that was all that the round decided on."""

    data: bytes
    counts: list[int]
    whole: bool


class DraftedRun(DecodingRun):
    """What methods have in common that draft with one member.

    `reading` are the places of the members that read. Their contexts follow the text: behind a
    commit each holds the ids of its encoding of the response as far as they have been read. What
    they say is over their `temperatures`.
    """

    def __init__(
        self,
        members: Sequence[Member],
        prompts: Sequence[Sequence[int]],
        trace: Trace,
        options: GenerationOptions,
        reading: Sequence[int],
        temperatures: Sequence[float] | None = None,
    ) -> None:
        super().__init__(members, prompts, trace, options)
        drafter = self.contexts[0]
        self.temperatures = list(temperatures or [1.0] * len(members))
        self.readers = {
            j: Reader(self.contexts[j], drafter, self.temperatures[j])
            for j in range(1, len(members))
        }
        self.reading = list(reading)
        # A draft that others encode must be text.
        whole_characters = not all(self.readers[j].shares_ids for j in self._asked())
        self.drafter = Drafter(drafter, whole_characters)
        self._response: list[Encoding] = [Encoding([], [], []) for _ in members]
        self._ended = False
        self.encodings: dict[int, Encoding] = {}

    @property
    def output(self) -> EnsembleOutput:
        output = super().output
        for j in self.readers:
            member = self.contexts[j].member
            end = list(member.end_of_text_ids[:1]) if self._ended else []
            output.token_ids[j] = [*self._response[j].ids, *end]
        return output

    def _asked(self) -> Sequence[int]:
        """The places of the members that read, now or later in the run."""
        return self.reading

    def _prefill(self) -> None:
        self._each(lambda j: self.contexts[j].prefill(self._prompts[j]), [0, *self.reading])
        self._streamer.start(self._prompts[0])

    def _propose(self, length: int) -> Draft:
        self.encodings = {}
        return self.drafter.propose(self._readable(min(length, self.remaining)), self.pending)

    def _readable(self, length: int) -> int:
        """As much of a length as all readers with the drafter's ids have room for, at least 1."""
        committed = len(self.contexts[0].response_ids)
        for j in self.reading:
            context = self.contexts[j]
            if self.readers[j].shares_ids and context.room is not None:
                unread = context.prompt_length + committed - len(context.ids)
                length = min(length, context.room - unread)
        return max(length, 1)

    def _drafted(
        self, draft: Draft, temperature: float = 1.0, *, asked: bool = True
    ) -> list[DraftedToken]:
        """The tokens of a draft, with the probabilities that the drafter gives them, over
        `temperature`, for end-of-text that of all its ids together."""
        context, count = self.contexts[0], len(draft.ids)
        member = context.member
        probabilities = [1.0] * count
        if asked:
            rows, before = torch.stack(list(draft.rows[:count])), len(context.ids) - 1
            places = range(before, before + count)
            statistics = context.passes.statistics(rows, draft.ids, places, temperature)
            probabilities = [math.exp(value) for value in statistics.logprob]
            if draft.ended and len(member.end_of_text_ids) > 1:
                ends = rows[-1][list(member.end_of_text_ids)].float() / temperature
                together = float(ends.logsumexp(0)) - statistics.logsumexp[-1]
                probabilities[-1] = math.exp(min(0.0, together))  # above by rounding alone
        tokens = []
        for number, (token, probability) in enumerate(zip(draft.ids, probabilities, strict=True)):
            tokens.append(DraftedToken(number, token_of(member, token), probability))
        return tokens

    def _read(self, draft: Draft, reading: Sequence[int]) -> dict[int, dict[int, Opinion]] | None:
        """What each reader says of a draft, by the place in the response; None where one has no
        room for it. `self.encodings` holds how each wrote it."""
        data = self.data + draft.data
        written = [*self.contexts[0].response_ids, *draft.ids]
        self.encodings |= {j: self.readers[j].encode(data, written) for j in reading}
        if self._is_full({j: self._unread(j, self.encodings[j]) for j in reading}):
            return None
        start = len(self.data)
        opinions = self._each(
            lambda j: self.readers[j].read(self.encodings[j], start, len(data), draft.ended),
            reading,
        )
        return dict(zip(reading, opinions, strict=True))

    def _ids_read(self, draft: Draft) -> list[list[int]]:
        """Each member's ids of the draft, of readers those that reach into it; none of a member
        that does not read."""
        ids: list[list[int]] = [list(draft.ids), *[[] for _ in self.readers]]
        for j, encoding in self.encodings.items():
            ids[j] = encoding.ids[bisect_right(encoding.ends, len(self.data)) :]
        return ids

    def _same(self, j: int, own: int | None, token: Token) -> bool:
        """Whether member j's id stands for the same as a token."""
        if own is None:
            return False
        member = self.contexts[j].member
        ended = member.is_end_of_text(own)
        return ended == token.ended and (ended or member.table.spell((own,)) == token.data)

    def _written(self, token: Token) -> Replacement | None:
        """How the drafter writes a token that was chosen; None if it cannot."""
        member = self.contexts[0].member
        if token.ended:
            return Replacement(b"", True, list(member.end_of_text_ids[:1]))
        own = member.table.token_id(token.data) if token.id is None else token.id
        if own is not None:
            return Replacement(token.data, False, [own])
        encoding = member.encoder.encode(token.data)
        whole = bool(encoding.ids) and not encoding.missing
        return Replacement(token.data, False, encoding.ids) if whole else None

    def _unread(self, j: int, encoding: Encoding) -> int:
        """How many more ids than now reader j's context must hold for the encoding of a text."""
        context = self.contexts[j]
        return context.prompt_length + len(encoding.ids) - len(context.ids)

    def _commit(self, draft: Draft, count: int, replacement: Replacement | None) -> Committed:
        """Commits the first `count` ids of a draft and what replaces the next one, as far as the
        response goes on; what of it was committed."""
        table = self.contexts[0].member.table
        ids = draft.ids[:count]
        ends = table.ends(ids)
        data, ended = draft.data[: ends[-1] if ends else 0], draft.ended and count == len(draft.ids)
        if replacement is not None:
            ends += table.ends(replacement.ids, len(data))
            data, ended = data + replacement.data, replacement.ended
            ids = [*ids, *replacement.ids]
        nothing = Encoding([], [], [])
        others = [nothing] * len(self.readers)
        ending = self._ending(data, ended, [Encoding(ids, ends, []), *others])
        kept = ending.counts[0]
        drafted = min(kept, count)
        last = ending.reason is not None
        self.drafter.accept(draft, drafted, ids[drafted:kept], last=last)
        response = self.data + ending.data
        written = self.contexts[0].response_ids
        encodings = {j: reader.encode(response, written) for j, reader in self.readers.items()}
        for j in self.reading:
            self.readers[j].keep(encodings[j])
        # Everything that can fail has been done; from here on the round counts.
        whole = kept == len(ids) and len(ending.data) == len(data)
        counts = [kept, *[0] * len(self.readers)]
        for j, encoding in encodings.items():
            counts[j] = len(encoding.ids) - len(self._response[j].ids)
            self._response[j] = encoding
            self.unspelled[j] = encoding.unspelled(response)
        self._ended = ended and whole
        self.finish_reason = ending.reason
        return Committed(ending.data, counts, whole)
