"""The token tables of which a `VocabularyAlignment` is made: checked, fingerprinted, stored."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class TokenTable:
    """One model's tokens: the bytes of each id (None: not a text token), the ids that end the
    text, and the ids that the tokenizer really emits where several share their bytes."""

    token_bytes: tuple[bytes | None, ...]
    end_of_text_ids: tuple[int, ...]
    canonical_ids: dict[bytes, int]

    @cached_property
    def texts(self) -> list[bytes | None]:
        """The bytes of each id that stands for text: an id that ends the text does not."""
        texts = [token or None for token in self.token_bytes]
        for end in self.end_of_text_ids:
            texts[end] = None
        return texts

    @cached_property
    def fingerprint(self) -> str:
        lengths = [-1 if token is None else len(token) for token in self.token_bytes]
        digest = hashlib.sha256()
        for numbers in (lengths, self.end_of_text_ids, sorted(self.canonical_ids.values())):
            digest.update(struct.pack(f"<q{len(numbers)}q", len(numbers), *numbers))
        digest.update(b"".join(token for token in self.token_bytes if token))
        return digest.hexdigest()


def read_tables(
    token_bytes: Sequence[Sequence[bytes | None]],
    end_of_text_ids: Sequence[Sequence[int]] | None,
    canonical_ids: Sequence[Mapping[bytes, int]] | None,
) -> tuple[TokenTable, ...]:
    """The arguments of `VocabularyAlignment.from_token_bytes`, checked, as one table per model."""
    if not token_bytes:
        raise ValueError("token_bytes must hold one table per model, got none")
    models = len(token_bytes)
    ends = [()] * models if end_of_text_ids is None else end_of_text_ids
    canonical = [{}] * models if canonical_ids is None else canonical_ids
    for name, given in (("end_of_text_ids", ends), ("canonical_ids", canonical)):
        if len(given) != models:
            raise ValueError(f"{name} must have {models} entries, one per model, got {len(given)}")
    return tuple(
        _read_table(model, *arguments)
        for model, arguments in enumerate(zip(token_bytes, ends, canonical, strict=True))
    )


def fingerprint(tables: Sequence[TokenTable]) -> str:
    return hashlib.sha256("".join(table.fingerprint for table in tables).encode()).hexdigest()


def check_id(name: str, token_id: Any, size: int) -> None:
    if isinstance(token_id, bool) or not isinstance(token_id, int):
        raise TypeError(f"{name} must be an int, got {type(token_id).__name__}")
    if not 0 <= token_id < size:
        raise ValueError(f"{name} must be an id from 0 to {size - 1}, got {token_id}")


def _read_table(
    model: int,
    token_bytes: Sequence[bytes | None],
    end_of_text_ids: Sequence[int],
    canonical_ids: Mapping[bytes, int],
) -> TokenTable:
    for kind in set(map(type, token_bytes)) - {bytes, type(None)}:
        raise TypeError(f"token_bytes[{model}] must hold bytes or None, got {kind.__name__}")
    for i, token_id in enumerate(end_of_text_ids):
        check_id(f"end_of_text_ids[{model}][{i}]", token_id, len(token_bytes))
    ends = tuple(sorted(set(end_of_text_ids)))
    table = TokenTable(tuple(token_bytes), ends, dict(canonical_ids))
    if not ends and not any(table.texts):
        raise ValueError(f"token_bytes[{model}] must hold the bytes of at least one token")
    for token, token_id in canonical_ids.items():
        name = f"canonical_ids[{model}][{token!r}]"
        check_id(name, token_id, len(token_bytes))
        if table.texts[token_id] != token:
            raise ValueError(f"{name} must be an id of these bytes, got {token_id}")
    return table
