"""SpecEM: every member drafts the next segment, all judge all drafts, the winner is committed.

Method: "SpecFuse: Ensembling LLMs via Next-Segment Prediction" and its successor SpecEM, without
training. A round drafts, verifies every distinct draft in one packed pass per member, feeds the
round's scores back into the members' weights, votes and commits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .context import Draft
from .generation import DecodingRun, check_members, check_request
from .member import Member, Messages
from .specem_vote import feedback, mean_log_probability, vote, vote_shares
from .text import complete_prefix
from .trace import Candidate, EnsembleOutput, Round, StageClock, Trace


class SpecEM:
    """An ensemble of language models that decodes segment by segment.

    Args:
        members: one or more `Member`. The limit on new tokens counts those of the first.
        segment_length: tokens that each member drafts in a round. 10 as in the released code of
            SpecEM; 5 to 15 work.
        learning_rate: how fast the weights follow who wins; 0 keeps them equal. In round t of K
            members the step is `learning_rate * sqrt(1 / K) / t`. 1.0 is our choice: the released
            code's default switches the feedback off, the paper's ablation finds it worth having.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """

    def __init__(
        self,
        members: Sequence[Member],
        *,
        segment_length: int = 10,
        learning_rate: float = 1.0,
    ) -> None:
        self.members = check_members(members)
        if isinstance(segment_length, bool) or not isinstance(segment_length, int):
            raise TypeError(f"segment_length must be an int, got {type(segment_length).__name__}")
        if segment_length < 1:
            raise ValueError(f"segment_length must be at least 1, got {segment_length}")
        if isinstance(learning_rate, bool) or not isinstance(learning_rate, int | float):
            raise TypeError(f"learning_rate must be a number, got {type(learning_rate).__name__}")
        if not 0 <= learning_rate < math.inf:
            raise ValueError(f"learning_rate must be finite and at least 0, got {learning_rate}")
        self.segment_length = segment_length
        self.learning_rate = float(learning_rate)

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        max_new_tokens: int = 256,
    ) -> EnsembleOutput:
        """Answers a prompt, greedily.

        Args:
            prompt: plain text, encoded with each tokenizer's defaults.
            messages: instead of `prompt`, a conversation of `{"role": ..., "content": ...}`,
                rendered with each member's chat template; a member without one gets the contents
                joined by blank lines.
            max_new_tokens: tokens of the first member, end-of-text included. Never more; exact
                where all members share a tokenizer, else cut back to a complete character.

        Raises:
            TypeError, ValueError: bad arguments, before anything is decoded.
            DecodingError: a failure on the way, with what was generated as its `output`.
        """
        run = self.stream(prompt, messages=messages, max_new_tokens=max_new_tokens)
        for _ in run:
            pass
        return run.output

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        max_new_tokens: int = 256,
    ) -> SpecEMRun:
        """As `generate`, but an iterator of `StreamedText(text, round)`, one for each round. Only
        committed text is given out, and the pieces join to the text of the run's `output`."""
        check_request(prompt, messages, max_new_tokens)
        prompts = [member.encode_prompt(prompt, messages=messages) for member in self.members]
        return SpecEMRun(self, prompts, max_new_tokens)


class SpecEMRun(DecodingRun):
    """One run of `SpecEM`: iterate over it for the committed text, then read `output`."""

    def __init__(
        self, method: SpecEM, prompts: Sequence[Sequence[int]], max_new_tokens: int
    ) -> None:
        members = method.members
        options = {
            "segment_length": method.segment_length,
            "learning_rate": method.learning_rate,
            "max_new_tokens": max_new_tokens,
        }
        trace = Trace("specem", [member.name for member in members], options)
        contexts = [member.new_context() for member in members]
        super().__init__(contexts, prompts, trace, max_new_tokens)
        self.weights = [1 / len(members)] * len(members)
        self._segment_length = method.segment_length
        self._learning_rate = method.learning_rate
        self._fingerprints = [member.table.fingerprint for member in members]

    def _round(self) -> tuple[Round, bytes] | None:
        clock = StageClock()
        if any(context.room is not None and context.room < 1 for context in self.contexts):
            return None
        candidates = distinct_candidates([self._draft(j) for j in range(len(self.contexts))])
        clock.stop("draft")
        dropped = [self._encode(j, candidates) for j in range(len(self.contexts))]
        clock.stop("encode")
        for j, context in enumerate(self.contexts):
            longest = max(len(candidate.token_ids[j]) for candidate in candidates)
            if context.room is not None and longest > context.room:
                return None
        shares = self._verify(candidates)
        clock.stop("verify")
        step = self._learning_rate * math.sqrt(1 / len(shares)) / (len(self.trace) + 1)
        drafted = [
            next(c for c, candidate in enumerate(candidates) if j in candidate.drafted_by)
            for j in range(len(shares))
        ]
        weights = feedback(self.weights, shares, drafted, step)
        winner, reason = vote(weights, shares, candidates)
        data, counts, cut = self._cut(candidates[winner])
        for context, count in zip(self.contexts, counts, strict=True):
            context.commit(winner, count)
        clock.stop("commit")
        # Everything that can fail has been done; from here on the round counts.
        self.weights = weights
        for j, by_candidate in enumerate(dropped):
            self.unspelled[j] += by_candidate[winner]
        if candidates[winner].ended and not cut:
            self.finish_reason = "stop"
        elif cut or self.remaining < 1:
            self.finish_reason = "length"
        index = len(self.trace)
        return Round(index, candidates, weights, winner, reason, counts, clock.seconds), data

    def _draft(self, j: int) -> Draft:
        # A member that counts like the first never drafts what the limit would cut off again.
        counts_alike = self._fingerprints[j] == self._fingerprints[0]
        length = min(self._segment_length, self.remaining) if counts_alike else self._segment_length
        return self.contexts[j].draft(length, self.pending)

    def _encode(self, j: int, candidates: Sequence[Candidate]) -> list[bytes]:
        """Sets member j's ids of each candidate: its own draft's, those of a drafter with an equal
        token table, else the encoding of the bytes. Returns the bytes it has no token for."""
        member, dropped = self.contexts[j].member, []
        for candidate in candidates:
            drafters = [j] if j in candidate.drafted_by else candidate.drafted_by
            same = [i for i in drafters if self._fingerprints[i] == self._fingerprints[j]]
            if same:
                candidate.token_ids[j] = candidate.token_ids[same[0]]
                dropped.append(b"")
                continue
            ids, without_token = member.encoder.encode(candidate.data)
            if candidate.ended and member.end_of_text_ids:
                ids = [*ids, member.end_of_text_ids[0]]
            candidate.token_ids[j] = list(ids)
            dropped.append(without_token)
        return dropped

    def _verify(self, candidates: Sequence[Candidate]) -> list[list[float]]:
        """Each member's shares of the candidates; the scores are noted in the candidates."""
        shares = []
        for j, context in enumerate(self.contexts):
            scores = context.verify([candidate.token_ids[j] for candidate in candidates])
            log_likelihoods = [mean_log_probability(row) for row in scores]
            shares.append(vote_shares(log_likelihoods))
            for c, candidate in enumerate(candidates):
                candidate.log_likelihoods.append(log_likelihoods[c])
                candidate.shares.append(shares[j][c])
        return shares

    def _cut(self, winner: Candidate) -> tuple[bytes, list[int], bool]:
        """What the limit leaves of the winner: its bytes, each member's number of tokens, and
        whether anything was cut off."""
        first, counts = winner.token_ids[0], [len(ids) for ids in winner.token_ids]
        if len(first) < self.remaining or (winner.ended and len(first) == self.remaining):
            return winner.data, counts, False
        spell = self.contexts[0].member.table.spell
        count, data = min(len(first), self.remaining), b""
        while count:
            data = self.pending + spell(first[:count])
            if len(set(self._fingerprints)) == 1 or complete_prefix(data) == len(data):
                break
            count -= 1
        if count == len(first):
            return winner.data, counts, False
        data = spell(first[:count])
        for j, context in enumerate(self.contexts):
            counts[j] = _whole_tokens(context.member, winner.token_ids[j], len(data))
        counts[0] = count
        return data, counts, True


def distinct_candidates(drafts: Sequence[Draft]) -> list[Candidate]:
    """One candidate for each distinct (bytes, ended), in the order of who drafted it first."""
    candidates: dict[tuple[bytes, bool], Candidate] = {}
    for j, draft in enumerate(drafts):
        key = (draft.data, draft.ended)
        if key not in candidates:
            token_ids: list[list[int]] = [[] for _ in drafts]
            candidates[key] = Candidate(draft.data, draft.ended, [], token_ids)
        candidates[key].drafted_by.append(j)
        candidates[key].token_ids[j] = draft.ids
    return list(candidates.values())


def _whole_tokens(member: Member, ids: Sequence[int], length: int) -> int:
    """How many of `ids` spell at most `length` bytes of text."""
    spelled = 0
    for count, token in enumerate(ids):
        spelled += len(member.table.spell((token,)))
        if spelled > length or member.is_end_of_text(token):
            return count
    return len(ids)
