"""What `SAFE` may be given, checked."""

from __future__ import annotations

from typing import Any

from .option_checks import check_count, one_of
from .token_ensemble_options import ALIGNMENTS, check_mixture

SHARPENINGS = ("prefix", "geometric", None)
POLICIES = ("safe", "always", "never")


def check_method(
    *,
    verifiers: int,
    draft_length: Any = 5,
    ensemble_when: Any = "safe",
    alignment: Any = "auto",
    k: Any = 10,
    weights: Any = None,
    sharpen: Any = "prefix",
    combine: Any = None,
) -> None:
    """Checks the options of `SAFE`, also before there are members but the number of verifiers.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """
    if verifiers < 1:
        raise ValueError(f"verifiers must hold at least one Member, got {verifiers}")
    check_count("draft_length", draft_length)
    one_of("ensemble_when", ensemble_when, POLICIES)
    one_of("alignment", alignment, ALIGNMENTS)
    one_of("sharpen", sharpen, SHARPENINGS)
    check_mixture(members=verifiers + 1, k=k, weights=weights, combine=combine)
    if combine is not None and sharpen == "geometric":
        raise ValueError(
            "sharpen must not be 'geometric' with combine, which takes the place of the mean"
        )
