"""The exact bytes of every token of one tokenizer."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

from tokenizers import Tokenizer

from .joints import Joints
from .plain_tokenizer import backend_of, plain_tokenizer
from .token_spelling import speller_of


class TokenTable:
    """Bytes of each token id, and the way back.

    `token_bytes[id]` are the bytes that the token stands for in the middle of a text, or None
    for an id that is no text: a special token, end-of-text, a hole, an empty token. Decoding ids
    one by one could not give them: a token that holds a part of a character decodes to U+FFFD.
    """

    def __init__(
        self, token_bytes: Sequence[bytes | None], end_of_text_ids: Iterable[int] = ()
    ) -> None:
        self.token_bytes: list[bytes | None] = [token or None for token in token_bytes]
        self.end_of_text_ids = tuple(dict.fromkeys(end_of_text_ids))
        for number in self.end_of_text_ids:
            if not 0 <= number < len(self.token_bytes):
                raise ValueError(
                    f"end_of_text_ids must be from 0 to {len(self.token_bytes) - 1}, the ids that "
                    f"tokenizer and model both have, got {number}"
                )
        self._text = list(self.token_bytes)
        for number in self.end_of_text_ids:
            self.token_bytes[number] = None
        self._spelling = list(self.token_bytes)
        for number in self.end_of_text_ids:
            self._spelling[number] = b""
        self._plain: Tokenizer | None = None

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: Any,
        end_of_text_ids: Iterable[int] = (),
        *,
        vocab_size: int | None = None,
    ) -> TokenTable:
        """The table of a transformers fast tokenizer.

        Tokens are spelled by the byte-level alphabet, or by SentencePiece's rules (a mark for
        the space, `<0x0A>` for a byte), whichever the tokenizer's decoder names; added tokens
        are literal text. `vocab_size` is the number of ids that the model has: the table ends
        there even if the tokenizer has more. Raises ValueError where the bytes cannot be known.
        """
        token_bytes = _bytes_of_ids(tokenizer)
        table = cls(token_bytes[:vocab_size], end_of_text_ids)
        table._plain = plain_tokenizer(tokenizer, table.token_bytes)
        return table

    def __len__(self) -> int:
        return len(self.token_bytes)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 in hex. Equal for two tables iff their bytes and end-of-text ids are."""
        digest = hashlib.sha256(repr(sorted(self.end_of_text_ids)).encode())
        digest.update(_digestible(self.token_bytes))
        return digest.hexdigest()

    @cached_property
    def tokenizer_fingerprint(self) -> str:
        """SHA-256 in hex. Equal for two tables iff their bytes were before some ids became
        end-of-text: the tables of a base model and of its chat model, which stop differently."""
        return hashlib.sha256(_digestible(self._text)).hexdigest()

    def spell(self, ids: Iterable[int]) -> bytes:
        """The bytes of `ids`; end-of-text spells b"". Any other id without text: ValueError."""
        ids = list(ids)
        try:
            if ids and min(ids) < 0:
                raise IndexError
            return b"".join([self._spelling[number] for number in ids])  # type: ignore[misc]
        except (TypeError, IndexError):
            wrong = next(number for number in ids if not self._spells(number))
            raise ValueError(
                f"ids must be text tokens or end-of-text of a table of {len(self)} ids, got {wrong}"
            ) from None

    def ends(self, ids: Iterable[int], start: int = 0) -> list[int]:
        """Where each of `ids`, text or end-of-text, ends in their bytes, which begin at `start`."""
        lengths = [len(self._spelling[number]) for number in ids]  # type: ignore[arg-type]
        return list(accumulate(lengths, initial=start))[1:]

    def _spells(self, number: int) -> bool:
        return 0 <= number < len(self) and self._spelling[number] is not None

    def suppressed_ids(self) -> list[int]:
        """The ids, ascending, that are neither text nor end-of-text: never to be chosen."""
        return [number for number, token in enumerate(self._spelling) if token is None]

    @cached_property
    def canonical_ids(self) -> dict[bytes, int]:
        """For bytes that several ids share: the id that the tokenizer emits for them.

        Gemma's b"a" is 335 as a byte and 236746 as a letter; only the latter is ever seen by the
        model. Where the tokenizer writes them with other tokens altogether: the lowest id.
        """
        lowest = self._lowest_ids
        shared: defaultdict[bytes, list[int]] = defaultdict(list)
        for number, token in enumerate(self.token_bytes):
            if token is not None and lowest[token] != number:
                shared[token].append(number)
        return {
            token: self._emitted(token, [lowest[token], *others])
            for token, others in shared.items()
        }

    def _emitted(self, token: bytes, numbers: list[int]) -> int:
        if self._plain is not None:
            text = token.decode("utf-8", "replace")
            ids = self._plain.encode(text, add_special_tokens=False).ids
            if len(ids) == 1 and ids[0] in numbers:
                return ids[0]
        return min(numbers)

    @cached_property
    def _lowest_ids(self) -> dict[bytes, int]:
        last = len(self.token_bytes) - 1
        return {
            token: last - back for back, token in enumerate(reversed(self.token_bytes)) if token
        }

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return self._lowest_ids | self.canonical_ids

    @cached_property
    def _lengths(self) -> list[list[int]]:
        """For each first byte, the lengths in bytes of the tokens that begin so, descending."""
        lengths: list[set[int]] = [set() for _ in range(256)]
        for token in self._ids:
            lengths[token[0]].add(len(token))
        return [sorted(found, reverse=True) for found in lengths]

    @cached_property
    def joints(self) -> Joints:
        """Where texts of these tokens can be cut; made at first use, as it takes a moment."""
        return Joints(self.token_bytes)

    def token_id(self, token: bytes) -> int | None:
        """The id of exactly these bytes, the canonical one of several, or None."""
        return self._ids.get(token)

    def longest_match(self, data: bytes, start: int = 0) -> int | None:
        """The id of the longest token that `data[start:]` begins with, or None."""
        rest = len(data) - start
        if rest <= 0:
            return None
        ids = self._ids
        for length in self._lengths[data[start]]:
            if length <= rest:
                number = ids.get(data[start : start + length])
                if number is not None:
                    return number
        return None


def _digestible(token_bytes: Sequence[bytes | None]) -> bytes:
    return b"".join(
        b"\xff\xff\xff\xff" if token is None else len(token).to_bytes(4, "big") + token
        for token in token_bytes
    )


def _bytes_of_ids(tokenizer: Any) -> list[bytes | None]:
    backend = backend_of(tokenizer)
    spell = speller_of(tokenizer)
    vocabulary = backend.get_vocab(with_added_tokens=False)
    added = backend.get_added_tokens_decoder()
    token_bytes: list[bytes | None] = [None] * (1 + max((*vocabulary.values(), *added), default=-1))
    for token, number in vocabulary.items():
        token_bytes[number] = spell(token)
    for number, added_token in added.items():
        if not (spell.reads_added_tokens and vocabulary.get(added_token.content) == number):
            token_bytes[number] = added_token.content.encode()
        if added_token.special:
            token_bytes[number] = None
    for number in tokenizer.all_special_ids:
        token_bytes[number] = None
    return token_bytes
