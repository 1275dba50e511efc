"""CoSD, slowly: dicts of bytes, the whole text encoded again for each draft, and a whole forward
pass for each row. Nothing of the package is used."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tests.decoding.slow_reader import counted, reader
from tests.decoding.token_ensemble_oracle import END, held_back, softmax

TO_COMPLETE_A_CHARACTER = 3


@dataclass
class Opinion:
    """An assistant's at one place: its likeliest token, that one's probability, and whether it is
    the token that the assistant has there itself."""

    token: Any
    number: int
    probability: float
    agrees: bool
    entropy: float


@dataclass
class SlowDecision:
    """`opinions` are those of the assistants that were asked and have a token that begins there, by
    place."""

    drafted: Any
    chosen: Any
    probability: float
    opinions: dict = field(default_factory=dict)
    decided_by: int | None = None
    looked_again: bool = False


def rule(alpha, beta):
    return lambda draft, assistant: draft < alpha and assistant > beta * draft


AS_IN_THE_PAPER = rule(0.5, 0.5)


class SlowCoSD:
    """`round()` gives its decisions; `response`, `ids` (the drafter's), `ended` and `over` (at the
    limit) are the state.

    Members are (model, tokenizer), the drafter first; `verdict` takes two probabilities.
    """

    def __init__(
        self,
        members,
        prompt,
        *,
        draft_length=5,
        verdict=AS_IN_THE_PAPER,
        select="most_confident",
        unsure_below=0.5,
        max_entropy=math.inf,
        second_look=False,
        temperatures=None,
        limit=10**6,
        seed=None,
        **options,
    ):
        self.members = [reader(model, tokenizer, prompt) for model, tokenizer in members]
        self.drafter = self.members[0]
        self.same = [one.has_the_table_of(self.drafter) for one in self.members]
        self.draft_length, self.verdict = draft_length, verdict
        self.select, self.unsure_below, self.max_entropy = select, unsure_below, max_entropy
        self.second_look = second_look
        self.temperatures = temperatures or [1.0] * len(members)
        self.limit, self.seed, self.options = limit, seed, options
        self.ids, self.response = [], b""
        self.ended = self.over = False

    def round(self):
        draft = self._draft(min(self.draft_length, self.limit - len(self.ids)))
        places = {j: self._places(j, draft) for j in range(1, len(self.members))}
        decisions, kept = [], []
        for number in draft:
            decision, ids = self._judged(number, kept, places)
            by = decision.decided_by
            if self.second_look and by is not None and not self._stands(by, draft, kept, ids):
                decision.chosen, decision.decided_by = decision.drafted, None
                decision.looked_again, ids = True, [number]
            decisions.append(decision)
            kept += ids
            if decision.decided_by is not None:
                whole = self._commit(kept)
                self.ended |= whole and decision.chosen is END
                return decisions if whole else decisions[: self.committed]
        self._commit(draft)
        return decisions[: self.committed]

    # Drafting and committing

    def _draft(self, length, begun=()):
        draft = list(begun)
        foreign = not all(self.same)

        def inside():
            return foreign and held_back(self.response + self.drafter.spell(draft))

        if draft and len(draft) >= length:
            return draft
        while len(draft) < length or (inside() and len(draft) < length + TO_COMPLETE_A_CHARACTER):
            draft.append(self._drafted(self.ids + draft))
            if draft[-1] == self.drafter.end:
                return draft
        if inside():
            for n in range(len(draft) - 1, 0, -1):
                if not held_back(self.response + self.drafter.spell(draft[:n])):
                    return draft[:n]
        return draft

    def _drafted(self, ids):
        row = self.drafter.row(ids, **self.options)
        if self.seed is None:
            return self.drafter.likeliest(row)
        own = softmax({number: row[number] for number in self.drafter.usable})
        reached, number = 0.0, counted(self.seed, len(ids))
        for token in self.drafter.usable:
            reached += own[token]
            if reached > number:
                return token
        raise AssertionError("probabilities must sum to 1")

    def _written(self, j, opinion):
        """The drafter's ids for an assistant's token; None if it cannot write it."""
        token = opinion.token
        if token is END:
            return self.drafter.ids_of.get(END, [])[:1]
        if self.same[j]:
            return [opinion.number]
        if token in self.drafter.ids_of:
            return [self.drafter.canonical(token)]
        ids, dropped = self.drafter.encoder.encode(token)
        return None if dropped else ids

    def _commit(self, ids):
        """As many as the limit allows; whether that is all of them."""
        whole, room = len(ids), self.limit - len(self.ids)
        if len(ids) >= room and not (len(ids) == room and self.drafter.end in ids[-1:]):
            self.over = True
            ids = ids[:room] if all(self.same) else self._to_a_character(ids[:room])
        self.ids += ids
        self.response += self.drafter.spell(ids)
        self.committed = len(ids)
        self.ended = self.drafter.end is not None and self.drafter.end in ids[-1:]
        return self.committed == whole

    def _to_a_character(self, ids):
        """Back to where the character at the end begins. A lead byte in front of it is no reason to
        go on: that it begins no character is known from what stood there."""
        while ids:
            spelled = self.response + self.drafter.spell(ids)
            begins = len(spelled) - len(held_back(spelled))
            if begins == len(spelled):
                return ids
            while ids and len(self.response + self.drafter.spell(ids)) > begins:
                ids = ids[:-1]
            if len(self.response + self.drafter.spell(ids)) == begins:
                return ids
        return ids

    # Judging

    def _places(self, j, draft):
        """From byte offsets to the ids in front of them and the id that begins there."""
        ids = self.ids + draft
        if not self.same[j]:
            ids = self.members[j].encoded(self.drafter.spell(ids))
            ends = draft[-1] == self.drafter.end and self.members[j].end is not None
            ids = ids + [self.members[j].end] * ends
        places, offset = {}, 0
        for n in range(len(ids) + 1):
            places.setdefault(offset, (ids[:n], ids[n] if n < len(ids) else None))
            offset += len(self.members[j].spell(ids[n : n + 1]))
        return places

    def _judged(self, number, kept, places):
        """The decision, and the drafter's ids for it."""
        drafted = self.drafter.token(number)
        given = self._own(0, self.ids + kept)[number]
        decision = SlowDecision(drafted, drafted, given)
        for j in range(1, len(self.members)):
            opinion = self._opinion(j, number, kept, places[j])
            if opinion is not None:
                decision.opinions[j] = opinion
            if self.select == "cascade":
                last, sure = opinion, opinion and opinion.probability >= self.unsure_below
                if sure or j == len(self.members) - 1:
                    return self._taken(decision, {j: last} if last else {}, number)
        return self._taken(decision, decision.opinions, number)

    def _taken(self, decision, opinions, number):
        willing = [
            j
            for j, one in opinions.items()
            if not one.agrees
            and self.verdict(decision.probability, one.probability)
            and one.entropy <= self.max_entropy
        ]
        best = max(willing, key=lambda j: (opinions[j].probability, -j), default=None)
        ids = None if best is None else self._written(best, opinions[best])
        if ids is None:
            return decision, [number]
        decision.chosen, decision.decided_by = opinions[best].token, best
        return decision, ids

    def _stands(self, j, draft, kept, ids):
        """Whether the assistant likes its own version better, with what the drafter makes of it."""
        other = [*kept, *ids]
        if self.drafter.end not in ids[-1:]:
            other = self._draft(max(len(draft), len(other)), other)
        first, second = (self._liking(j, version, kept) for version in (draft, other))
        return second > first

    def _liking(self, j, draft, kept):
        """The mean log-probability of the assistant's tokens that begin behind what is kept."""
        start = len(self.response + self.drafter.spell(kept))
        places = self._places(j, draft)
        own = [
            math.log(self._own(j, before)[number])
            for offset, (before, number) in places.items()
            if offset >= start and number is not None
        ]
        return math.fsum(own) / len(own) if own else -math.inf

    def _opinion(self, j, number, kept, places):
        one = self.members[j]
        if self.same[j]:
            before, own = self.ids + kept, number
        else:
            offset = len(self.response + self.drafter.spell(kept))
            if offset not in places or places[offset][1] is None:
                return None
            before, own = places[offset]
        likeliest = one.likeliest(one.row(before))
        given = self._own(j, before)
        entropy = -math.fsum(p * math.log(p) for p in given.values() if p)
        agrees = one.token(likeliest) == one.token(own)
        return Opinion(one.token(likeliest), likeliest, given[likeliest], agrees, entropy)

    def _own(self, j, ids):
        row = self.members[j].row(ids)
        return softmax({n: value / self.temperatures[j] for n, value in enumerate(row)})
