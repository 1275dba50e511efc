"""Where texts of a vocabulary can be cut without a change to how either side is encoded."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import torch

WHITE_SPACE = frozenset(b" \t\n\r")
_LINE_ENDS = frozenset(b"\n\r")
_SURROGATE = "\ud800"


class Joints:
    """The joints of texts.

    Two neighbouring characters that stand so in no token are in different tokens of every text.
    Pre-tokenizers, normalizers and merges must not see across either: they do not in front of
    white space that follows something else (the end of a line must follow a word), nor between
    Chinese characters, which are written without spaces and are parts of no others.

    Args:
        token_bytes: the bytes of each id, None for an id that is no text.
    """

    def __init__(self, token_bytes: Iterable[bytes | None]) -> None:
        texts, parts = [], []
        for token in token_bytes:
            if token is None:
                continue
            try:
                texts.append(token.decode())
            except UnicodeDecodeError:
                parts.append(token)
        # Tokens that are no text may reach from one character into the next.
        self._byte_pairs = {pair for part in parts for pair in pairwise(part)}
        self._pairs = _character_pairs(texts)

    def at(self, data: bytes, place: int, *, in_words: bool = True) -> bool:
        """Whether `data` has a joint in front of its byte `place`; `in_words`: also between
        Chinese characters, which pre-tokenizers take for one word."""
        if not 0 < place < len(data) or 0x80 <= data[place] <= 0xBF:
            return False
        left, right = _character_before(data, place), _character_at(data, place)
        if left is None or right is None:
            return False
        if data[place] in _LINE_ENDS:
            # Pre-tokenizers put the ends of lines with the punctuation in front of them.
            apart = left.isalnum()
        elif data[place] in WHITE_SPACE:
            apart = not left.isspace()
        else:
            apart = in_words and _is_ideograph(left) and _is_ideograph(right)
        return (
            apart
            and (data[place - 1], data[place]) not in self._byte_pairs
            and ord(left) << 21 | ord(right) not in self._pairs
        )


def _character_pairs(texts: list[str]) -> set[int]:
    """All neighbours within one text where the second is white space or both are ideographs, as
    `first << 21 | second`."""
    # A lone surrogate is in no token, so that no pair across it is asked for.
    joined = bytearray(_SURROGATE.join(texts).encode("utf-32-le", "surrogatepass"))
    if len(joined) < 8:
        return set()
    characters = torch.frombuffer(joined, dtype=torch.int32).to(torch.int64)
    distinct, places = characters.unique(return_inverse=True)
    kinds = [(chr(c) in " \t\n\r", _is_ideograph(chr(c))) for c in distinct.tolist()]
    space, ideograph = torch.tensor(kinds).T
    first, second = places[:-1], places[1:]
    asked = space[second] | (ideograph[first] & ideograph[second])
    return set(((characters[:-1] << 21) | characters[1:])[asked].unique().tolist())


def _is_ideograph(character: str) -> bool:
    return "\u3400" <= character <= "\u9fff" or "\U00020000" <= character <= "\U0003ffff"


def _character_before(data: bytes, place: int) -> str | None:
    for start in range(place - 1, max(-1, place - 5), -1):
        if not 0x80 <= data[start] <= 0xBF:
            return _decoded(data[start:place])
    return None


def _character_at(data: bytes, place: int) -> str | None:
    end = place + 1
    while end < len(data) and 0x80 <= data[end] <= 0xBF:
        end += 1
    return _decoded(data[place:end])


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
