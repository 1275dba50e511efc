"""What the slow oracles read and draw with: rows behind any ids, numbers that are counted."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.decoding.token_ensemble_oracle import END, SlowMember, order


class SlowReader(SlowMember):
    """Gives the row behind any ids of a response."""

    def __init__(self, model, tokenizer, prompt):
        super().__init__(model, tokenizer, prompt)
        self.prompt = list(self.ids)
        self.rows = {}
        self.usable = sorted(number for numbers in self.ids_of.values() for number in numbers)

    def row(self, response, **options):
        key = (*response, *options.items())
        if key not in self.rows:
            self.ids = [*self.prompt, *response]
            self.rows[key] = self.logits(options)
        return self.rows[key]

    def token(self, number):
        return END if number == self.end else self.bytes[number]

    def spell(self, ids):
        return b"".join(self.token(number) or b"" for number in ids)

    def likeliest(self, row):
        return max(self.usable, key=lambda number: (row[number], -number))

    def has_the_table_of(self, other):
        return (self.bytes, self.end) == (other.bytes, other.end)

    def encoded(self, data):
        ids, dropped = self.encoder.encode(data)
        assert not dropped
        return ids


# What it remembers depends on nothing but its arguments.
reader = cache(SlowReader)


@dataclass
class SlowDecision:
    """`why`: "boundary", "agree", "sure", "kept" or "replaced" by the mixture, "drafter"."""

    drafted: Any
    chosen: Any
    why: str
    probabilities: list = field(default_factory=list)
    mean: float | None = None
    mixture: list = field(default_factory=list)
    same_bytes: bool | None = None
    argmax: Any = None


def best(mixed):
    return max(sorted(mixed, key=order), key=lambda token: mixed[token])


def counted(seed, position, purpose=b""):
    packed = struct.pack("<Qq", seed, position)
    digest = hashlib.blake2b(packed, digest_size=8, person=purpose).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53


def drawn(probabilities, ranked, number):
    reached = 0.0
    for token in ranked:
        reached += probabilities[token]
        if reached > number:
            return token
    raise AssertionError("probabilities must sum to 1")
