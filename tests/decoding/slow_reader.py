"""Reads slowly: a whole forward pass for each row. Nothing of the package is used."""

from __future__ import annotations

import hashlib
import struct
from functools import cache

from tests.decoding.token_ensemble_oracle import END, SlowMember


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


def counted(seed, position):
    digest = hashlib.blake2b(struct.pack("<Qq", seed, position), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53
