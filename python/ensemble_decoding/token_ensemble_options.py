"""What `TokenEnsemble` may be given, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .option_checks import check_count, check_number, one_of

ALIGNMENTS = ("auto", "union", "top_k", "identity")
MEANS = ("arithmetic", "geometric")
_LARGEST_WEIGHT = torch.finfo(torch.float32).max  # as in `mix_distributions`; their sum is finite


def check_method(
    *,
    members: int,
    alignment: Any = "auto",
    k: Any = 10,
    weights: Any = None,
    mean: Any = "arithmetic",
    threshold: Any = None,
    combine: Any = None,
) -> None:
    """Checks the options of `TokenEnsemble`, also before there are members but their number.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """
    if members < 2:
        raise ValueError(f"members must hold at least two Member, got {members}")
    one_of("alignment", alignment, ALIGNMENTS)
    check_mixture(members=members, k=k, weights=weights, combine=combine)
    one_of("mean", mean, MEANS)
    if threshold is not None:
        check_number("threshold", threshold)
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold must be from 0 to 1, got {threshold}")
    if combine is not None and mean != "arithmetic":
        raise ValueError(f"mean must not be given with combine, which replaces it, got {mean!r}")


def check_mixture(*, members: int, k: Any, weights: Any, combine: Any) -> None:
    """Checks what all methods take that mix distributions."""
    check_count("k", k)
    if weights is not None:
        _check_weights(weights, members)
    if combine is not None and not callable(combine):
        raise TypeError(f"combine must be callable, got {type(combine).__name__}")


def _check_weights(weights: Any, members: int) -> None:
    if isinstance(weights, str) or not isinstance(weights, Sequence):
        raise TypeError(f"weights must be a list of numbers, got {type(weights).__name__}")
    if len(weights) != members:
        raise ValueError(
            f"weights must have an entry for each of the {members} members, got {len(weights)}"
        )
    for index, weight in enumerate(weights):
        check_number(f"weights[{index}]", weight)
    shown = list(weights)
    if not all(0 <= weight < math.inf for weight in weights) or not any(weights):
        raise ValueError(f"weights must be finite, not negative and not all zero, got {shown}")
    if max(weights) > _LARGEST_WEIGHT:
        raise ValueError(f"weights must be at most {_LARGEST_WEIGHT}, got {shown}")
