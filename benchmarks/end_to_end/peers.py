"""What a user would run instead: each model alone, assisted decoding, and research code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from benchmarks.end_to_end.checks import Match, same_drafts, same_rounds, same_tokens
from benchmarks.end_to_end.methods import Piece
from benchmarks.end_to_end.models import LoadedModel
from benchmarks.end_to_end.naive_cosd import naive_cosd
from benchmarks.end_to_end.naive_specem import naive_specem
from benchmarks.end_to_end.naive_union import NaiveModel, naive_union


class GenerateRun:
    """The pieces of a `generate`: what stands behind its first step, and the whole."""

    def __init__(
        self, prompt: str, new: int, model: LoadedModel, assistant: LoadedModel | None = None
    ) -> None:
        self._model, self._new = model, new
        self._fed = model.tokenizer(prompt, return_tensors="pt")
        self._assistant = assistant

    def run(self, note: Callable[[Piece], None]) -> None:
        prompt = self._fed["input_ids"].shape[1]
        first = _AtFirst(lambda count: note(Piece(count - prompt, None)))
        options: dict[str, Any] = {"max_new_tokens": self._new, "do_sample": False}
        if self._assistant is not None:
            options["assistant_model"] = self._assistant.model
            if not _same_tokenizer(self._model, self._assistant):
                options["tokenizer"] = self._model.tokenizer
                options["assistant_tokenizer"] = self._assistant.tokenizer
        written = self._model.model.generate(
            **self._fed, **options, stopping_criteria=StoppingCriteriaList([first])
        )
        note(Piece(written.shape[1] - prompt, written[0, prompt:].tolist()))


class _AtFirst(StoppingCriteria):
    """Tells, once, how many ids there are; never stops."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell: Callable[[int], None] | None = tell

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        if self._tell is not None:
            self._tell(input_ids.shape[1])
            self._tell = None
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def _same_tokenizer(one: LoadedModel, other: LoadedModel) -> bool:
    """As transformers tells, which refuses tokenizers where it holds them to be equal."""
    first, second = (m.model.config.get_text_config().vocab_size for m in (one, other))
    return bool(first == second)


def naive_specem_pieces(
    models: Sequence[tuple[Any, Any]], prompt: str, new: int
) -> Iterator[Piece]:
    tokens = 0
    for round_ in naive_specem(models, prompt, max_new_tokens=new):
        tokens += round_.tokens
        yield Piece(tokens, round_)


def naive_cosd_pieces(models: Sequence[NaiveModel], prompt: str, new: int) -> Iterator[Piece]:
    drafter, assistant = models
    tokens = 0
    for draft in naive_cosd(drafter, assistant, prompt, new):
        tokens += draft.tokens
        yield Piece(tokens, draft)


def naive_union_pieces(models: Sequence[NaiveModel], prompt: str, new: int) -> Iterator[Piece]:
    for number, token in enumerate(naive_union(list(models), prompt, new), 1):
        yield Piece(number, token)


class NaivePeer(NamedTuple):
    """Naive code: the method of ours whose choices it must make and how they are held together,
    what is made of each model before the clock runs, and what it writes with that."""

    method: str
    same: Callable[[Sequence[LoadedModel], Any, Any], Match]
    made: Callable[[LoadedModel], Any]
    pieces: Callable[[Any, str, int], Iterator[Piece]]


def _with_tables(one: LoadedModel) -> NaiveModel:
    """Tables of bytes are made before, as those of our members are."""
    return NaiveModel(one.model, one.tokenizer)


NAIVE_PEERS = {
    "naive SpecEM": NaivePeer(
        "SpecEM", same_rounds, lambda one: (one.model, one.tokenizer), naive_specem_pieces
    ),
    "naive CoSD": NaivePeer(
        "CoSD",
        lambda models, *chosen: same_drafts(models[0], *chosen),
        _with_tables,
        naive_cosd_pieces,
    ),
    "naive union": NaivePeer(
        "TokenEnsemble",
        lambda models, *chosen: same_tokens(*chosen),
        _with_tables,
        naive_union_pieces,
    ),
}
