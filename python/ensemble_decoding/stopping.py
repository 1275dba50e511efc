"""Where a response ends: limit, end of text, stop strings, stopping criteria.

What a round would commit is cut at the earliest ending, alike for text, ids, trace and caches:
the text to the byte, each member's ids to the last whole token within.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers import StoppingCriteriaList

from .member import Member
from .text import complete_prefix
from .token_table import TokenTable
from .trace import FinishReason


class Ending(NamedTuple):
    """What is left of a segment: its bytes, each member's number of tokens, and why the response
    ends with it (None: it goes on)."""

    data: bytes
    counts: list[int]
    reason: FinishReason | None


class StopRules:
    """The rules of one run.

    Args:
        members: the first one's tokens are counted.
        stop_strings: the text ends right behind the first that the whole response holds.
        stopping_criteria: asked after each token of the first member, as transformers does.
    """

    def __init__(
        self,
        members: Sequence[Member],
        stop_strings: Sequence[str] = (),
        stopping_criteria: StoppingCriteriaList | None = None,
    ) -> None:
        self._members = list(members)
        self._one_tokenizer = len({member.table.fingerprint for member in members}) == 1
        self._stops = [stop.encode() for stop in stop_strings]
        self._criteria = stopping_criteria

    def ending(
        self,
        data: bytes,
        ended: bool,
        token_ids: Sequence[Sequence[int]],
        *,
        response: bytes,
        pending: bytes,
        first_ids: Sequence[int],
        remaining: int,
        late: Sequence[int] | None = None,
    ) -> Ending:
        """How much of a segment stays.

        `data` and `ended` are the segment, `token_ids` its ids by each member; `response` and
        `first_ids` what stands before it, prompt included in the ids; `pending` the bytes at the
        end of the first member's text that stop inside a character; `remaining` the tokens of the
        first member that the limit leaves; `late` for each member how many bytes at the end of
        the response its ids of the segment spell as well (None: none).
        """
        late = late or [0] * len(token_ids)
        first = token_ids[0]
        asked = self._count_by_criteria(first, first_ids)
        count, limited = self._count_by_limit(first, ended, pending, asked, remaining)
        length = len(data)
        if count < len(first):
            length = max(0, len(self._spell(first[:count])) - late[0])
        stop = self._stop_string_end(response, data)
        if stop is not None and stop <= length:
            return Ending(data[:stop], self._whole_tokens(token_ids, stop, late), "stop")
        reason: FinishReason | None = "length" if limited else None
        if count == asked:
            reason = "stop"
        if count == len(first):
            return Ending(data, [len(ids) for ids in token_ids], "stop" if ended else reason)
        counts = self._whole_tokens(token_ids, length, late)
        return Ending(data[:length], [count, *counts[1:]], reason)

    def _count_by_criteria(self, first: Sequence[int], before: Sequence[int]) -> int | None:
        """Tokens of the first member until the criteria say stop; None if they do not."""
        if not self._criteria:
            return None
        ids = torch.tensor([[*before, *first]], device=self._members[0].device)
        for count in range(1, len(first) + 1):
            said = self._criteria(ids[:, : len(before) + count], ())
            if bool(torch.as_tensor(said).all()):
                return count
        return None

    def _count_by_limit(
        self,
        first: Sequence[int],
        ended: bool,
        pending: bytes,
        count: int | None,
        remaining: int,
    ) -> tuple[int, bool]:
        """Tokens of the first member that the limit leaves, and whether the limit ends the run."""
        asked = len(first) if count is None else count
        if asked < remaining or (ended and asked == remaining == len(first)):
            return asked, False
        left = min(asked, remaining)
        if not self._one_tokenizer:
            while left:
                data = pending + self._spell(first[:left])
                if complete_prefix(data) == len(data):
                    break
                left -= 1
        return left, True

    def _stop_string_end(self, response: bytes, data: bytes) -> int | None:
        """Bytes of `data` up to the end of the first stop string in the whole response."""
        ends = []
        for stop in self._stops:
            # One that ends before the segment would have ended the run already.
            begin = max(0, len(response) + 1 - len(stop))
            found = (response[begin:] + data).find(stop)
            if found >= 0:
                ends.append(begin + found + len(stop) - len(response))
        return min(ends, default=None)

    def _spell(self, ids: Sequence[int]) -> bytes:
        return self._members[0].table.spell(ids)

    def _whole_tokens(
        self, token_ids: Sequence[Sequence[int]], length: int, late: Sequence[int]
    ) -> list[int]:
        """For each member how many of its ids spell at most `length` bytes of the segment."""
        counts = []
        for member, ids, before in zip(self._members, token_ids, late, strict=True):
            spelled, count = -before, 0
            for token in ids:
                spelled += len(member.table.spell((token,)))
                if spelled > length or member.is_end_of_text(token):
                    break
                count += 1
            counts.append(count)
        return counts


def end_of_text_lists(
    eos_token_id: Any, tables: Sequence[TokenTable]
) -> list[tuple[int, ...]] | None:
    """For each member its end-of-text ids, from the option `eos_token_id` and the members' tables;
    None without the option.

    Raises:
        TypeError, ValueError: naming the option, what was expected and what came.
    """
    if eos_token_id is None:
        return None
    one_tokenizer = len({table.fingerprint for table in tables}) == 1
    entries = _ids_or_lists(eos_token_id)
    alone = all(isinstance(entry, int) for entry in entries)
    if alone and one_tokenizer:
        entries = [entries] * len(tables)
    if (isinstance(eos_token_id, int) and not one_tokenizer) or len(entries) != len(tables):
        raise ValueError(
            f"eos_token_id must have an entry for each of the {len(tables)} members, which "
            f"have different tokenizers, got {eos_token_id!r}"
        )
    lists = [tuple(_ids_or_lists(entry)) for entry in entries]
    for ids, table in zip(lists, tables, strict=True):
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int):
                raise TypeError(f"eos_token_id must hold ids, got {type(token).__name__}")
            if not 0 <= token < len(table):
                raise ValueError(
                    f"eos_token_id must hold ids from 0 to {len(table) - 1}, got {token}"
                )
    return lists


def _ids_or_lists(value: Any) -> list[Any]:
    if isinstance(value, int) and not isinstance(value, bool):
        return [value]
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise TypeError(
            f"eos_token_id must be an id or a list of ids for each member, got "
            f"{type(value).__name__}"
        )
    return list(value)
