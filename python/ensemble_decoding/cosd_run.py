"""A run of CoSD: one round is one draft, of which a token may be replaced."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from .cosd_verdict import Verdict
from .drafted_run import DraftedRun, DraftedToken, Replacement
from .drafts import Draft
from .member import Member
from .options import GenerationOptions
from .reader import Opinion
from .stage_clock import StageClock
from .token_mixture import Token
from .trace import Candidate, Round, TokenDecision, Trace

if TYPE_CHECKING:
    from .cosd import CoSD

NO_BOUNDARY = "no token of an assistant begins here"
AGREED = "the assistant agrees"
KEPT = "kept by the rule"
KEPT_BY_TREE = "kept by the tree"
UNCERTAIN = "the assistant's entropy is too high"
REPLACED = "replaced"
SECOND_LOOK = "kept after a second look"
UNWRITTEN = "the drafter cannot write the assistant's token"


class _Proposal(NamedTuple):
    """The token that an assistant would put in the place of a drafted one."""

    assistant: int
    token: Token
    probability: float


class _Full(Exception):
    """An assistant has no room for the draft."""


class CoSDRun(DraftedRun):
    """One run of `CoSD`: iterate over it for the committed text, then read `output`."""

    def __init__(
        self,
        method: CoSD,
        members: Sequence[Member],
        prompts: Sequence[Sequence[int]],
        trace: Trace,
        options: GenerationOptions,
        verdict: Verdict,
        temperatures: Sequence[float],
    ) -> None:
        assistants = list(range(1, len(members)))
        self._cascade = method.select == "cascade"
        # Those behind the first of a cascade may never be asked.
        reading = assistants[:1] if self._cascade else assistants
        self._assistants = assistants
        super().__init__(members, prompts, trace, options, reading, temperatures)
        self._method = method
        self._verdict = verdict
        self._opinions: dict[int, Mapping[int, Opinion]] = {}

    def _asked(self) -> Sequence[int]:
        return self._assistants

    def _round(self) -> tuple[Round, bytes] | None:
        clock = StageClock()
        if self._is_full({0: 1}):
            return None
        with clock.stage("draft"):
            draft = self._propose(self._method.draft_length)
        self._opinions = {}
        try:
            with clock.stage("verify"):
                self._ask(draft, self._assistants[:1] if self._cascade else self._assistants)
            with clock.stage("decide"):
                decisions, count, replacement = self._decide(draft)
        except _Full:
            return None
        candidate = Candidate(draft.data, draft.ended, [0], self._ids_read(draft))
        with clock.stage("commit"):
            committed = self._commit(draft, count, replacement)
        if not committed.whole:
            decisions = decisions[: committed.counts[0]]
        weights = [1.0, *[0.0] * len(self._assistants)]
        replaced = bool(decisions) and decisions[-1].reason == REPLACED
        reason = REPLACED if replaced else "kept as drafted"
        index, counts = len(self.trace), committed.counts
        round_ = Round(index, [candidate], weights, 0, reason, counts, clock.seconds)
        round_.decisions = decisions
        return round_, committed.data

    def _ask(self, draft: Draft, assistants: Sequence[int]) -> None:
        """Lets assistants read a draft."""
        for j in assistants:
            if j not in self.reading:
                self.contexts[j].prefill(self._prompts[j])
                self.reading.append(j)
        opinions = self._read(draft, assistants)
        if opinions is None:
            raise _Full
        self._opinions |= opinions

    def _decide(self, draft: Draft) -> tuple[list[TokenDecision], int, Replacement | None]:
        """What of a draft is kept: how many tokens, and what replaces the next one."""
        place, decisions = len(self.data), list[TokenDecision]()
        for at in self._drafted(draft, self.temperatures[0]):
            token = at.token
            decision = TokenDecision(token.data, token.ended, token.data, token.ended, NO_BOUNDARY)
            decision.probabilities = [at.probability, *[None] * len(self._assistants)]
            decision.alternatives = [token.data, *[None] * len(self._assistants)]
            decisions.append(decision)
            proposal = self._proposal(decision, draft, at, place)
            if proposal is not None:
                replacement = self._written(proposal.token)
                if replacement is None:
                    decision.reason = UNWRITTEN
                elif self._method.second_look and not self._stands(
                    draft, at, place, proposal.assistant, replacement
                ):
                    decision.reason = SECOND_LOOK
                else:
                    decision.reason, decision.decided_by = REPLACED, proposal.assistant
                    decision.chosen, decision.chosen_end = replacement.data, replacement.ended
                    return decisions, at.number, replacement
            place += len(token.data)
        return decisions, len(draft.ids), None

    def _proposal(
        self, decision: TokenDecision, draft: Draft, at: DraftedToken, place: int
    ) -> _Proposal | None:
        """What replaces a token, if anything does; notes in the decision who said what."""
        best: _Proposal | None = None
        for j in self._assistants:
            if j not in self._opinions:
                self._ask(draft, [j])
            opinion = self._opinions[j].get(place)
            if opinion is None or (at.token.ended and opinion.own is None):
                continue  # in the middle of its token, or an end of text that it does not know
            found = self._judged(decision, at, j, opinion)
            if self._cascade:
                best = found
                if opinion.best_probability >= self._method.unsure_below:
                    break
            elif found is not None and (best is None or found.probability > best.probability):
                best = found
        return best

    def _judged(
        self, decision: TokenDecision, at: DraftedToken, j: int, opinion: Opinion
    ) -> _Proposal | None:
        member, best = self.contexts[j].member, opinion.best
        ended = member.is_end_of_text(best)
        token = Token(b"" if ended else member.table.spell((best,)), ended)
        if not ended and member.table.fingerprint == self.contexts[0].member.table.fingerprint:
            token = token._replace(id=best)
        probability = opinion.best_probability
        decision.probabilities[j], decision.alternatives[j] = probability, token.data
        method = self._method
        if self._same(j, opinion.own, token):
            decision.reason = AGREED
        elif not self._verdict.replaces(at.probability, probability):
            decision.reason = KEPT if method.tree is None else KEPT_BY_TREE
        elif method.max_entropy is not None and opinion.entropy > method.max_entropy:
            decision.reason = UNCERTAIN
        else:
            return _Proposal(j, token, probability)
        return None

    def _stands(
        self, draft: Draft, at: DraftedToken, place: int, j: int, replacement: Replacement
    ) -> bool:
        """The second look, after which the first `at.number` ids of the draft are staged in any
        case, and all if the replacement does not stand."""
        context, kept, encoding = self.contexts[0], self._opinions[j], self.encodings[j]
        first = self._mean_log_probability(j, place)
        count, ids, ended = at.number, replacement.ids, replacement.ended
        if ended:
            data = context.member.table.spell(draft.ids[:count])
            other = Draft([*draft.ids[:count], *ids], data, True)
        else:
            length = max(len(draft.ids), count + len(ids))
            other = self.drafter.redraft(draft, count, ids, length, self.pending)
        self._ask(other, [j])
        second = self._mean_log_probability(j, place)
        self._opinions[j], self.encodings[j] = kept, encoding
        stands = second > first
        if not stands and not ended:
            self.drafter.restage(draft, count)
        return stands

    def _mean_log_probability(self, j: int, place: int) -> float:
        """Of assistant j's own tokens, in what it has read, from `place` on."""
        own = [
            math.log(opinion.probability) if opinion.probability > 0 else -math.inf
            for where, opinion in self._opinions[j].items()
            if where >= place and opinion.own is not None
        ]
        return math.fsum(own) / len(own) if own and -math.inf not in own else -math.inf
