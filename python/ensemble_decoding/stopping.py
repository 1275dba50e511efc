"""Where a response ends: limit, end of text, stop strings, stopping criteria.

What a round would commit is cut at the earliest ending, alike for text, ids, trace and caches:
the text to the byte, each member's ids to the last whole token within.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers import StoppingCriteriaList

from .member import Member
from .output import FinishReason
from .text import Encoding, complete_prefix
from .token_table import TokenTable


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
        self._one_tokenizer = _one_tokenizer([member.table for member in members])
        self._stops = [stop.encode() for stop in stop_strings]
        self._criteria = stopping_criteria

    def ending(
        self,
        data: bytes,
        ended: bool,
        encodings: Sequence[Encoding],
        *,
        response: bytes,
        pending: bytes,
        first_ids: Sequence[int],
        remaining: int,
    ) -> Ending:
        """How much of a segment stays.

        `data` and `ended` are the segment, `encodings` its ids by each member; `response` and
        `first_ids` what stands before it, prompt included in the ids; `remaining` the tokens of the
        first member that the limit leaves.
        """
        first = encodings[0]
        count, limited = self._count_by_limit(data, first, ended, pending, remaining)
        reason: FinishReason | None = "length" if limited else "stop" if ended else None
        length, whole = _length(data, first, count), count == len(first.ids)
        stop = self._stop_string_end(response, data)
        if stop is not None and stop <= length:
            length, whole, reason = stop, False, "stop"
            count = self._whole_tokens(encodings, stop)[0]
        # Asked last: of tokens that are cut off already they hear nothing.
        asked = self._count_by_criteria(first.ids[:count], first_ids)
        if asked is not None:
            length, reason = min(length, _length(data, first, asked)), "stop"
            whole = whole and asked == count
        if whole:
            return Ending(data, [len(encoding.ids) for encoding in encodings], reason)
        return Ending(data[:length], self._whole_tokens(encodings, length), reason)

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
        self, data: bytes, first: Encoding, ended: bool, pending: bytes, remaining: int
    ) -> tuple[int, bool]:
        """Tokens of the first member that the limit leaves, and whether the limit ends the run."""
        count = len(first.ids)
        if count < remaining or (ended and count == remaining):
            return count, False
        left, complete = min(count, remaining), -1
        # Back to where the character at the end begins. A stray lead byte in front of it is
        # complete, though it would not be if nothing followed.
        while left and not self._one_tokenizer:
            length = _length(data, first, left)
            if length == complete:
                break
            complete = complete_prefix(pending + data[:length]) - len(pending)
            if complete < length:
                left = min(left - 1, bisect_right(first.ends, complete))
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

    def _whole_tokens(self, encodings: Sequence[Encoding], length: int) -> list[int]:
        """For each member how many of its ids lie within the first `length` bytes; end-of-text,
        which follows all text, does not."""
        counts = []
        for member, encoding in zip(self._members, encodings, strict=True):
            count = bisect_right(encoding.ends, length)
            if count and member.is_end_of_text(encoding.ids[count - 1]):
                count -= 1
            counts.append(count)
        return counts


def _length(data: bytes, encoding: Encoding, count: int) -> int:
    """Bytes of a segment that `count` of its ids stand for. All of them stand for all of it, also
    for bytes behind the last one that no token can write."""
    if count == len(encoding.ids):
        return len(data)
    return encoding.ends[count - 1] if count else 0


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
    one_tokenizer = _one_tokenizer(tables)
    entries = _ids_or_lists(eos_token_id)
    alone = all(isinstance(entry, int) for entry in entries)
    if alone and one_tokenizer:
        entries = [entries] * len(tables)
    if (isinstance(eos_token_id, int) and not one_tokenizer) or len(entries) != len(tables):
        why = "" if one_tokenizer else ", which have different tokenizers"
        one = isinstance(eos_token_id, int)
        came = f"the one id {eos_token_id}" if one else repr(eos_token_id)
        raise ValueError(
            f"eos_token_id must have an entry for each of the {len(tables)} members{why}, got "
            f"{came} (of generation_config, if that was given and no eos_token_id)"
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


def _one_tokenizer(tables: Sequence[TokenTable]) -> bool:
    return len({table.tokenizer_fingerprint for table in tables}) == 1


def _ids_or_lists(value: Any) -> list[Any]:
    if isinstance(value, int) and not isinstance(value, bool):
        return [value]
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise TypeError(
            f"eos_token_id must be an id or a list of ids for each member, got "
            f"{type(value).__name__}"
        )
    return list(value)
