"""The rule by which bytes become ids, to the letter and slowly, for the tokenizers of the tests."""

from __future__ import annotations

import re

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from .tokenizers_for_tests import byte_character


def bytes_of_ids(tokenizer: PreTrainedTokenizerFast) -> dict[int, bytes]:
    """Of the text tokens alone, read off the strings of the vocabulary."""
    backend = tokenizer.backend_tokenizer
    alphabet = {byte_character(byte): byte for byte in range(256)}
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    spelled = {}
    for token, number in backend.get_vocab().items():
        if number in special:
            continue
        if "ByteLevel" in repr(backend.decoder):
            spelled[number] = bytes(alphabet[character] for character in token)
        elif byte := re.fullmatch("<0x(..)>", token):
            spelled[number] = bytes.fromhex(byte[1])
        else:
            spelled[number] = token.replace("▁", " ").encode()
    return spelled


class NaiveEncoder:
    """After each odd character everything that follows is encoded again."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        """`tokenizer` must put no dummy prefix."""
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.encode_special_tokens = True
        self._bytes = bytes_of_ids(tokenizer)
        names = tokenizer.backend_tokenizer.id_to_token
        # Of two tokens with the same bytes, the letter is emitted and `<0x41>` is not.
        self._ranked = sorted(
            self._bytes,
            key=lambda number: (-len(self._bytes[number]), names(number).startswith("<0x")),
        )

    def encode(self, data: bytes) -> tuple[list[int], bytes]:
        ids: list[int] = []
        dropped = b""
        while data:
            tokens = self._kept(data)
            ids += tokens
            data = data[self._length(tokens) :]
            end = _odd_length(data)
            odd, data = data[:end], data[end:]
            while odd:
                number = next((n for n in self._ranked if odd.startswith(self._bytes[n])), None)
                if number is None:
                    dropped += odd[:1]
                    odd = odd[1:]
                else:
                    ids.append(number)
                    odd = odd[len(self._bytes[number]) :]
        return ids, dropped

    def _kept(self, data: bytes) -> list[int]:
        text = next(data[:n] for n in range(len(data), -1, -1) if is_utf8(data[:n]))
        tokens = self._backend.encode(text.decode(), add_special_tokens=False).ids
        while True:
            spelled = b"".join(self._bytes.get(number, b"\xff") for number in tokens)
            if is_utf8(spelled) and text.startswith(spelled):
                return tokens
            tokens.pop()

    def _length(self, ids: list[int]) -> int:
        return sum(len(self._bytes[number]) for number in ids)


def _odd_length(data: bytes) -> int:
    """Length of the character at the start, or of all that is none up to the next one."""
    for end in range(1, 5):
        if is_utf8(data[:end]):
            return end
    starts = (n for n in range(1, len(data)) if any(is_utf8(data[n : n + k]) for k in (1, 2, 3, 4)))
    return next(starts, len(data))


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
