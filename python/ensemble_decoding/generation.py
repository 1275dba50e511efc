"""What all methods share: a run over contexts, its limits, its committed text and its output."""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import torch

from ensemble_kernels.profiling import annotate

from .attention_switch import is_active, segment_attention_active
from .context import Snapshot
from .member import Member
from .options import GenerationOptions
from .output import DecodingError, EnsembleOutput, FinishReason
from .stopping import Ending, StopRules
from .streaming import StreamerFeed
from .text import CharacterDecoder, Encoding
from .trace import Round, Trace
from .workers import each_in_turn_or_at_once

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
        members: Sequence[Member],
        prompts: Sequence[Sequence[int]],
        trace: Trace,
        options: GenerationOptions,
    ) -> None:
        self.contexts = [member.new_context(options.chooser()) for member in members]
        self.trace = trace
        self.options = options
        self.finish_reason: FinishReason | None = None
        self._stop_rules = StopRules(members, options.stop_strings, options.stopping_criteria)
        self._streamer = StreamerFeed(options.streamer, members[0])
        self.data = b""
        self._prompts = prompts
        self._workers = [member.worker for member in members]
        self._decoder = CharacterDecoder()
        self._text: list[str] = []
        self.unspelled = [b"" for _ in members]
        self._seconds = 0.0
        self._full_context: str | None = None
        # A generator that held the run would keep an abandoned one, and the switch of its models,
        # until the garbage collector finds the two.
        self._rounds = type(self)._run(weakref.proxy(self))

    def __iter__(self) -> Iterator[StreamedText]:
        return self

    def __next__(self) -> StreamedText:
        return next(self._rounds)

    def finished(self) -> EnsembleOutput:
        """Decodes what is left of the run; its output."""
        for _ in self:
            pass
        return self.output

    def close(self) -> None:
        """Ends the run early, as letting go of it does; `output` has what was committed."""
        self._rounds.close()

    @property
    def output(self) -> EnsembleOutput:
        """What has been committed so far; complete once the iteration is over. What is taken
        during the run does not grow with it."""
        return EnsembleOutput(
            text="".join(self._text),
            token_ids=[context.response_ids for context in self.contexts],
            finish_reason=self.finish_reason,
            rounds=replace(self.trace, rounds=list(self.trace.rounds)),
            usage=[replace(context.passes.finished_usage()) for context in self.contexts],
            seconds=self._seconds,
            pending=self._decoder.pending,
            unspelled=list(self.unspelled),
            full_context=self._full_context,
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
        return self.options.max_new_tokens - counted

    @abstractmethod
    def _round(self) -> tuple[Round, bytes] | None:
        """Decodes one round and commits it in every context; returns its trace and the bytes that
        it adds to the response. None if the context of a member has no room for another round."""

    def _ending(
        self, data: bytes, ended: bool, encodings: Sequence[Encoding], late: int = 0
    ) -> Ending:
        """What of a segment is to be committed. Its ids also spell the last `late` bytes of the
        response, which stop inside a character: positions in the encodings count from there."""
        before, pending = len(self.data) - late, len(self.pending) - late
        ending = self._stop_rules.ending(
            self.data[before:] + data,
            ended,
            encodings,
            response=self.data[:before],
            pending=self.pending[:pending],
            first_ids=self.contexts[0].ids,
            remaining=self.remaining,
        )
        return ending._replace(data=ending.data[late:])

    def _is_full(self, needed: Mapping[int, int]) -> bool:
        """Whether the context of a member has no room for as many more tokens as it needs; notes
        which."""
        for j, count in needed.items():
            room = self.contexts[j].room
            if room is not None and count > room:
                self._full_context = self.contexts[j].member.name
                return True
        return False

    def _each(
        self, task: Callable[[int], _Result], members: Sequence[int] | None = None
    ) -> list[_Result]:
        """`task(j)` for each member j, at the same time on different devices."""
        chosen = range(len(self.contexts)) if members is None else members
        return each_in_turn_or_at_once(
            [partial(task, j) for j in chosen], [self._workers[j] for j in chosen]
        )

    def _run(self) -> Generator[StreamedText, None, None]:
        with ExitStack() as stack:
            # Nothing of the run itself, which may be gone when this is called.
            stack.callback(self._streamer.end_quietly)
            for context in self.contexts:
                stack.enter_context(segment_attention_active(context.member.model))
            start = time.perf_counter()
            with annotate("prefill"):
                self._guarded(self._prefill, "reading the prompt")
            while self.finish_reason is None:
                snapshots = [context.snapshot() for context in self.contexts]
                step = self._guarded(
                    self._annotated_round, f"round {len(self.trace) + 1}", snapshots
                )
                if step is None:
                    # What was drafted before somebody was found to be full.
                    for context, snapshot in zip(self.contexts, snapshots, strict=True):
                        context.restore(snapshot)
                    self.finish_reason = "length"
                    break
                text = self._accept(*step)
                self._seconds += time.perf_counter() - start
                self._guarded(partial(self._streamer.put, text, self.contexts[0].ids), "streamer")
                yield StreamedText(text, step[0])
                start = time.perf_counter()
            self._guarded(self._streamer.end, "streamer")

    def _annotated_round(self) -> tuple[Round, bytes] | None:
        for context in self.contexts:
            if not is_active(context.member.model):
                raise RuntimeError(
                    f"the attention implementation of member {context.member.name!r} must stay as "
                    f"it is while a run uses it, and was changed"
                )
        with annotate("round"):
            return self._round()

    def _prefill(self) -> None:
        self._each(lambda j: self.contexts[j].prefill(self._prompts[j]))
        self._streamer.start(self._prompts[0])

    def _accept(self, round_: Round, data: bytes) -> str:
        self.data += data
        round_.data = data
        round_.text = self._decoder.feed(data)
        self._text.append(round_.text)
        self.trace.rounds.append(round_)
        # Only a first member without a token for the text gets here: its ids reach no limit.
        if self.finish_reason is None and self.remaining < 1:
            self.finish_reason = "length"
        return round_.text

    def _guarded(
        self, stage: Callable[[], _Result], name: str, snapshots: Sequence[Snapshot] = ()
    ) -> _Result:
        """Runs a stage; if it fails, puts every context back and hands out what there is."""
        try:
            # A run may begin inside the caller's inference mode and go on outside, where what was
            # made inside could not be written to.
            with torch.inference_mode(False):
                return stage()
        except BaseException as error:
            for context, snapshot in zip(self.contexts, snapshots, strict=False):
                context.restore(snapshot)
            self.finish_reason = "error"
            if isinstance(error, Exception):
                raise DecodingError(f"{name} failed: {error}", self.output) from error
            error.output = self.output  # type: ignore[attr-defined]
            raise
