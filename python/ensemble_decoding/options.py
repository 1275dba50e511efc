"""The options of a run, under Hugging Face's names."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from .config_options import options_of_config
from .sampling import ExtremeTemperature, TokenChooser
from .text import check_text

# Also an int that no float can hold counts as infinite.
_LARGEST = sys.float_info.max
# Temperatures up to here, and from its inverse on, are those of transformers to the bit; float32
# has room for logits of up to 1e18 over or times them.
_EXTREME = 1e20

# Of `generate`'s ways to decode these make no sense for an ensemble that drafts and votes.
_REFUSED = {
    "num_beams": (lambda value: value != 1, "an ensemble does not search with beams"),
    "assistant_model": (lambda value: True, "a member has no assistant of its own"),
    "prompt_lookup_num_tokens": (lambda value: True, "a member drafts by itself"),
    "constraints": (lambda value: True, "constrained decoding needs beams"),
    "force_words_ids": (lambda value: True, "constrained decoding needs beams"),
    "num_return_sequences": (lambda value: value != 1, "a run writes one text"),
}


@dataclass(frozen=True)
class GenerationOptions:
    """What a run was asked for, checked.

    Args:
        max_new_tokens: tokens of the first member, end-of-text included.
        do_sample: draft by chance instead of greedily. The options below shape the drafts, in the
            order in which `generate` applies them; verification scores stay raw.
        temperature, top_k, top_p, min_p: used with `do_sample` only; without it their values are
            not looked at, as in `generate`.
        repetition_penalty: also for greedy drafts, over prompt and response.
        seed: of the random numbers; by default a new one, which the trace notes.
        stop_strings: a text or several; the response ends right behind the first that it holds.
        eos_token_id: replaces the members' end-of-text ids: for each member an id or a list of
            ids; an id or a list of ids alone where all members share a tokenizer, however each of
            them stops.
        stopping_criteria: called as in transformers, with the first member's ids after each
            committed token.
        streamer: `put` and `end` are called as in transformers, with committed text only.
    """

    max_new_tokens: int = 256
    do_sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop_strings: tuple[str, ...] = ()
    eos_token_id: Any = None
    stopping_criteria: StoppingCriteriaList | None = None
    streamer: Any = None

    @classmethod
    def resolve(
        cls, options: Mapping[str, Any], generation_config: GenerationConfig | None = None
    ) -> GenerationOptions:
        """Options from keywords, over those of a generation config. None says nothing.

        Raises:
            TypeError, ValueError: naming the option, what was expected and what came.
        """
        given = options_of_config(generation_config, tuple(_REFUSED))
        given |= {name: value for name, value in options.items() if value is not None}
        known = {field.name for field in fields(cls)}
        for name, value in (dict(options) | given).items():
            if name in _REFUSED and value is not None and _REFUSED[name][0](value):
                plain = isinstance(value, str | int | float)
                came = repr(value) if plain else type(value).__name__
                raise ValueError(f"{name} is not supported, got {came}: {_REFUSED[name][1]}")
            if name not in known and name not in _REFUSED:
                there_are = ", ".join(sorted({*known, "generation_config"}))
                raise TypeError(f"{name} is no option; there are {there_are}")
        given = {name: value for name, value in given.items() if name in known}
        given["stop_strings"] = _stop_strings(given.get("stop_strings"))
        given["stopping_criteria"] = _criteria(given.get("stopping_criteria"))
        resolved = cls(**given)
        resolved._check()
        if resolved.do_sample and resolved.seed is None:
            return cls(**{**given, "seed": random.SystemRandom().randrange(2**63)})
        return resolved

    def chooser(self) -> TokenChooser:
        """How a member chooses the next token of its draft."""
        processors = LogitsProcessorList()
        if self.repetition_penalty not in (None, 1):
            processors.append(RepetitionPenaltyLogitsProcessor(self.repetition_penalty))
        if self.do_sample:
            if self.temperature not in (None, 1):
                temperature = float(self.temperature)
                usual = 1 / _EXTREME < temperature < _EXTREME
                shaped = TemperatureLogitsWarper if usual else ExtremeTemperature
                processors.append(shaped(temperature))
            if self.top_k:
                processors.append(TopKLogitsWarper(self.top_k))
            if self.top_p is not None and self.top_p < 1:
                processors.append(TopPLogitsWarper(self.top_p))
            if self.min_p:
                processors.append(MinPLogitsWarper(self.min_p))
        return TokenChooser(processors, self.seed if self.do_sample else None)

    def as_trace(self) -> dict[str, Any]:
        """The options that say something, as plain data."""
        left_out = {"streamer", "stopping_criteria"}
        if not self.do_sample:
            left_out |= {"temperature", "top_k", "top_p", "min_p"}
        values = {name: _plain(value) for name, value in vars(self).items() if name not in left_out}
        if not self.stop_strings:
            del values["stop_strings"]
        return {name: value for name, value in values.items() if value is not None}

    def _check(self) -> None:
        _integer("max_new_tokens", self.max_new_tokens, 1)
        if not isinstance(self.do_sample, bool):
            raise TypeError(f"do_sample must be a bool, got {type(self.do_sample).__name__}")
        greedy = not self.do_sample
        _number(
            "temperature",
            self.temperature,
            lambda v: greedy or 0 < v <= _LARGEST,
            "positive and finite",
        )
        _number("top_p", self.top_p, lambda v: greedy or 0 < v <= 1, "above 0 and at most 1")
        _number("min_p", self.min_p, lambda v: greedy or 0 <= v <= 1, "from 0 to 1")
        _number(
            "repetition_penalty",
            self.repetition_penalty,
            lambda v: 0 < v <= _LARGEST,
            "positive and finite",
        )
        if self.top_k is not None:
            _integer("top_k", self.top_k, None if greedy else 0)
        if self.seed is not None:
            _integer("seed", self.seed, 0)


def _plain(value: Any) -> Any:
    """As JSON has it: any sequence but a text is a list."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value


def _stop_strings(stops: Any) -> tuple[str, ...]:
    if stops is None:
        return ()
    if isinstance(stops, bytes) or not isinstance(stops, Sequence):
        raise TypeError(
            f"stop_strings must be a text or a list of texts, got {type(stops).__name__}"
        )
    texts = (stops,) if isinstance(stops, str) else tuple(stops)
    for stop in texts:
        if not isinstance(stop, str):
            raise TypeError(f"stop_strings must hold texts, got {type(stop).__name__}")
        if not stop:
            raise ValueError("stop_strings must be texts that are not empty, got ''")
        check_text("stop_strings", stop)
    return texts


def _criteria(criteria: Any) -> StoppingCriteriaList | None:
    """As transformers takes them: a list, whose class asks each of them, or one alone."""
    if criteria is None or isinstance(criteria, StoppingCriteriaList):
        return criteria
    given = [criteria] if callable(criteria) else criteria
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(
            f"stopping_criteria must be a list of transformers' criteria, got "
            f"{type(given).__name__}"
        )
    for criterion in given:
        if not callable(criterion):
            raise TypeError(
                f"stopping_criteria must hold callables, got {type(criterion).__name__}"
            )
    return StoppingCriteriaList(given)


def _integer(name: str, value: Any, least: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _number(name: str, value: Any, holds: Callable[[float], bool], expected: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not holds(value):
        raise ValueError(f"{name} must be {expected}, got {value}")
