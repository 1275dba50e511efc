"""What `SpecEM` may be given, checked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from .specem_vote import FEEDBACKS, SCORES

_BOUNDARIES = ("character", "word")


def check_method(
    *,
    segment_length: Any,
    segment_boundary: Any,
    learning_rate: Any,
    feedback: Any,
    score: Any,
    exit_threshold: Any,
) -> None:
    """Checks the options of `SpecEM` that are plain values, also before there are members.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """
    if isinstance(segment_length, bool) or not isinstance(segment_length, int):
        raise TypeError(f"segment_length must be an int, got {type(segment_length).__name__}")
    if segment_length < 1:
        raise ValueError(f"segment_length must be at least 1, got {segment_length}")
    _one_of("segment_boundary", segment_boundary, _BOUNDARIES)
    _finite("learning_rate", learning_rate)
    _one_of("feedback", feedback, FEEDBACKS)
    _one_of("score", score, SCORES)
    if exit_threshold is not None:
        _finite("exit_threshold", exit_threshold)


def _one_of(name: str, value: Any, allowed: Sequence[Any]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(str, allowed))}, got {value!r}")


def _finite(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not 0 <= value <= sys.float_info.max:  # also an int that no float can hold
        raise ValueError(f"{name} must be finite and at least 0, got {value}")
