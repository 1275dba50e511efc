"""Switching a model to segment attention while runs use it, and back to what it had."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

NAME = "ensemble_segments"


@dataclass
class _Switch:
    """What a switched model had before, and how many runs use it."""

    before: str | dict[str, str] = ""
    runs: int = 0


_switching = Lock()
_switched: WeakKeyDictionary[PreTrainedModel, _Switch] = WeakKeyDictionary()
_ended: deque[tuple[PreTrainedModel, _Switch]] = deque()


@contextmanager
def segment_attention_active(model: PreTrainedModel) -> Iterator[None]:
    """Switches the model to segment attention and back to what it had.

    Runs may overlap and end in any order, also in several threads: the first switches, the last
    puts back.
    """
    with _switching:
        # Those that ended first, so that a model is never taken for one that is still in use.
        _settle()
        switch = _switched.setdefault(model, _Switch())
        if not switch.runs or not is_active(model):
            switch.before = _implementations(model)
            model.set_attn_implementation(NAME)
        switch.runs += 1
    try:
        _settle_unless_another_does()
        yield
    finally:
        _ended.append((model, switch))
        _settle_unless_another_does()


def _settle_unless_another_does() -> None:
    """Never waits for the lock: an abandoned run ends wherever the garbage collector finds it,
    also on a thread that holds the lock here or one in `logging`. Who holds the lock looks again
    after letting go of it, so nothing that ended stays unsettled."""
    while _ended and _switching.acquire(blocking=False):
        try:
            _settle()
        finally:
            _switching.release()


def _settle() -> None:
    """Puts back the models whose last run has ended."""
    while _ended:
        model, switch = _ended.popleft()
        switch.runs -= 1
        if not switch.runs:
            # Gone already where an abandoned run is collected together with its model.
            _switched.pop(model, None)
            if is_active(model):  # else somebody chose another meanwhile, which stays
                model.set_attn_implementation(switch.before)


def is_active(model: PreTrainedModel) -> bool:
    """Whether the model, or a part of it, is switched to segment attention."""
    found = _implementations(model)
    return NAME in (found.values() if isinstance(found, dict) else (found,))


def _implementations(model: PreTrainedModel) -> str | dict[str, str]:
    """The model's attention implementation, or for a model of several parts that of each, as
    `set_attn_implementation` takes them."""
    config = model.config
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    if not any(parts.values()):
        return config._attn_implementation
    return {"": config._attn_implementation} | {
        name: part._attn_implementation for name, part in parts.items() if part is not None
    }
