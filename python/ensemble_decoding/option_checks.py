"""The checks that the options of several methods share. All raise TypeError or ValueError, naming
the option, what was expected and what came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def one_of(name: str, value: Any, allowed: Sequence[str | None]) -> None:
    """Checks that an option is one of its values."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(str, allowed))}, got {value!r}")


def check_number(name: str, value: Any) -> None:
    """Checks that an option is a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")


def check_count(name: str, value: Any) -> None:
    """Checks that an option is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
