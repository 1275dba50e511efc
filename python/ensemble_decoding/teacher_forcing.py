"""What a member says at each token of a text that is given: the ground of trees, calibrations and
sweeps."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .attention_switch import segment_attention_active
from .context import DecodingContext
from .member import Member
from .text import check_text
from .token_choice import favourite
from .verification import RowStatistics

# Tokens in one pass: their logits, [64, V], are all that is kept of it.
_CHUNK = 64


class Text(NamedTuple):
    """A known continuation of a prompt."""

    prompt: str
    continuation: str


class Forced(NamedTuple):
    """One token of a continuation: the place (in bytes) where it begins and ends, the bytes of the
    member's likeliest one there (none for an end of text), whether that is it, the probability of
    the likeliest, the token's own log-probability, and these two for each further temperature."""

    start: int
    end: int
    best: bytes
    right: bool
    best_probability: float
    log_probability: float
    at_temperatures: list[tuple[float, float]]


def checked_texts(texts: Any) -> list[Text]:
    """Texts as pairs of a prompt and its continuation.

    Args:
        texts: each a `str`, whose first word is the prompt, a pair of two, or a mapping with the
            keys "prompt" and "continuation", or "text".

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """
    if isinstance(texts, str | Mapping) or not isinstance(texts, Sequence):
        raise TypeError(f"texts must be a list of texts, got {type(texts).__name__}")
    if not texts:
        raise ValueError("texts must hold at least one text, got an empty list")
    return [_checked_text(f"texts[{index}]", text) for index, text in enumerate(texts)]


def read_texts(path: str | PathLike[str]) -> list[Text]:
    """The texts of a file: of `.jsonl` one JSON value a line, as `checked_texts` takes them, of any
    other one text a line; empty lines count for nothing.

    Raises:
        OSError: the file cannot be read.
        ValueError: naming the line, what was expected and what came.
    """
    try:
        # `splitlines` would end lines at other characters too.
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"texts must be UTF-8, got {path}: {error}") from error
    texts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        value: Any = line
        if str(path).endswith(".jsonl"):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, line {number}, must be JSON: {error}") from error
        texts.append(_checked_text(f"{path}, line {number},", value))
    if not texts:
        raise ValueError(f"texts must hold at least one text, got none in {path}")
    return texts


def _checked_text(name: str, text: Any) -> Text:
    if isinstance(text, Mapping):
        text = text["text"] if "text" in text else (text.get("prompt"), text.get("continuation"))
    if isinstance(text, str):
        words = text.split(maxsplit=1)
        if len(words) < 2:
            raise ValueError(f"{name} must have at least two words, got {text!r}")
        prompt = text[: text.index(words[0]) + len(words[0])]
        text = (prompt, text[len(prompt) :])
    if not isinstance(text, Sequence) or len(text) != 2:
        raise TypeError(f"{name} must be a text or a prompt and its continuation, got {text!r}")
    for part, kind in zip(text, ("prompt", "continuation"), strict=True):
        if not isinstance(part, str):
            raise TypeError(f"{name} must have a {kind} that is a str, got {type(part).__name__}")
        check_text(f"{name} {kind}", part)
    if not text[1]:
        raise ValueError(f"{name} must have a continuation, got an empty one")
    return Text(text[0], text[1])


def forced(member: Member, text: Text, temperatures: Sequence[float] = ()) -> Iterator[Forced]:
    """What the member says at each token of a text's continuation, which it encodes as it encodes
    the text between members; as far as its context has room. Each token is fed once."""
    member = member.in_memory()
    encoding = member.encoder.encode(text.continuation.encode())
    with segment_attention_active(member.model):
        context = member.new_context()
        context.prefill(member.encode_prompt(text.prompt))
        row = context.next_logits[None]
        room = len(encoding.ids) if context.room is None else context.room
        ids, ends = encoding.ids[:room], encoding.ends[:room]
        for first in range(0, len(ids), _CHUNK):
            chunk = ids[first : first + _CHUNK]
            # The row in front of a chunk is judged with it, the one behind it with the next.
            logits, _ = context.read(chunk)
            rows = [row, logits[:-1]]
            row = logits[-1:].clone()
            place = context.prompt_length + first - 1
            yield from _judged(context, rows, chunk, ends[first:], place, temperatures)


def _judged(
    context: DecodingContext,
    rows: Sequence[Tensor],
    ids: Sequence[int],
    ends: Sequence[int],
    place: int,
    temperatures: Sequence[float],
) -> Iterator[Forced]:
    member, logits = context.member, torch.cat(list(rows))
    places = range(place, place + len(ids))
    plain: RowStatistics = context.passes.statistics(logits, ids, places)
    further = [
        context.passes.statistics(logits, ids, places, temperature) for temperature in temperatures
    ]
    for i, token in enumerate(ids):
        best, best_logprob = int(plain.argmax[i]), plain.max_logprob[i]
        scale = [(s.max_logprob[i], s.logprob[i]) for s in further]
        if member.is_suppressed(best):
            best = favourite(member, logits[i])
            best_logprob = float(logits[i, best]) - plain.logsumexp[i]
            scale = [
                (float(logits[i, best]) / t - s.logsumexp[i], s.logprob[i])
                for t, s in zip(temperatures, further, strict=True)
            ]
        likeliest, own = member.table.spell((best,)), member.table.spell((token,))
        yield Forced(
            ends[i] - len(own),
            ends[i],
            likeliest,
            likeliest == own,
            math.exp(min(0.0, best_logprob)),
            plain.logprob[i],
            [(math.exp(min(0.0, highest)), given) for highest, given in scale],
        )
