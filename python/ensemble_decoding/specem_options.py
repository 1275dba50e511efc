"""What `SpecEM` may be given, checked."""

from __future__ import annotations

import sys
from typing import Any

from .option_checks import check_count, check_number, one_of
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
    check_count("segment_length", segment_length)
    one_of("segment_boundary", segment_boundary, _BOUNDARIES)
    _finite("learning_rate", learning_rate)
    one_of("feedback", feedback, FEEDBACKS)
    one_of("score", score, SCORES)
    if exit_threshold is not None:
        _finite("exit_threshold", exit_threshold)


def _finite(name: str, value: Any) -> None:
    check_number(name, value)
    if not 0 <= value <= sys.float_info.max:  # also an int that no float can hold
        raise ValueError(f"{name} must be finite and at least 0, got {value}")
