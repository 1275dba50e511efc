"""What all methods share: a run over contexts, its limits, its committed text and its output."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple, TypeVar

from .attention import segment_attention_active
from .context import DecodingContext, Position
from .member import Member, Messages
from .text import CharacterDecoder
from .trace import DecodingError, EnsembleOutput, FinishReason, Round, Trace

_Result = TypeVar("_Result")


class StreamedText(NamedTuple):
    """Text that one round committed; `round` is the round's trace."""

    text: str
    round: Round


class DecodingRun(ABC):
    """One run of a method: an iterator over its rounds that yields what each committed.

    A method subclasses it with `_round`. When a round fails, every context is put back to where
    the last commit left it, and the error carries what was generated until then.
    """

    def __init__(
        self,
        contexts: Sequence[DecodingContext],
        prompts: Sequence[Sequence[int]],
        trace: Trace,
        max_new_tokens: int,
    ) -> None:
        self.contexts = list(contexts)
        self.trace = trace
        self.max_new_tokens = max_new_tokens
        self.finish_reason: FinishReason | None = None
        self.data = b""
        self._prompts = prompts
        self._decoder = CharacterDecoder()
        self._text: list[str] = []
        self.unspelled = [b"" for _ in contexts]
        self._seconds = 0.0
        self._rounds = self._run()

    def __iter__(self) -> Iterator[StreamedText]:
        return self._rounds

    def __next__(self) -> StreamedText:
        return next(self._rounds)

    def close(self) -> None:
        """Ends the run early; `output` has what was committed."""
        self._rounds.close()

    @property
    def output(self) -> EnsembleOutput:
        """What has been committed so far; complete once the iteration is over."""
        return EnsembleOutput(
            text="".join(self._text),
            token_ids=[context.response_ids for context in self.contexts],
            finish_reason=self.finish_reason,
            rounds=self.trace,
            usage=[context.finished_usage() for context in self.contexts],
            seconds=self._seconds,
            pending=self._decoder.pending,
            unspelled=list(self.unspelled),
        )

    @property
    def pending(self) -> bytes:
        """The bytes at the end of the response that stop inside a character."""
        return self._decoder.pending

    @property
    def remaining(self) -> int:
        """Tokens of the first member that may still be committed. A round counts for at least
        one, also if the first member has no token for anything in it."""
        counted = max(len(self.contexts[0].response_ids), len(self.trace))
        return self.max_new_tokens - counted

    @abstractmethod
    def _round(self) -> tuple[Round, bytes] | None:
        """Decodes one round and commits it in every context; returns its trace and the bytes that
        it adds to the response. None if the context of a member has no room for another round."""

    def _run(self) -> Generator[StreamedText, None, None]:
        with ExitStack() as stack:
            for context in self.contexts:
                stack.enter_context(segment_attention_active(context.member.model))
            start = time.perf_counter()
            self._guarded(self._prefill, "reading the prompt", [])
            while self.finish_reason is None:
                positions = [context.snapshot() for context in self.contexts]
                step = self._guarded(self._round, f"round {len(self.trace) + 1}", positions)
                if step is None:
                    self.finish_reason = "length"
                    return
                text = self._accept(*step)
                self._seconds += time.perf_counter() - start
                yield StreamedText(text, step[0])
                start = time.perf_counter()

    def _prefill(self) -> None:
        for context, prompt in zip(self.contexts, self._prompts, strict=True):
            context.prefill(prompt)

    def _accept(self, round_: Round, data: bytes) -> str:
        self.data += data
        round_.data = data
        round_.text = self._decoder.feed(data)
        self._text.append(round_.text)
        self.trace.rounds.append(round_)
        return round_.text

    def _guarded(
        self, stage: Callable[[], _Result], name: str, positions: Sequence[Position]
    ) -> _Result:
        """Runs a stage; if it fails, puts every context back and hands out what there is."""
        try:
            return stage()
        except BaseException as error:
            for context, position in zip(self.contexts, positions, strict=False):
                context.restore(position)
            self.finish_reason = "error"
            if isinstance(error, Exception):
                raise DecodingError(f"{name} failed: {error}", self.output) from error
            error.output = self.output  # type: ignore[attr-defined]
            raise


def check_request(
    prompt: str | None = None, messages: Messages | None = None, max_new_tokens: int = 1
) -> None:
    """Checks what `generate` was asked for.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """
    if (prompt is None) == (messages is None):
        given = "neither" if prompt is None else "both"
        raise ValueError(f"exactly one of prompt and messages must be given, got {given}")
    if prompt is not None and not isinstance(prompt, str):
        raise TypeError(f"prompt must be a str, got {type(prompt).__name__}")
    if messages is not None:
        _check_messages(messages)
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int):
        raise TypeError(f"max_new_tokens must be an int, got {type(max_new_tokens).__name__}")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")


def check_members(members: Sequence[Member]) -> list[Member]:
    """Checks the members of a method."""
    if isinstance(members, str) or not isinstance(members, Sequence):
        raise TypeError(f"members must be a list of Member, got {type(members).__name__}")
    if not members:
        raise ValueError("members must hold at least one Member, got an empty list")
    for index, member in enumerate(members):
        if not isinstance(member, Member):
            raise TypeError(f"members[{index}] must be a Member, got {type(member).__name__}")
    return list(members)


def _check_messages(messages: Messages) -> None:
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise TypeError(
            f"messages must be a list of {{'role': ..., 'content': ...}}, "
            f"got {type(messages).__name__}"
        )
    if not messages:
        raise ValueError("messages must hold at least one message, got an empty list")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(f"messages[{index}] must be a dict, got {type(message).__name__}")
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                came = f"{message[key]!r}" if key in message else "none"
                raise ValueError(f"messages[{index}] must have a text {key!r}, got {came}")
