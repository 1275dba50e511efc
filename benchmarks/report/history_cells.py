"""The cells of a report that are compared with those of another: ours, each with its peers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.report.cells import (
    Row,
    Run,
    Spread,
    all_runs,
    by_case,
    milliseconds_per_token,
    peers_of,
)

# Half-width of the spread at least taken for so many repetitions: two lie close to each other
# often enough. Three or more say themselves how wide it is.
LEAST_WIDTH = {1: 0.15, 2: 0.075}
# The least and the most of so few say too little of the noise: of two times three repetitions of
# the same, one in twenty lies wholly above the other. By so much of their distance they are moved
# apart, which leaves a fourth of these and finds what got 10 % slower at 2 % of noise.
STRETCH = 0.25
ALONE = "generate"  # how the methods begin that are one model alone


class Cell(NamedTuple):
    """`time` is None where it failed, for the reason `failure`. `peers` has the ratio of each
    peer's time to ours; `work` must be equal in both reports for them to have done the same."""

    time: Spread | None
    peers: dict[str, Spread]
    work: str = ""
    failure: str = ""


def operator_cells(report: dict[str, Any]) -> dict[str, Cell]:
    cells = {}
    for operator, rows in ((report.get("operators") or {}).get("operators") or {}).items():
        for case, alternatives in by_case(rows).items():
            for ours in (row for row in alternatives if row["ours"]):
                name = f"{operator}, {case}, {ours['alternative']}"
                cells[name] = _operator_cell(ours, alternatives)
    return cells


def _operator_cell(ours: Row, alternatives: Sequence[Row]) -> Cell:
    if "refused" in ours:
        return Cell(None, {}, failure=ours["refused"])
    low, high = ours["quartiles_us"]
    ratios = {}
    for row in peers_of(alternatives):
        lower, upper = row["ratio_quartiles"]
        ratios[row["alternative"]] = Spread(lower, row["ratio"], upper)
    return Cell(Spread(low, ours["median_us"], high), ratios)


def best(ratios: Sequence[Spread]) -> Spread:
    return min(ratios, key=lambda ratio: ratio.middle)


def decoding_cells(report: dict[str, Any]) -> dict[str, Cell]:
    runs = all_runs(report)
    return {run_name(run): _decoding_cell(run, runs) for run in runs if run["ours"]}


def run_name(run: Run) -> str:
    parts = [run["method"], run["dtype"], f"{run['members']} models", f"context {run['context']}"]
    if run["members"] == 1:
        parts[2] = "1 model"
    if run["segment"] is not None:
        parts.append(f"segment {run['segment']}")
    return ", ".join([*parts, f"{run['new']} new"])


def _decoding_cell(run: Run, runs: Sequence[Run]) -> Cell:
    work = " and ".join(run["models"])
    time = _time(run)
    if time is None:
        return Cell(None, {}, work, run.get("failure") or "no token was committed")
    # Of a text that ended earlier each token bears more of the prompt's time.
    work = f"{run['tokens']} tokens of {work}"
    ratios = {}
    for peer in runs:
        alike = all(peer[field] == run[field] for field in ("dtype", "context"))
        theirs = _time(peer) if alike and peer["method"].startswith(ALONE) else None
        if theirs is not None:
            ratios[f"{run_name(peer)}, {peer['models']}"] = Spread(
                theirs.low / time.high, theirs.middle / time.middle, theirs.high / time.low
            )
    return Cell(time, ratios, work)


def _time(run: Run) -> Spread | None:
    """Least, median and most of the repetitions, stretched: at least LEAST_WIDTH."""
    time = milliseconds_per_token(run)
    if time is None:
        return None
    width = LEAST_WIDTH.get(len(run["seconds"]), 0.0)
    low, high = time.middle * (1 - width), time.middle * (1 + width)
    more = STRETCH * (time.high - time.low)
    return Spread(min(time.low - more, low), time.middle, max(time.high + more, high))


def typical(ratios: Sequence[Spread]) -> Spread:
    return Spread(*(statistics.median(values) for values in zip(*ratios, strict=True)))
