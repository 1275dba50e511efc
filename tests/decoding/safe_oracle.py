"""SAFE, slowly: dicts of bytes, the whole text encoded again for each draft, and a whole forward
pass for each row. Nothing of the package is used."""

from __future__ import annotations

import math

from tests.decoding.slow_reader import SlowDecision, best, counted, drawn, reader
from tests.decoding.token_ensemble_oracle import END, SlowEnsemble, held_back, order, softmax

SURE = 0.5
LIKELY = 0.1
TO_COMPLETE_A_CHARACTER = 3


class SlowSafe:
    """`round()` gives its decisions; `response`, `ids` (the drafter's) and `ended` are the state.

    Members are (model, tokenizer), the drafter first.
    """

    def __init__(
        self,
        members,
        prompt,
        *,
        draft_length=5,
        ensemble_when="safe",
        alignment="union",
        k=10,
        weights=None,
        sharpen="prefix",
        limit=10**6,
        seed=None,
        **options,
    ):
        self.members = [reader(model, tokenizer, prompt) for model, tokenizer in members]
        self.drafter = self.members[0]
        self.weights = weights or [1.0] * len(members)
        asked = ensemble_when != "never"
        self.asked = [j for j in range(1, len(members)) if asked and self.weights[j]]
        self.same = [one.has_the_table_of(self.drafter) for one in self.members]
        self.draft_length, self.when, self.sharpen = draft_length, ensemble_when, sharpen
        self.by_id = alignment == "identity"
        # Tables without two ids of the same bytes: by bytes is by id.
        self.ensemble = SlowEnsemble(
            self.members,
            weights=self.weights,
            alignment="top_k" if alignment == "top_k" else "union",
            k=k,
        )
        self.limit, self.seed, self.options = limit, seed, options
        self.ids, self.response, self.steps = [], b"", 0
        # Whether end-of-text was written, and whether the limit was reached.
        self.ended = self.over = False

    def round(self):
        if self.when == "always":
            return self._step()
        draft = self._draft()
        if not self.asked:
            tokens = [self.drafter.token(number) for number in draft]
            self._commit(draft)
            return [SlowDecision(token, token, "drafter") for token in tokens[: self.committed]]
        readings = {j: self._reading(j, draft) for j in self.asked}
        decisions, kept = [], []
        for number in draft:
            decision = self._judged(number, kept, readings)
            decisions.append(decision)
            if decision.why == "replaced":
                whole = self._commit(kept + self._written(decision.chosen))
                self.ended |= decision.chosen is END
                return decisions if self.committed == whole else decisions[: self.committed]
            kept.append(number)
        self._commit(draft)
        return decisions[: self.committed]

    # Drafting and committing

    def _draft(self):
        draft = []
        length = min(self.draft_length, self.limit - len(self.ids))
        foreign = not all(self.same[j] for j in self.asked)

        def inside():
            return foreign and held_back(self.response + self.drafter.spell(draft))

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
        return drawn(own, self.drafter.usable, counted(self.seed, len(ids)))

    def _written(self, token):
        """The drafter's ids for a token that was chosen."""
        if token is END:
            return self.drafter.ids_of.get(END, [])[:1]
        if token in self.drafter.ids_of:
            return [self.drafter.canonical(token)]
        return self.drafter.encoded(token)

    def _commit(self, ids):
        """As many as the limit allows; returns how many there were."""
        whole, room = len(ids), self.limit - len(self.ids)
        if len(ids) >= room and not (len(ids) == room and self.drafter.end in ids[-1:]):
            self.over = True
            ids = ids[:room]
            while not all(self.same) and ids and held_back(self.response + self.drafter.spell(ids)):
                ids = ids[:-1]
        self.ids += ids
        self.response += self.drafter.spell(ids)
        self.committed = len(ids)
        self.ended = self.drafter.end is not None and self.drafter.end in ids[-1:]
        return whole

    # Verifying

    def _reading(self, j, draft):
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

    def _judged(self, number, kept, readings):
        drafted = self.drafter.token(number)
        offset = len(self.response + self.drafter.spell(kept))
        before, own = {0: self.ids + kept}, {0: number}
        for j, places in readings.items():
            if self.same[j]:
                before[j], own[j] = before[0], number
            elif offset in places:
                before[j], own[j] = places[offset]
        raw = {j: self.members[j].row(ids) for j, ids in before.items()}
        given = {j: self._probability(raw[j], own[j]) for j in raw}
        probabilities = [given.get(j) for j in range(len(self.members))]
        if len(before) < 1 + len(self.asked):
            return SlowDecision(drafted, drafted, "boundary", probabilities, same_bytes=False)
        mean = sum(self.weights[j] * p for j, p in given.items()) / sum(self.weights)
        can = all(own[j] is not None for j in self.asked)
        tokens = [self.members[j].token(own[j]) for j in self.asked] if can else [b""]
        likeliest = [self.members[j].likeliest(raw[j]) for j in self.asked]
        best_ones = [self.members[j].token(i) for j, i in zip(self.asked, likeliest, strict=True)]
        rows = {j: self.members[j].row(ids, **self.options) for j, ids in before.items()}
        mixed, plain = self._mixture(rows)
        argmax = best(plain)
        if (tokens == best_ones and self.seed is None) or mean > SURE:
            why = "agree" if tokens == best_ones and self.seed is None else "sure"
            same = all(token == drafted for token in tokens)
            return SlowDecision(
                drafted, drafted, why, probabilities, mean, same_bytes=same, argmax=argmax
            )
        chosen = best(mixed) if self.seed is None else self._accepted(drafted, mixed, rows[0], kept)
        mixture = [mixed.get(drafted, 0.0), mixed.get(chosen, 0.0)]
        why = "kept" if chosen == drafted else "replaced"
        return SlowDecision(drafted, chosen, why, probabilities, mean, mixture, argmax=argmax)

    @staticmethod
    def _probability(row, number):
        """0 for a member that has no end of text where the text ends."""
        return 0.0 if number is None else softmax(dict(enumerate(row)))[number]

    def _accepted(self, drafted, mixed, row, kept):
        position = len(self.ids) + len(kept)
        own = self._drafters(row)
        if counted(self.seed, position, b"accept") * own[drafted] < mixed.get(drafted, 0.0):
            return drafted
        rest = {token: max(p - own.get(token, 0.0), 0.0) for token, p in mixed.items()}
        total = math.fsum(rest.values())
        rest = {token: p / total for token, p in rest.items()}
        return drawn(rest, self._ranked(rest), counted(self.seed, position, b"replace"))

    def _drafters(self, row):
        """The distribution that the drafter draws from, by token."""
        own = softmax({number: row[number] for number in self.drafter.usable})
        return {
            token: math.fsum(own[number] for number in numbers)
            for token, numbers in self.drafter.ids_of.items()
        }

    # The full ensemble

    def _step(self):
        complete = self.response[: len(self.response) - len(held_back(self.response))]
        rows = {0: self.drafter.row(self.ids, **self.options)}
        for j in self.asked:
            if self.same[j]:
                rows[j] = self.members[j].row(self.ids, **self.options)
            elif complete == self.response:
                rows[j] = self.members[j].row(self.members[j].encoded(complete), **self.options)
        mixed, plain = self._mixture(rows)
        if self.seed is None:
            chosen = best(mixed)
        else:
            chosen = drawn(mixed, self._ranked(mixed), counted(self.seed, self.steps))
        self.steps += 1
        drafted = self.drafter.token(self.drafter.likeliest(rows[0]))
        self._commit(self._written(chosen))
        self.ended |= chosen is END
        mixture = [mixed.get(drafted, 0.0), mixed[chosen]]
        why = "kept" if chosen == drafted else "replaced"
        return [SlowDecision(drafted, chosen, why, mixture=mixture, argmax=best(plain))]

    def _mixture(self, rows):
        """With and without sharpening."""
        slow = self.ensemble
        voters = [j for j in rows if self.weights[j]] or [0]
        own = slow._top_k(voters, rows) if slow.alignment == "top_k" else slow._union(voters, rows)
        total = sum(self.weights[j] for j in voters)
        slow.mean = "arithmetic"
        plain = mixed = slow._mean(voters, own, total)
        if max(plain.values()) < SURE and self.sharpen == "geometric":
            slow.mean = "geometric"
            mixed = slow._mean(voters, own, total)
        elif max(plain.values()) < SURE and self.sharpen == "prefix":
            mixed = {token: p + self._continued(token, p, plain) for token, p in plain.items()}
            mass = math.fsum(mixed.values())
            mixed = {token: p / mass for token, p in mixed.items()}
        return mixed, plain

    def _continued(self, token, probability, plain):
        if token is END or token not in self.drafter.ids_of or probability <= LIKELY:
            return 0.0
        longer = (other for other in plain if other not in (END, token) and other.startswith(token))
        return math.fsum(plain[other] for other in longer)

    def _ranked(self, tokens):
        if self.by_id:
            return sorted(tokens, key=lambda token: self.drafter.ids_of[token])
        return sorted(tokens, key=order)
