"""Committed text to a transformers streamer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from transformers import TextStreamer

from .member import Member


class StreamerFeed:
    """Calls a streamer as `generate` does: the prompt first, then what is committed, then `end`,
    also after an error.

    A `TextStreamer` (or `TextIteratorStreamer`) gets the text itself through
    `on_finalized_text`, so that it shows exactly the text of the output; decoding the first
    member's ids a second time could not. Any other streamer gets those ids through `put`.
    """

    def __init__(self, streamer: Any, first: Member) -> None:
        for name in ("put", "end"):
            if streamer is not None and not callable(getattr(streamer, name, None)):
                raise TypeError(f"streamer must have put and end, got {type(streamer).__name__}")
        self._streamer = streamer
        self._first = first
        self._fed = 0
        self._ended = False
        self._takes_text = isinstance(streamer, TextStreamer)

    def start(self, prompt_ids: Sequence[int]) -> None:
        self._fed = len(prompt_ids)
        if self._streamer is None:
            return
        if not self._takes_text:
            self._streamer.put(torch.tensor([list(prompt_ids)]))
        elif not self._streamer.skip_prompt:
            text = self._first.tokenizer.decode(list(prompt_ids), **self._streamer.decode_kwargs)
            self._streamer.on_finalized_text(text)

    def put(self, text: str, ids: Sequence[int]) -> None:
        """What one round committed: its text, and all of the first member's ids so far."""
        new, self._fed = ids[self._fed :], len(ids)
        if self._streamer is None:
            return
        if self._takes_text:
            self._streamer.on_finalized_text(text)
        elif new:
            self._streamer.put(torch.tensor(new))

    def end_quietly(self) -> None:
        """Where the run ends otherwise than by itself: the first failure is the one to tell."""
        with suppress(Exception):
            self.end()

    def end(self) -> None:
        """Ends the streamer, once."""
        if self._streamer is None or self._ended:
            return
        self._ended = True
        if self._takes_text:
            self._streamer.on_finalized_text("", stream_end=True)
        else:
            self._streamer.end()
