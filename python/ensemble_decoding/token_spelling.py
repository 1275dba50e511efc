"""How a tokenizer writes bytes as the strings of its vocabulary, read from its decoder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .plain_tokenizer import backend_of, pipeline

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Decoders that leave the bytes of a token in the middle of a text alone.
_NEUTRAL_DECODERS = {"Fuse", "Strip"}
# Decoders that turn a mark into a space.
_SPACE_DECODERS = {"Metaspace", "Replace"}
# What a model may add to the strings of its vocabulary, where decoders differ in what they drop.
_AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's: printable Latin-1 bytes stand for themselves, the others from U+0100 up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update((chr(0x100 + index), byte) for index, byte in enumerate(others))
    return alphabet


BYTE_ALPHABET = _byte_alphabet()


class ByteLevelSpeller:
    """Every character of a token is a byte. Added tokens are not written that way."""

    reads_added_tokens = False

    def __call__(self, token: str) -> bytes:
        try:
            return bytes([BYTE_ALPHABET[character] for character in token])
        except KeyError:
            # As the decoder of `tokenizers` does: not of the alphabet, so literal.
            return token.encode()


class SentencePieceSpeller:
    """Tokens are text in which marks stand for spaces; `<0x0A>` is a byte if `bytes_too`.

    The decoder treats an added token that is in the model's vocabulary too (the runs of `▁` in
    Gemma) like any other.
    """

    reads_added_tokens = True

    def __init__(self, replacements: list[tuple[str, str]], bytes_too: bool) -> None:
        self._replacements = replacements
        self._bytes_too = bytes_too

    def __call__(self, token: str) -> bytes:
        if self._bytes_too and len(token) == 6 and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        for mark, text in self._replacements:
            token = token.replace(mark, text)
        return token.encode()


def speller_of(tokenizer: Any) -> ByteLevelSpeller | SentencePieceSpeller:
    """The speller for the vocabulary of a fast tokenizer, or ValueError if it has no known one."""
    backend = backend_of(tokenizer)
    try:
        decoder = pipeline(backend)["decoder"]
    except Exception as error:  # `tokenizers` has no class for "this part is custom Python"
        raise _unknown(tokenizer, f"parts that cannot be written as JSON ({error})") from None
    parts = list(_flat(decoder))
    kinds = {part["type"] for part in parts} - _NEUTRAL_DECODERS
    replacements = [mark for mark in map(_replacement, parts) if mark is not None]
    affixes = [getattr(backend.model, name, None) for name in _AFFIXES]
    if not any(affixes):
        if kinds == {"ByteLevel"}:
            return ByteLevelSpeller()
        all_known = len(replacements) == sum(part["type"] in _SPACE_DECODERS for part in parts)
        if kinds and kinds <= {*_SPACE_DECODERS, "ByteFallback"} and all_known:
            return SentencePieceSpeller(replacements, "ByteFallback" in kinds)
    found = f"model {type(backend.model).__name__} and decoder {[p['type'] for p in parts] or None}"
    for name, affix in zip(_AFFIXES, affixes, strict=True):
        found += f", {name} {affix!r}" if affix else ""
    raise _unknown(tokenizer, found)


def _flat(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder is None:
        return
    if decoder["type"] == "Sequence":
        for part in decoder["decoders"]:
            yield from _flat(part)
    else:
        yield decoder


def _replacement(part: dict[str, Any]) -> tuple[str, str] | None:
    if part["type"] == "Metaspace":
        return part["replacement"], " "
    if part["type"] == "Replace" and "String" in part["pattern"]:
        return part["pattern"]["String"], part["content"]
    return None


def _unknown(tokenizer: Any, found: str) -> ValueError:
    return ValueError(
        "tokenizer must spell its tokens with the byte-level alphabet or in the way of "
        "SentencePiece (decoder Metaspace, Replace or ByteFallback), got "
        f"{type(tokenizer).__name__} with {found}"
    )
