"""A run of SAFE with an ensemble at every token."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .drafted_run import DraftedRun
from .drafts import Draft
from .member import Member
from .options import GenerationOptions
from .output import EnsembleOutput
from .safe_vote import SafeVote
from .stage_clock import StageClock
from .token_choice import favourite, shares, voting_row
from .token_mixture import Token, token_of
from .trace import Candidate, Round, TokenDecision, Trace

ENSEMBLED = "ensembled"
UNWRITTEN = "the drafter's own, since it cannot write what the ensemble chose"


class AlwaysRun(DraftedRun):
    """One run of `SAFE` under "always": nothing is drafted, one round is one token.

    A verifier with another tokenizer votes behind its encoding of the text. As long as the text
    stops inside a character, it does not vote.
    """

    def __init__(
        self,
        members: Sequence[Member],
        prompts: Sequence[Sequence[int]],
        trace: Trace,
        options: GenerationOptions,
        vote: SafeVote,
    ) -> None:
        reading = [j for j in range(1, len(members)) if vote.weights[j]]
        super().__init__(members, prompts, trace, options, reading)
        self._vote = vote

    @property
    def output(self) -> EnsembleOutput:
        output = super().output
        output.ensembled_share = 1.0 if len(self.trace) else None
        return output

    def _round(self) -> tuple[Round, bytes] | None:
        clock, drafter = StageClock(), self.contexts[0]
        if self._is_full({0: 1}):
            return None
        voting = [j for j in self.reading if self.readers[j].shares_ids or not self.pending]
        written = drafter.response_ids
        with clock.stage("verify"):
            encodings = {j: self.readers[j].encode(self.data, written) for j in voting}
            if self._is_full({j: self._unread(j, encodings[j]) for j in voting}):
                return None
            read = self._each(lambda j: self.readers[j].last(encodings[j]), voting)
        with clock.stage("mix"):
            rows = [context.member.blank_logits for context in self.contexts]
            rows[0] = drafter.next_logits
            for j, row in zip(voting, read, strict=True):
                rows[j] = row
            token, decision, weights = self._choose(rows, voting)
            replacement = self._written(token)
            if replacement is None:
                token = token_of(drafter.member, favourite(drafter.member, rows[0]))
                replacement = self._written(token)
                decision.reason, decision.mixture[1] = UNWRITTEN, decision.mixture[0]
                decision.chosen, decision.chosen_end = token.data, token.ended
        candidate = Candidate(token.data, token.ended, [0], [[] for _ in self.contexts])
        with clock.stage("commit"):
            committed = self._commit(Draft([], b"", False, rows[:1]), 0, replacement)
        index, counts = len(self.trace), committed.counts
        reason = decision.reason
        round_ = Round(index, [candidate], weights, 0, reason, counts, clock.seconds)
        round_.voters = [j for j, weight in enumerate(weights) if weight]
        round_.ensembled, round_.decisions = True, [decision]
        return round_, committed.data

    def _choose(
        self, rows: list[Tensor], voting: Sequence[int]
    ) -> tuple[Token, TokenDecision, list[float]]:
        """The token, how it came about, and the weights of the vote."""
        contexts, vote = self.contexts, self._vote
        for j in [0, *voting]:
            rows[j] = voting_row(contexts[j], rows[j], contexts[j].ids, self.options)
        weights = [w if j in (0, *voting) else 0.0 for j, w in enumerate(vote.weights)]
        if not any(weights):  # a drafter without a say, while all others wait
            weights[0] = 1.0
        weights = shares(weights)
        mixed = vote.mix(contexts, rows, weights)
        index = vote.chosen(contexts[0], mixed, len(self.trace))
        token = vote.token(mixed, index)
        drafted = token_of(contexts[0].member, favourite(contexts[0].member, rows[0]))
        place = vote.mixture.find(mixed, drafted)
        decision = TokenDecision(drafted.data, drafted.ended, token.data, token.ended, ENSEMBLED)
        decision.mixture = [
            0.0 if place is None else float(mixed.probabilities[place]),
            float(mixed.probabilities[index]),
        ]
        return token, decision, weights
