"""What `CoSD` may be given, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .option_checks import check_count, check_number
from .tree import Tree

SELECTIONS = ("most_confident", "cascade")
# Those of `ensemble_kernels.token_statistics`.
_LOWEST_TEMPERATURE, _HIGHEST_TEMPERATURE = 1e-37, 1e37


def check_method(
    *,
    assistants: int,
    draft_length: Any = 5,
    alpha: Any = 0.5,
    beta: Any = 0.5,
    tree: Any = None,
    select: Any = "most_confident",
    unsure_below: Any = 0.5,
    max_entropy: Any = None,
    second_look: Any = False,
    temperatures: Any = None,
) -> None:
    """Checks the options of `CoSD`, also before there are members but the number of assistants.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """
    if assistants < 1:
        raise ValueError(f"assistants must hold at least one Member, got {assistants}")
    check_count("draft_length", draft_length)
    for name, value in (("alpha", alpha), ("unsure_below", unsure_below)):
        check_number(name, value)
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be from 0 to 1, got {value}")
    check_number("beta", beta)
    if not 0 <= beta < math.inf:
        raise ValueError(f"beta must be finite and at least 0, got {beta}")
    if tree is not None and not isinstance(tree, Tree):
        raise TypeError(f"tree must be a Tree, got {type(tree).__name__}")
    if not callable(select) and select not in SELECTIONS:
        raise ValueError(
            f"select must be one of {', '.join(SELECTIONS)} or callable, got {select!r}"
        )
    if max_entropy is not None:
        check_number("max_entropy", max_entropy)
        if not max_entropy >= 0:
            raise ValueError(f"max_entropy must be at least 0, got {max_entropy}")
    if not isinstance(second_look, bool):
        raise TypeError(f"second_look must be a bool, got {type(second_look).__name__}")
    if temperatures is not None:
        _check_temperatures(temperatures, assistants + 1)


def _check_temperatures(temperatures: Any, members: int) -> None:
    if isinstance(temperatures, str) or not isinstance(temperatures, Sequence):
        raise TypeError(
            f"temperatures must be a list of numbers, got {type(temperatures).__name__}"
        )
    if len(temperatures) != members:
        raise ValueError(
            f"temperatures must have an entry for each of the {members} members, got "
            f"{len(temperatures)}"
        )
    for index, temperature in enumerate(temperatures):
        check_temperature(f"temperatures[{index}]", temperature)


def check_temperature(name: str, value: Any) -> None:
    """Checks what logits are to be divided by."""
    check_number(name, value)
    if not _LOWEST_TEMPERATURE <= value <= _HIGHEST_TEMPERATURE:
        raise ValueError(
            f"{name} must be from {_LOWEST_TEMPERATURE} to {_HIGHEST_TEMPERATURE}, got {value}"
        )
