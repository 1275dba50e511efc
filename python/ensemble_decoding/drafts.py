"""Drafted segments: how they are written, and where they may be cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .text import complete_prefix
from .token_table import TokenTable

if TYPE_CHECKING:
    from .context import DecodingContext

# At most this many tokens beyond the draft's length to complete a character: four bytes are the
# longest character, and its first one has been drafted.
_COMPLETION_TOKENS = 3


class Draft(NamedTuple):
    """A drafted segment: `ids`, end-of-text included if `ended`, the bytes they spell, and, where
    asked for, the logits `[n]` that each id was chosen from, if it was cut also those behind it."""

    ids: list[int]
    data: bytes
    ended: bool
    rows: Sequence[Tensor] = ()


def write_draft(
    context: DecodingContext,
    length: int,
    pending: bytes,
    whole_characters: bool = True,
    begun: Sequence[int] = (),
    rows: Sequence[Tensor] = (),
) -> Draft:
    """Writes up to `length` tokens after the committed ones, fewer where the text ends, and up to
    three more to complete a character, of which the committed text may hold the first bytes
    (`pending`). The keys and values of all of them but the last one stay staged.

    `begun` are ids that the draft begins with, which are staged already and count for its length;
    `rows` then has the logits for each and behind the last.
    """
    member, ids, rows = context.member, list(begun), list(rows or [context.next_logits])
    most = length + _COMPLETION_TOKENS if whole_characters else length
    if context.room is not None:
        length, most = min(length, context.room), min(most, context.room)
    data = member.table.spell(ids)
    complete = len(ids) if complete_prefix(pending + data) == len(pending + data) else 0
    if ids and len(ids) >= length:
        return Draft(ids, data, False, rows)
    while True:
        token = _choose(context, rows[-1], ids)
        ids.append(token)
        if member.is_end_of_text(token):
            break
        data += member.table.spell((token,))
        if complete_prefix(pending + data) == len(pending + data):
            complete = len(ids)
        if len(ids) >= length and (complete == len(ids) or not whole_characters):
            break
        if len(ids) == most:
            break
        logits = context.passes.decode(token)
        rows.append(logits[: member.logits_size(logits)])
    ended = member.is_end_of_text(ids[-1])
    if not ended and complete and whole_characters:
        # Still inside a character: fall back to the last token that ended one. If there is none,
        # the draft stands as it is.
        ids = ids[:complete]
        data = member.table.spell(ids)
    return Draft(ids, data, ended, rows[: len(ids) + 1])


def _choose(context: DecodingContext, row: Tensor, drafted: Sequence[int]) -> int:
    """The next token among text and end-of-text, from the logits `row [n]`."""
    member, chooser = context.member, context.chooser
    ids = [*context.ids, *drafted] if chooser.processors else context.ids
    place = len(context.ids) - context.prompt_length + len(drafted)
    # A greedy choice is seldom a suppressed id, so it is made first and mended where it is one.
    token = -1 if chooser.reads_suppressed else chooser.choose(row, ids, place)
    if token < 0 or member.is_suppressed(token):
        allowed = row.index_fill(0, member.suppressed_index(row.device), -torch.inf)
        token = chooser.choose(allowed, ids, place)
    if not float(row[token]) > -torch.inf or member.is_suppressed(token):
        raise context.passes.no_distribution(len(context.ids) + len(drafted))
    return token


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
            return Draft(draft.ids[:count], data[len(pending) :], False, draft.rows[: count + 1])
    return draft


def _ends_a_word(data: bytes) -> bool:
    last = data.decode("utf-8", "replace")[-1:]
    return bool(last) and not (last.isalnum() or last.isspace())


def _begins_with_space(table: TokenTable, ids: Sequence[int]) -> bool:
    return bool(ids) and table.spell(ids).decode("utf-8", "replace")[:1].isspace()
