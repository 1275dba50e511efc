"""What the project has set itself, and what a report's rows say of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.end_to_end.cells import DEFAULT_CONTEXT, LONG_CONTEXT
from benchmarks.report.cells import (
    milliseconds_behind_first,
    milliseconds_per_token,
    succeeded,
)

OUTSIDE_AT_MOST = 0.05
# (ours, naive peer, context, at least so many times as fast)
AGAINST_NAIVE = (
    ("SpecEM", "naive SpecEM", DEFAULT_CONTEXT, 3.0),
    ("SpecEM", "naive SpecEM", LONG_CONTEXT, 8.0),
    ("SAFE", "naive union", DEFAULT_CONTEXT, 8.0),
)
# A pass may grow as that of the model that grows most, and a little for the noise.
GROWTH_BEYOND_MODELS = 1.1
Rows = Sequence[dict[str, Any]]


def goals(rows: Rows) -> list[dict[str, Any]]:
    """Each goal that the rows can say something of: `{"goal", "asked", "measured", "unit",
    "met"}`."""
    timed = [row for row in rows if succeeded(row)]
    return [*_outside(timed), *_against_naive(timed), *_growth(timed)]


def _goal(name: str, asked: str, measured: float, unit: str, met: bool) -> dict[str, Any]:
    return {"goal": name, "asked": asked, "measured": measured, "unit": unit, "met": met}


def _outside(rows: Rows) -> list[dict[str, Any]]:
    found = []
    for method in dict.fromkeys(row["method"] for row in rows if row["ours"]):
        worst = max(row["outside"] for row in rows if row["method"] == method)
        name = f"{method}: time outside of forward passes, at its largest in any row"
        asked = f"at most {OUTSIDE_AT_MOST:.0%}"
        found.append(_goal(name, asked, 100 * worst, "%", worst <= OUTSIDE_AT_MOST))
    return found


def _against_naive(rows: Rows) -> list[dict[str, Any]]:
    found = []
    for method, naive, context, least in AGAINST_NAIVE:
        for dtype in dict.fromkeys(row["dtype"] for row in rows):
            ours = _find(rows, dtype, method, context)
            theirs = _find(rows, dtype, naive, context)
            if ours is None or theirs is None:
                continue
            ratio = per_token(theirs) / per_token(ours)
            name = f"{method} against {naive}, {dtype}, {context} + {ours['new']} tokens"
            asked = f"at least {least:g} times as fast"
            found.append(_goal(name, asked, ratio, "times", ratio >= least))
    return found


def _growth(rows: Rows) -> list[dict[str, Any]]:
    """Of the time of a forward pass behind the first piece, from the default context to the long
    one: how many passes a token takes is a matter of the text."""
    found = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        pairs = {}
        for method in dict.fromkeys(row["method"] for row in rows):
            ends = [_find(rows, dtype, method, c) for c in (DEFAULT_CONTEXT, LONG_CONTEXT)]
            if None not in ends and not method.startswith(("assisted", "naive")):
                short, long = (per_pass(row) for row in ends if row is not None)
                if short and long:
                    pairs[method] = long / short
        alone = [ratio for method, ratio in pairs.items() if method.startswith("generate")]
        if not alone:
            continue
        most = GROWTH_BEYOND_MODELS * max(alone)
        for method, ratio in pairs.items():
            if not method.startswith("generate"):
                name = f"{method}: growth of a forward pass, {dtype}, {DEFAULT_CONTEXT} to "
                name += f"{LONG_CONTEXT} tokens"
                asked = f"at most {most:.2f}, {GROWTH_BEYOND_MODELS:g} times `generate`'s"
                found.append(_goal(name, asked, ratio, "times", ratio <= most))
    return found


def _find(rows: Rows, dtype: str, method: str, context: int) -> dict[str, Any] | None:
    """Of two members and the method's own segment: the first such row."""
    return next(
        (
            row
            for row in rows
            if (row["dtype"], row["method"], row["context"]) == (dtype, method, context)
            and (row["members"] == 2 or method.startswith("generate"))
        ),
        None,
    )


def per_token(row: dict[str, Any]) -> float:
    """Seconds for each token of a run that succeeded, prompt included."""
    time = milliseconds_per_token(row)
    assert time is not None
    return time.middle / 1e3


def per_pass(row: dict[str, Any]) -> float | None:
    """Seconds for each forward pass behind the first piece; None where the text ended with it."""
    time = milliseconds_behind_first(row)
    if time is None:
        return None
    passes = sum(row["passes"]) if row["passes"] else 1.0
    return float(time.middle / 1e3 / passes)
