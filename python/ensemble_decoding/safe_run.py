"""A run of SAFE in which one round is one draft."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from .drafted_run import DraftedRun, DraftedToken, Replacement
from .drafts import Draft
from .member import Member
from .options import GenerationOptions
from .output import EnsembleOutput
from .reader import Opinion
from .safe_vote import SafeVote
from .stage_clock import StageClock
from .token_choice import voting_row, without_special
from .token_mixture import Token
from .trace import Candidate, Round, TokenDecision, Trace

DRAFTED = "drafted"
OOV_LIKE = "no boundary for a verifier"
UNANIMOUS = "all verifiers agree"
SURE = "mean probability above one half"
ENSEMBLED = "ensembled"
UNWRITTEN = "ensembled, but the drafter cannot write the choice"

_SURE_ABOVE = 0.5

# Of the readers, in the order of their places.
Opinions = Sequence[Opinion | None]


class SafeRun(DraftedRun):
    """One run of `SAFE`: iterate over it for the committed text, then read `output`.

    `vote` is None for a drafter alone.
    """

    def __init__(
        self,
        members: Sequence[Member],
        prompts: Sequence[Sequence[int]],
        trace: Trace,
        options: GenerationOptions,
        draft_length: int,
        vote: SafeVote | None,
    ) -> None:
        weights = vote.weights if vote else [1.0] + [0.0] * (len(members) - 1)
        reading = [j for j in range(1, len(members)) if weights[j]]
        super().__init__(members, prompts, trace, options, reading)
        self._draft_length = draft_length
        self._vote = vote
        self._weights = weights

    @property
    def output(self) -> EnsembleOutput:
        output = super().output
        decisions = [decision for round_ in self.trace for decision in round_.decisions]
        if decisions:
            ensembled = sum(bool(decision.mixture) for decision in decisions)
            output.ensembled_share = ensembled / len(decisions)
        return output

    def _round(self) -> tuple[Round, bytes] | None:
        clock = StageClock()
        if self._is_full({0: 1}):
            return None
        with clock.stage("draft"):
            draft = self._propose(self._draft_length)
        with clock.stage("verify"):
            opinions = self._read(draft, self.reading)
        if opinions is None:
            return None
        with clock.stage("mix"):
            decisions, count, replacement = self._decide(draft, opinions)
        candidate = Candidate(draft.data, draft.ended, [0], self._ids_read(draft))
        with clock.stage("commit"):
            committed = self._commit(draft, count, replacement)
        if not committed.whole:
            decisions = decisions[: committed.counts[0]]
        reason = decisions[-1].reason if committed.whole and replacement else "kept as drafted"
        index, counts = len(self.trace), committed.counts
        round_ = Round(index, [candidate], self._weights, 0, reason, counts, clock.seconds)
        round_.decisions = decisions
        return round_, committed.data

    def _decide(
        self, draft: Draft, opinions: Mapping[int, Mapping[int, Opinion]]
    ) -> tuple[list[TokenDecision], int, Replacement | None]:
        """What of a draft is kept: how many tokens, and what replaces the next one."""
        place, decisions = len(self.data), list[TokenDecision]()
        for at in self._drafted(draft, asked=self._vote is not None):
            token = at.token
            decision = TokenDecision(token.data, token.ended, token.data, token.ended, DRAFTED)
            decisions.append(decision)
            here = [opinions[j].get(place) for j in self.reading]
            place += len(token.data)
            if self._vote is None or self._keeps(decision, at, here):
                continue
            replacement = self._ensemble(decision, draft, at, here)
            if replacement is not None:
                return decisions, at.number, replacement
        return decisions, len(draft.ids), None

    def _keeps(self, decision: TokenDecision, at: DraftedToken, here: Opinions) -> bool:
        """Whether a token is kept without an ensemble; notes in the decision why."""
        own = [None if opinion is None else opinion.probability for opinion in here]
        decision.probabilities = [at.probability, *[None] * (len(self.contexts) - 1)]
        for j, probability in zip(self.reading, own, strict=True):
            decision.probabilities[j] = probability
        if any(opinion is None for opinion in here):
            decision.reason = OOV_LIKE
        else:
            weights = [self._weights[0], *[self._weights[j] for j in self.reading]]
            decision.mean = math.fsum(
                weight * (probability or 0.0)
                for weight, probability in zip(weights, [at.probability, *own], strict=True)
            )
            agree = all(self._own_is_best(j, o) for j, o in zip(self.reading, here, strict=True))
            # The agreement of argmaxes says nothing of a token that was drawn.
            if agree and self.contexts[0].chooser.seed is None:
                decision.reason = UNANIMOUS
            elif decision.mean > _SURE_ABOVE:
                decision.reason = SURE
            else:
                return False
        decision.same_bytes = all(
            opinion is not None and self._same(j, opinion.own, at.token)
            for j, opinion in zip(self.reading, here, strict=True)
        )
        return True

    def _own_is_best(self, j: int, opinion: Opinion | None) -> bool:
        if opinion is None or opinion.own is None:
            return False
        member = self.contexts[j].member
        if member.is_end_of_text(opinion.best):
            return member.is_end_of_text(opinion.own)
        return self._same(j, opinion.own, Token(member.table.spell((opinion.best,)), False))

    def _ensemble(
        self,
        decision: TokenDecision,
        draft: Draft,
        at: DraftedToken,
        here: Opinions,
    ) -> Replacement | None:
        """Mixes the distributions at a token; what replaces it, or None to keep it."""
        assert self._vote is not None
        vote, drafter = self._vote, self.contexts[0]
        rows = self._votes(draft, at.number, here)
        mixed = vote.mix(self.contexts, rows, self._weights)
        position, seed = len(drafter.response_ids) + at.number, drafter.chooser.seed
        if seed is None:
            index: int | None = vote.chosen(drafter, mixed, position)
        else:
            row = without_special(drafter.member, rows[0])
            index = vote.kept_or_chosen(mixed, at.token, row, seed, position)
        decision.reason = ENSEMBLED
        own = vote.mixture.find(mixed, at.token)
        decision.mixture = [0.0 if own is None else float(mixed.probabilities[own])] * 2
        if index is None or index == own:
            return None
        chosen = vote.token(mixed, index)
        replacement = self._written(chosen)
        if replacement is None:
            decision.reason = UNWRITTEN
            return None
        decision.mixture[1] = float(mixed.probabilities[index])
        decision.chosen, decision.chosen_end = chosen.data, chosen.ended
        return replacement

    def _votes(self, draft: Draft, index: int, here: Opinions) -> list[Tensor]:
        """What each member votes with at a token of the draft."""
        drafter, options = self.contexts[0], self.options
        ids = [*drafter.ids, *draft.ids[:index]]
        votes = [voting_row(drafter, draft.rows[index], ids, options)]
        # Members of weight 0 are not looked at.
        votes += [context.member.blank_logits for context in self.contexts[1:]]
        for j, opinion in zip(self.reading, here, strict=True):
            assert opinion is not None
            context = self.contexts[j]
            votes[j] = voting_row(context, opinion.row, context.ids[: opinion.before], options)
        return votes
