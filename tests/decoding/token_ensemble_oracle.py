"""Token-level ensembles, slowly: dicts of bytes, and whole forward passes over all ids each step.

Nothing of the package is used. The order of tokens is that of their bytes, end-of-text last.
"""

from __future__ import annotations

import codecs
import hashlib
import math
import struct

import torch

from tests.decoding.text_oracle import NaiveEncoder, bytes_of_ids

END = None


def order(token):
    return (token is END, token or b"")


class SlowMember:
    def __init__(self, model, tokenizer, prompt):
        self.model, self.tokenizer = model, tokenizer
        self.bytes = bytes_of_ids(tokenizer)
        self.end = tokenizer.eos_token_id
        self.encoder = NaiveEncoder(tokenizer)
        self.ids = list(tokenizer(prompt)["input_ids"])
        self.waiting = b""
        self.ids_of = {}
        for number in sorted(self.bytes):
            self.ids_of.setdefault(self.bytes[number], []).append(number)
        if self.end is not None:
            self.ids_of[END] = [self.end]

    def canonical(self, token):
        numbers = self.ids_of[token]
        if token is not END and len(numbers) > 1:
            text = token.decode("utf-8", "replace")
            emitted = self.encoder._backend.encode(text, add_special_tokens=False).ids
            if len(emitted) == 1 and emitted[0] in numbers:
                return emitted[0]
        return numbers[0]

    def logits(self, options):
        with torch.no_grad():
            row = self.model(torch.tensor([self.ids])).logits[0, -1, : len(self.tokenizer)]
        logits = row.tolist()
        usable = {number for numbers in self.ids_of.values() for number in numbers}
        penalty = options.get("repetition_penalty")
        for number in usable & set(self.ids) if penalty else ():
            logits[number] *= penalty if logits[number] < 0 else 1 / penalty
        logits = [value / options.get("temperature", 1) for value in logits]
        if "top_k" in options:
            least = sorted((logits[number] for number in usable), reverse=True)[
                options["top_k"] - 1
            ]
            for number in usable:
                logits[number] = logits[number] if logits[number] >= least else -math.inf
        return logits

    def append(self, token, partial, own=None):
        """`partial`: the bytes of the response before `token` that stop inside a character; `own`:
        the id that this member alone has chosen."""
        if own is not None:
            self.ids.append(own)
            return
        if token is END:
            self.ids += self.ids_of.get(END, [])[:1]
            return
        if not self.waiting and token in self.ids_of:
            self.ids.append(self.canonical(token))
            return
        data = self.waiting + token
        inside = min(len(held_back(partial + token)), len(data))
        ids, dropped = self.encoder.encode(data[: len(data) - inside])
        assert not dropped
        self.ids += ids
        self.waiting = data[len(data) - inside :]


def held_back(data):
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return decoder.getstate()[0]


def softmax(logits):
    highest = max(logits.values())
    powers = {key: math.exp(value - highest) for key, value in logits.items()}
    total = math.fsum(powers.values())
    return {key: power / total for key, power in powers.items()}


def log_sum(values):
    highest = max(values)
    if highest == -math.inf:
        return highest
    return highest + math.log(math.fsum(math.exp(value - highest) for value in values))


class SlowEnsemble:
    """`step()` gives the token (END: end-of-text), its probability in the mixture and in each
    voter (by place), and whether the mixture chose."""

    def __init__(self, members, *, weights, alignment, mean="arithmetic", threshold=None, k=10):
        self.members, self.weights = members, weights
        self.alignment, self.mean, self.threshold, self.k = alignment, mean, threshold, k
        self.response = b""
        self.steps = 0
        self.own = None

    def step(self, seed=None, **options):
        rows = [member.logits(options) for member in self.members]
        token, probability, shares, ensembled = self._choice(rows, seed)
        partial = held_back(self.response)
        for j, member in enumerate(self.members):
            member.append(token, partial, None if ensembled or j else self.own)
        self.response += token or b""
        self.steps += 1
        return token, probability, shares, ensembled

    def _choice(self, rows, seed):
        if self.threshold is not None and not self.members[0].waiting:
            own = softmax(dict(enumerate(rows[0])))
            main = self.members[0]
            usable = [n for numbers in main.ids_of.values() for n in numbers]
            best = max(usable, key=lambda number: (own[number], -number))
            if own[best] >= self.threshold:
                assert seed is None
                self.own = best
                token = END if best == main.end else main.bytes[best]
                return token, own[best], {0: own[best]}, False
        voters = [j for j, w in enumerate(self.weights) if w and not self.members[j].waiting]
        total = sum(self.weights[j] for j in voters)
        own = self._top_k(voters, rows) if self.alignment == "top_k" else self._union(voters, rows)
        mixed = self._mean(voters, own, total)
        tokens = sorted(mixed, key=order)
        if seed is None:
            token = max(tokens, key=lambda token: mixed[token])
        else:
            token = drawn(mixed, seed, self.steps)
        return token, mixed[token], {j: own[j].get(token, 0.0) for j in voters}, True

    def _union(self, voters, rows):
        own = {}
        for j in voters:
            softmaxed = softmax(dict(enumerate(rows[j])))
            own[j] = {
                token: math.fsum(softmaxed[number] for number in numbers)
                for token, numbers in self.members[j].ids_of.items()
            }
        return own

    def _mean(self, voters, own, total):
        tokens = {token for j in voters for token in own[j]}
        share = {j: self.weights[j] / total for j in voters}
        mixed = {t: sum(share[j] * own[j].get(t, 0.0) for j in voters) for t in tokens}
        if self.mean == "geometric":
            common = [t for t in tokens if all(own[j].get(t, 0.0) > 0 for j in voters)]
            if common:
                mixed = {
                    t: math.exp(sum(share[j] * math.log(own[j][t]) for j in voters)) for t in common
                }
        mass = math.fsum(mixed.values())
        return {token: value / mass for token, value in mixed.items()}

    def _top_k(self, voters, rows):
        scores = {
            j: {
                token: log_sum([rows[j][number] for number in numbers])
                for token, numbers in self.members[j].ids_of.items()
            }
            for j in voters
        }
        union = set()
        for j in voters:
            ranked = sorted(scores[j], key=lambda token: (-scores[j][token], order(token)))
            union |= {token for token in ranked[: self.k] if scores[j][token] > -math.inf}
        own = {}
        for j in voters:
            sources = {token: self._source(self.members[j], token) for token in union}
            shared = list(sources.values())
            own[j] = softmax(
                {
                    token: -math.inf
                    if source == ()
                    else scores[j][source[0]] - math.log(shared.count(source))
                    for token, source in sources.items()
                }
            )
        return own

    def _source(self, member, token):
        """A tuple of the token whose score counts for `token`; empty if there is none."""
        if token in member.ids_of:
            return (token,)
        if token is END:
            return ()
        return (member.bytes[member.encoder.encode(token)[0][0]],)


def drawn(mixed, seed, position):
    digest = hashlib.blake2b(struct.pack("<Qq", seed, position), digest_size=8).digest()
    number = (int.from_bytes(digest, "little") >> 11) / 2**53
    reached = 0.0
    for token in sorted(mixed, key=order):
        reached += mixed[token]
        if reached > number:
            return token
    raise AssertionError("probabilities must sum to 1")
