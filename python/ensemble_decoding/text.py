"""The bridge between members: text travels as bytes and is written in each member's tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ensemble_kernels.profiling import annotate

from .plain_tokenizer import plain_tokenizer
from .token_table import TokenTable

__all__ = ["CharacterDecoder", "Encoding", "TextEncoder", "TokenTable", "complete_prefix"]

# Bytes looked at behind an odd character before the next is known to be far away.
_FIRST_WINDOW = 64
# `surrogateescape` turns each byte that is no UTF-8 into one of these.
_RUNS = re.compile("([\udc80-\udcff]+)")


class Encoding(NamedTuple):
    """Bytes as ids: where in the bytes each id ends, and the places of those that no token can
    write."""

    ids: list[int]
    ends: list[int]
    missing: list[int]

    def unspelled(self, data: bytes) -> bytes:
        """The bytes without a token in `data`, all of what was encoded or its beginning."""
        return bytes(data[place] for place in self.missing if place < len(data))


class TextEncoder:
    """Writes bytes as ids of one tokenizer, as a text of their own.

    No special tokens, no dummy prefix, and the text of a special token is text. The ids spell
    the bytes, the missing ones aside, even where the tokenizer would normalise or lose some: its
    own tokens are kept as far as they spell the bytes and end on a character, the next character
    is written with the longest matching tokens, and what follows is encoded afresh.
    """

    def __init__(self, tokenizer: Any, table: TokenTable) -> None:
        """`table` must be the table of `tokenizer`, which is not modified."""
        self._plain = plain_tokenizer(tokenizer, table.token_bytes)
        self._table = table
        self._token_bytes: list[Any] = table.token_bytes

    @property
    def strips_behind_added(self) -> bool:
        """Whether the tokenizer has an added token that takes the white space behind it."""
        added = self._plain.get_added_tokens_decoder().values()
        return any(token.rstrip and not token.special for token in added)

    @property
    def looks_words_up(self) -> bool:
        """Whether a word of the vocabulary is one token, even where merges do not lead to it."""
        return bool(getattr(self._plain.model, "ignore_merges", False))

    def encode(self, data: bytes) -> Encoding:
        """The ids that spell `data`, with what had to be left out."""
        with annotate("tokenize"):
            try:
                ids = self._tokens(data)
                if b"".join([self._token_bytes[number] for number in ids]) == data:
                    return Encoding(ids, self._table.ends(ids), [])
            except (UnicodeDecodeError, TypeError, IndexError):
                pass  # no UTF-8, or a token that is no text (<unk>) or that the model does not have
            return self._encode_piecewise(data)

    def _tokens(self, text: bytes) -> list[int]:
        return self._plain.encode(text.decode(), add_special_tokens=False).ids

    def _encode_piecewise(self, data: bytes) -> Encoding:
        written = Encoding([], [], [])
        start = 0
        for run, is_text in _runs(data):
            if is_text:
                self._write_text(run, start, written)
            else:
                self._write_bytes(run, start, written)
            start += len(run)
        return written

    def _write_text(self, text: bytes, start: int, written: Encoding) -> None:
        """Adds the ids of `text`, which stands at `start` in the whole."""
        position = 0
        window = len(text)
        while position < len(text):
            piece = text[position : position + window]
            piece = piece[: complete_prefix(piece)]
            tokens = self._tokens(piece)
            count, length = self._matching(tokens, piece)
            # Where a window ends shapes the tokens before it, so nothing near its end is used.
            # It grows with the distance to the next odd character: the work stays linear.
            if position + len(piece) < len(text) and 2 * length > len(piece):
                window *= 2
                continue
            written.ids.extend(tokens[:count])
            written.ends.extend(self._table.ends(tokens[:count], start + position))
            position += length
            if position < len(text):
                end = _character_end(text, position)
                self._write_bytes(text[position:end], start + position, written)
                position = end
            window = _FIRST_WINDOW

    def _matching(self, tokens: list[int], text: bytes) -> tuple[int, int]:
        """How many tokens spell a prefix of `text` that ends on a character, and its length."""
        kept = (0, 0)
        length = 0
        for count, number in enumerate(tokens, 1):
            token = self._token_bytes[number] if number < len(self._token_bytes) else None
            if token is None or not text.startswith(token, length):
                break
            length += len(token)
            if not _is_continuation(text, length):
                kept = (count, length)
        return kept

    def _write_bytes(self, data: bytes, start: int, written: Encoding) -> None:
        position = 0
        while position < len(data):
            number = self._table.longest_match(data, position)
            if number is None:
                written.missing.append(start + position)
                position += 1
            else:
                position += len(self._token_bytes[number])
                written.ids.append(number)
                written.ends.append(start + position)


class CharacterDecoder:
    """Bytes in pieces to text: `pending` holds the bytes of a character not yet complete."""

    def __init__(self) -> None:
        self.pending = b""

    def feed(self, data: bytes) -> str:
        """The text that `data` completes; bytes that can never become one give U+FFFD."""
        data = self.pending + data
        end = complete_prefix(data)
        self.pending = data[end:]
        return data[:end].decode("utf-8", "replace")


def complete_prefix(data: bytes) -> int:
    """Length in bytes of the longest prefix of `data` that does not end inside a character.

    Bytes that can never become one, as the first of b"\\xc2\\xc2", are complete (The Unicode
    Standard, table 3-7, "Well-Formed UTF-8 Byte Sequences").
    """
    for back in range(1, min(3, len(data)) + 1):
        lead = data[-back]
        if 0x80 <= lead <= 0xBF:
            continue
        needed = 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2
        if not 0xC2 <= lead <= 0xF4 or back >= needed:
            break
        if back >= 2 and not _may_follow(lead, data[1 - back]):
            break
        return len(data) - back
    return len(data)


def check_text(name: str, text: str) -> None:
    """Raises ValueError for half a surrogate pair, which is no character: no tokenizer takes it,
    and it has no bytes."""
    for place, character in enumerate(text):
        if "\ud800" <= character <= "\udfff":
            raise ValueError(f"{name} must be text, got a lone surrogate at character {place}")


def _may_follow(lead: int, second: int) -> bool:
    """Whether a second byte, a continuation, is neither overlong, a surrogate nor too high."""
    low = {0xE0: 0xA0, 0xF0: 0x90}.get(lead, 0x80)
    high = {0xED: 0x9F, 0xF4: 0x8F}.get(lead, 0xBF)
    return low <= second <= high


def _runs(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """The longest stretches of UTF-8 (True) and of bytes that are none (False), in order."""
    for index, run in enumerate(_RUNS.split(data.decode("utf-8", "surrogateescape"))):
        if run:
            yield run.encode("utf-8", "surrogateescape"), index % 2 == 0


def _character_end(text: bytes, start: int) -> int:
    end = start + 1
    while _is_continuation(text, end):
        end += 1
    return end


def _is_continuation(text: bytes, position: int) -> bool:
    return position < len(text) and text[position] & 0xC0 == 0x80
