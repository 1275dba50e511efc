"""The encoding of a text that grows and is taken back at its end, without encoding all of it again.

What is written later can change how the end of a text is encoded ("Inc", then "Incorrect"), and
only the end: a *joint* is a place across which no token of the vocabulary reaches and at which
words are told apart, so that what stands before it is encoded in the same way whatever follows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from .joints import WHITE_SPACE
from .text import Encoding, TextEncoder
from .token_table import TokenTable

# In the encoding of each of these must be the encodings of its parts, else no joint is trusted.
_PROBES = ("one two", "one\ntwo", "a.  b", "字 字字", "x\t1 'tis", "0 12 345")


class TextFollower:
    """The encoding of one text, kept up with its changes."""

    def __init__(self, encoder: TextEncoder, table: TokenTable) -> None:
        self._encoder = encoder
        self._joints = table.joints if _splits_at_spaces(encoder) else None
        self._data = b""
        self._written = Encoding([], [], [])
        self._places: list[int] = []  # of the joints in the text, ascending
        self.encoded_bytes = 0

    def encode(self, data: bytes) -> Encoding:
        """The encoding of `data`: what `TextEncoder.encode(data)` gives, but only from the last
        joint on that `data` has in common with the text before it. `encoded_bytes` counts."""
        # A joint is known by the character behind it, which must be the same as well.
        del self._places[bisect_right(self._places, shared_prefix(self._data, data) - 4) :]
        start = self._places[-1] if self._places else 0
        ids, ends, missing = self._written
        kept = bisect_right(ends, start)
        del ids[kept:], ends[kept:], missing[bisect_right(missing, start - 1) :]
        rest = self._encoder.encode(data[start:])
        ids += rest.ids
        ends += [start + end for end in rest.ends]
        missing += [start + place for place in rest.missing]
        self.encoded_bytes += len(data) - start
        self._data = data
        if self._joints is not None:
            in_words = not self._encoder.looks_words_up
            new = ends[kept:]
            self._places += [e for e in new if self._joints.at(data, e, in_words=in_words)]
        return Encoding(list(ids), list(ends), list(missing))


def _splits_at_spaces(encoder: TextEncoder) -> bool:
    """Whether the tokenizer sees nothing across a space, tried on a few texts: one that strips
    spaces, or that treats the first word in a way of its own, does."""
    if encoder.strips_behind_added:
        return False
    for text in _PROBES:
        data = text.encode()
        place = next(i for i, byte in enumerate(data) if byte in WHITE_SPACE)
        whole, left, right = (encoder.encode(part) for part in (data, data[:place], data[place:]))
        if place in whole.ends and whole.ids != left.ids + right.ids:
            return False
    return True


def shared_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many bytes or ids at their beginning the two have in common."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
