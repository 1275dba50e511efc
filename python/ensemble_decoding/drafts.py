"""Drafted segments, and where they may be cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .text import complete_prefix
from .token_table import TokenTable


class Draft(NamedTuple):
    """A drafted segment: `ids`, end-of-text included if `ended`, and the bytes they spell."""

    ids: list[int]
    data: bytes
    ended: bool


def without_partial_word(draft: Draft, table: TokenTable, pending: bytes = b"") -> Draft:
    """Drops a trailing partial word, and never anything of a draft that ended the text.

    Keeps the longest run of whole tokens that ends a character and that the next token leaves by
    beginning with white space, or that ends in something that is neither letter, digit nor white
    space; all of it if there is no such run.
    """
    if draft.ended:
        return draft
    for count in range(len(draft.ids), 0, -1):
        data = pending + table.spell(draft.ids[:count])
        if complete_prefix(data) == len(data) and (
            _ends_a_word(data) or _begins_with_space(table, draft.ids[count : count + 1])
        ):
            return Draft(draft.ids[:count], data[len(pending) :], False)
    return draft


def _ends_a_word(data: bytes) -> bool:
    last = data.decode("utf-8", "replace")[-1:]
    return bool(last) and not (last.isalnum() or last.isspace())


def _begins_with_space(table: TokenTable, ids: Sequence[int]) -> bool:
    return bool(ids) and table.spell(ids).decode("utf-8", "replace")[:1].isspace()
