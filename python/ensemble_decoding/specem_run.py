"""A run of SpecEM: one round is one segment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .drafts import Draft, without_partial_word
from .generation import DecodingRun
from .member import Member
from .options import GenerationOptions
from .specem_vote import feedback, mean_score, vote, vote_shares
from .stage_clock import StageClock
from .text import Encoding
from .trace import Candidate, Round, Trace

if TYPE_CHECKING:
    from .specem import SpecEM


class SpecEMRun(DecodingRun):
    """One run of `SpecEM`: iterate over it for the committed text, then read `output`."""

    def __init__(
        self,
        method: SpecEM,
        members: Sequence[Member],
        prompts: Sequence[Sequence[int]],
        options: GenerationOptions,
    ) -> None:
        names = ("segment_length", "segment_boundary", "learning_rate", "feedback", "score")
        shown = {name: getattr(method, name) for name in (*names, "exit_threshold")}
        shown |= {"verifiers": len(method.verifiers), **options.as_trace()}
        trace = Trace("specem", [member.name for member in members], shown)
        super().__init__(members, prompts, trace, options)
        self.weights = [1 / len(members)] * len(members)
        self._method = method
        self._active = list(range(len(members)))
        self._fingerprints = [member.table.fingerprint for member in members]

    def _round(self) -> tuple[Round, bytes] | None:
        clock = StageClock()
        active = self._active
        drafters = [j for j in active if j < len(self._method.members)]
        if self._is_full(dict.fromkeys(active, 1)):
            return None
        with clock.stage("draft"):
            drafts = dict(zip(drafters, self._each(self._draft, drafters), strict=True))
            candidates = distinct_candidates(drafts, len(self.contexts))
        with clock.stage("encode"):
            # The first member's ids go on counting for the limit after its exit.
            encodings = {j: self._encode(j, candidates) for j in sorted({0, *active})}
        if self._is_full({j: max(len(c.token_ids[j]) for c in candidates) for j in active}):
            return None
        with clock.stage("verify"):
            shares = self._verify(candidates)
        with clock.stage("commit"):
            weights = self._fed_back(shares, candidates, drafters)
            winner, reason = vote(weights, shares, candidates)
            won = candidates[winner]
            nothing = [Encoding([], [], [])] * len(candidates)
            everyone = [encodings.get(j, nothing)[winner] for j in range(len(self.contexts))]
            ending = self._ending(won.data, won.ended, everyone)
            for j in encodings:
                self.contexts[j].commit(winner, ending.counts[j], won.token_ids[j])
        # Everything that can fail has been done; from here on the round counts.
        for j, encoding in enumerate(everyone):
            self.unspelled[j] += encoding.unspelled(ending.data)
        self.finish_reason = ending.reason
        index = len(self.trace)
        self.weights = self._without_exits(weights)
        round_ = Round(index, candidates, weights, winner, reason, ending.counts, clock.seconds)
        return round_, ending.data

    def _draft(self, j: int) -> Draft:
        # A member that counts like the first never drafts what the limit would cut off again.
        own, first = (self.contexts[i].member.table.tokenizer_fingerprint for i in (j, 0))
        counts_alike = own == first
        length = self._method.segment_length
        length = min(length, self.remaining) if counts_alike else length
        draft = self.contexts[j].draft(length, self.pending)
        if self._method.segment_boundary == "word":
            return without_partial_word(draft, self.contexts[j].member.table, self.pending)
        return draft

    def _encode(self, j: int, candidates: Sequence[Candidate]) -> list[Encoding]:
        """Sets member j's ids of each candidate: its own draft's, those of a drafter with an equal
        token table, else the encoding of the bytes."""
        member, encodings = self.contexts[j].member, []
        for candidate in candidates:
            drafters = [j] if j in candidate.drafted_by else candidate.drafted_by
            same = [i for i in drafters if self._fingerprints[i] == self._fingerprints[j]]
            if same:
                # Several may spell it in several ways: the choice must not be by their order.
                ids = min(candidate.token_ids[i] for i in same)
                encoding = Encoding(ids, member.table.ends(ids), [])
            else:
                encoding = member.encoder.encode(candidate.data)
                if candidate.ended and member.end_of_text_ids:
                    encoding.ids.append(member.end_of_text_ids[0])
                    encoding.ends.append(len(candidate.data))
            candidate.token_ids[j] = encoding.ids
            encodings.append(encoding)
        return encodings

    def _verify(self, candidates: Sequence[Candidate]) -> dict[int, list[float]]:
        """Each active member's shares of the candidates; the scores are noted in the candidates."""
        judged = self._each(
            lambda j: self.contexts[j].verify([c.token_ids[j] for c in candidates]), self._active
        )
        shares = {}
        for candidate in candidates:
            candidate.log_likelihoods = [None] * len(self.contexts)
            candidate.shares = [0.0] * len(self.contexts)
        for j, judgements in zip(self._active, judged, strict=True):
            likelihoods = [mean_score(judgement.log_probabilities) for judgement in judgements]
            scores = likelihoods
            if self._method.score == "logit":
                scores = [mean_score(judgement.logits) for judgement in judgements]
            shares[j] = vote_shares(scores, self._method.score)
            for c, candidate in enumerate(candidates):
                candidate.log_likelihoods[j] = likelihoods[c]
                candidate.shares[j] = shares[j][c]
        return shares

    def _fed_back(
        self,
        shares: dict[int, list[float]],
        candidates: Sequence[Candidate],
        drafters: Sequence[int],
    ) -> list[float]:
        """The weights after the round's feedback. Verifiers keep theirs, so the drafters' joint
        share stays."""
        if self._method.feedback is None or not drafters:
            return self.weights
        drafted = [
            next(c for c, one in enumerate(candidates) if j in one.drafted_by) for j in drafters
        ]
        step = self._method.learning_rate * math.sqrt(1 / len(drafters)) / (len(self.trace) + 1)
        joint = math.fsum(self.weights[j] for j in drafters)
        own = [self.weights[j] / joint for j in drafters]
        judged = [shares[j] for j in drafters]
        raised = feedback(own, judged, drafted, step, self._method.feedback)
        weights = list(self.weights)
        for j, weight in zip(drafters, raised, strict=True):
            weights[j] = weight * joint
        return weights

    def _without_exits(self, weights: list[float]) -> list[float]:
        """Lets members go whose weight fell under the threshold, and renormalises the rest."""
        if self._method.exit_threshold is None:
            return weights
        least = self._method.exit_threshold / len(self.contexts)
        staying = [j for j in self._active if weights[j] >= least]
        if not any(j < len(self._method.members) for j in staying):
            return weights
        for j in set(self._active) - set(staying):
            self.contexts[j].retire()
        self._active = staying
        total = math.fsum(weights[j] for j in staying)
        return [weights[j] / total if j in staying else 0.0 for j in range(len(weights))]


def distinct_candidates(drafts: dict[int, Draft], members: int) -> list[Candidate]:
    """One candidate for each distinct (bytes, ended), in the order of who drafted it first.

    `drafts` are by member, `members` counts all of them.
    """
    candidates: dict[tuple[bytes, bool], Candidate] = {}
    for j, draft in drafts.items():
        key = (draft.data, draft.ended)
        if key not in candidates:
            token_ids: list[list[int]] = [[] for _ in range(members)]
            candidates[key] = Candidate(draft.data, draft.ended, [], token_ids)
        candidates[key].drafted_by.append(j)
        candidates[key].token_ids[j] = draft.ids
    return list(candidates.values())
