"""A run of a token-level ensemble: one round is one token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from .generation import DecodingRun
from .member import Member
from .options import GenerationOptions
from .output import EnsembleOutput
from .stage_clock import StageClock
from .text import Encoding, complete_prefix
from .token_choice import (
    favourite,
    mix_votes,
    pick,
    probability,
    shares,
    voting_row,
    without_special,
)
from .token_mixture import Token, TokenMixture, token_of
from .trace import Candidate, Round, Trace

_ALONE = "the main member's own token, whose probability reaches the threshold"
_MIXED = "chosen from the mixture"
_MIXED_ARITHMETIC = "chosen from the arithmetic mean, since no token is in all members"


class _Choice(NamedTuple):
    """The token of a step, and how it came about."""

    token: Token
    reason: str
    weights: list[float]  # with which the members voted
    probabilities: list[float]  # of the token, for each member
    score: float


class _Written(NamedTuple):
    """What a member appends for a token, and what of the text it keeps waiting."""

    encoding: Encoding
    waiting: bytes


class TokenEnsembleRun(DecodingRun):
    """One run of `TokenEnsemble`: iterate over it for the committed text, then read `output`.

    `waiting[j]` are the bytes at the end of the response that stop inside a character and that
    member j has not written yet. As long as there are some, it does not vote.
    """

    def __init__(
        self,
        members: Sequence[Member],
        prompts: Sequence[Sequence[int]],
        trace: Trace,
        options: GenerationOptions,
        mixture: TokenMixture,
        weights: Sequence[float],
        threshold: float | None,
    ) -> None:
        super().__init__(members, prompts, trace, options)
        self.waiting = [b"" for _ in members]
        self.weights = list(weights)
        self._mixture = mixture
        self._threshold = threshold
        self._fingerprints = [member.table.fingerprint for member in members]
        self._unwritten_rounds = 0

    @property
    def remaining(self) -> int:
        # Tokens for which the first member has none count as well: some run must end.
        counted = len(self.contexts[0].response_ids) + self._unwritten_rounds
        return self.options.max_new_tokens - counted

    @property
    def output(self) -> EnsembleOutput:
        output = super().output
        ensembled = sum(bool(round_.ensembled) for round_ in self.trace)
        output.ensembled_share = ensembled / len(self.trace) if len(self.trace) else None
        return output

    def _round(self) -> tuple[Round, bytes] | None:
        clock = StageClock()
        members = range(len(self.contexts))
        if self._is_full(dict.fromkeys(members, 1)):
            return None
        with clock.stage("mix"):
            rows = self._each(self._row)
            choice = self._choose(rows)
        with clock.stage("encode"):
            written = [self._written(j, choice.token) for j in members]
            encodings = [one.encoding for one in written]
            ids = [encoding.ids for encoding in encodings]
        if self._is_full({j: len(own) for j, own in enumerate(ids)}):
            return None
        token = choice.token
        voters = [j for j, weight in enumerate(choice.weights) if weight]
        likeliest = [j for j in voters if self._is_favourite(j, rows[j], token)]
        with clock.stage("commit"):
            ending = self._ending(token.data, token.ended, encodings, self._late)
            self._each(lambda j: self.contexts[j].append(ids[j][: ending.counts[j]]))
        # Everything that can fail has been done; from here on the round counts.
        for j, encoding in enumerate(encodings):
            text = self.data[len(self.data) - self._late :] + ending.data
            self.unspelled[j] += encoding.unspelled(text)
        self.waiting = [one.waiting for one in written]
        self._unwritten_rounds += bool(encodings[0].missing and not ids[0])
        self.finish_reason = ending.reason
        candidate = Candidate(token.data, token.ended, likeliest, ids)
        candidate.shares, candidate.score = choice.probabilities, choice.score
        index, counts = len(self.trace), ending.counts
        round_ = Round(index, [candidate], choice.weights, 0, choice.reason, counts, clock.seconds)
        round_.voters, round_.ensembled = voters, choice.reason != _ALONE
        return round_, ending.data

    def _row(self, j: int) -> Tensor:
        """Member j's logits for the next token, as it votes with them."""
        context = self.contexts[j]
        row = context.next_logits
        return row if self.waiting[j] else voting_row(context, row, context.ids, self.options)

    def _choose(self, rows: Sequence[Tensor]) -> _Choice:
        if self._threshold is not None and not self.waiting[0]:
            member = self.contexts[0].member
            best = favourite(member, rows[0])
            if probability(member, rows[0], best) >= self._threshold:
                return self._chosen_alone(rows[0])
        weights = self._voting_weights()
        mixed = mix_votes(self._mixture, self.contexts, rows, weights)
        index = pick(self.contexts[0].chooser, mixed.probabilities, len(self.trace))
        column = index if mixed.columns is None else int(mixed.columns[index])
        shares = [
            self._mixture.probability(j, rows[j], mixed, index) if weight else 0.0
            for j, weight in enumerate(weights)
        ]
        reason = _MIXED_ARITHMETIC if mixed.fell_back else _MIXED
        score = float(mixed.probabilities[index])
        return _Choice(self._mixture.token(column), reason, weights, shares, score)

    def _chosen_alone(self, row: Tensor) -> _Choice:
        """The main member's own token."""
        member, chooser = self.contexts[0].member, self.contexts[0].chooser
        own = favourite(member, row)
        if chooser.seed is not None:
            own = chooser.pick(without_special(member, row), len(self.trace))
        token = token_of(member, own)
        others = [0.0] * (len(self.contexts) - 1)
        likelihood = probability(member, row, own)
        return _Choice(token, _ALONE, [1.0, *others], [likelihood, *others], likelihood)

    def _voting_weights(self) -> list[float]:
        """The weights of the members with nothing waiting, the others' 0; they sum to 1."""
        voting = [0.0 if self.waiting[j] else w for j, w in enumerate(self.weights)]
        if not any(voting):  # whoever has a say waits: then the rest
            voting = [0.0 if waiting else 1.0 for waiting in self.waiting]
        return shares(voting)

    @property
    def _late(self) -> int:
        """How many bytes at the end of the response some member has not written yet."""
        return max(map(len, self.waiting))

    def _written(self, j: int, token: Token) -> _Written:
        """What member j appends: its own id of the token if it has written everything before it,
        else the encoding of all that it has not written up to the last complete character.
        Positions count from where the first byte waits that any member has not written."""
        member, waiting = self.contexts[j].member, self.waiting[j]
        if token.ended:
            ids = list(member.end_of_text_ids[:1])
            return _Written(Encoding(ids, [self._late] * len(ids), []), waiting)
        if not waiting:
            same = token.id is not None and self._fingerprints[j] == self._fingerprints[0]
            own = token.id if same else member.table.token_id(token.data)
            if own is not None:
                return _Written(Encoding([own], [self._late + len(token.data)], []), b"")
        data, text = waiting + token.data, self.pending + token.data
        # The character may have begun in ids that this member has written already.
        inside = min(len(text) - complete_prefix(text), len(data))
        end, start = len(data) - inside, self._late - len(waiting)
        ids, ends, missing = member.encoder.encode(data[:end]) if end else Encoding([], [], [])
        return _Written(
            Encoding(list(ids), [start + e for e in ends], [start + place for place in missing]),
            data[end:],
        )

    def _is_favourite(self, j: int, row: Tensor, token: Token) -> bool:
        member = self.contexts[j].member
        best = favourite(member, row)
        if token.ended or member.is_end_of_text(best):
            return token.ended and member.is_end_of_text(best)
        return member.table.spell((best,)) == token.data
