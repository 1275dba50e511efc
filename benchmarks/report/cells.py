"""What the rows and runs of a report say, for its text, its pictures and its comparison alike.

A row is one alternative in one case of an operator, a run one way to decode at one setting, both as
`json.load` gives them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

Row = dict[str, Any]
Run = dict[str, Any]

# Beginnings of `match` where a peer does something else, like a copy of as many bytes: it is shown,
# and ours is not held against it.
OTHER_WORK = ("not ", "none", "timed only")
# Which code without any of our means is the measure of a method.
NAIVE = {"SpecEM": "naive SpecEM", "CoSD": "naive CoSD"}
NAIVE |= dict.fromkeys(("SAFE", "SAFE, always", "TokenEnsemble"), "naive union")


class Spread(NamedTuple):
    """Of a figure: quartiles around the median, or the least and the most."""

    low: float
    middle: float
    high: float


def by_case(rows: Iterable[Row]) -> dict[str, list[Row]]:
    cases: dict[str, list[Row]] = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(row)
    return cases


def our_row(rows: Sequence[Row]) -> Row | None:
    """Of one case; None where ours was refused."""
    return next((row for row in rows if row["ours"] and "refused" not in row), None)


def peers_of(rows: Sequence[Row]) -> list[Row]:
    """What did the same work as ours in one case."""
    return [row for row in rows if not row["ours"] and "refused" not in row and _same_work(row)]


def _same_work(row: Row) -> bool:
    match = str(row.get("match") or "").lower()
    return not match.startswith(OTHER_WORK) and not row["alternative"].startswith("memcpy")


def best_peer(rows: Sequence[Row]) -> Row | None:
    return min(peers_of(rows), key=lambda row: float(row["ratio"]), default=None)


def all_runs(report: dict[str, Any]) -> list[Run]:
    return list((report.get("end_to_end") or {}).get("runs") or [])


def defaults_of(report: dict[str, Any]) -> dict[str, Any]:
    return (report.get("end_to_end") or {}).get("defaults") or {}


def succeeded(run: Run) -> bool:
    return not run.get("failure") and bool(run.get("seconds")) and run.get("tokens", 0) > 0


def milliseconds_per_token(run: Run) -> Spread | None:
    """The whole run, prompt included."""
    return _spread(1e3 * s / run["tokens"] for s in run["seconds"]) if succeeded(run) else None


def tokens_per_second(run: Run) -> Spread | None:
    """The whole run, prompt included."""
    return _spread(run["tokens"] / s for s in run["seconds"]) if succeeded(run) else None


def milliseconds_behind_first(run: Run) -> Spread | None:
    """Of a token behind the first piece, which holds the prompt's time; None where no token is."""
    if not succeeded(run) or not run.get("first_seconds"):
        return None
    tokens = run["tokens"] - run["first_tokens"]
    if tokens <= 0:
        return None
    pairs = zip(run["seconds"], run["first_seconds"], strict=True)
    return _spread(1e3 * (whole - first) / tokens for whole, first in pairs)


def _spread(values: Iterable[float]) -> Spread:
    found = list(values)
    return Spread(min(found), statistics.median(found), max(found))


def is_default(run: Run, defaults: dict[str, Any], *, but: str = "") -> bool:
    """Whether a run stands at the setting that the tables start from, `but` for one quantity. Peers
    may have less to set: one model, no segments, another number of new tokens."""
    segments = defaults.get("segment", {})
    wanted = {name: defaults.get(name, run[name]) for name in ("context", "members", "new")}
    wanted["segment"] = segments.get(run["method"], run["segment"])
    if not run["ours"]:
        wanted["new"] = run["new"]
        if run["members"] == 1:
            wanted["members"] = 1
    return all(
        name == but or (run[name] or 1) == (value or 1)  # no segments are segments of one token
        for name, value in wanted.items()
    )


def sweep(
    report: dict[str, Any], quantity: str, *, least: int = 2
) -> dict[tuple[str, str], dict[int, Run]]:
    """The runs that differ from the default in `quantity` alone: by (dtype, method), then by its
    value. Only methods that were run at `least` values."""
    defaults = defaults_of(report)
    found: dict[tuple[str, str], dict[int, Run]] = {}
    # Where a peer was run for several lengths, the default one comes last and stays.
    for run in sorted(all_runs(report), key=lambda run: run["new"] == defaults.get("new")):
        if is_default(run, defaults, but=quantity):
            points = found.setdefault((run["dtype"], run["method"]), {})
            points[run[quantity] or 1] = run
    order = list(dict.fromkeys((run["dtype"], run["method"]) for run in all_runs(report)))
    return {
        key: dict(sorted(found[key].items()))
        for key in order
        if key in found and len(found[key]) >= least
    }


def naive_time_over(run: Run, runs: Sequence[Run]) -> float | None:
    """How many times as long naive code takes as one of our runs; None where it was not run."""
    name = NAIVE.get(run["method"])
    same = ("dtype", "context", "members", "new")
    ours = milliseconds_per_token(run) if run["ours"] else None
    for naive in runs:
        if naive["method"] == name and all(naive[field] == run[field] for field in same):
            theirs = milliseconds_per_token(naive)
            if ours and theirs and _same_segment(naive, run):
                return theirs.middle / ours.middle
    return None


def _same_segment(naive: Run, run: Run) -> bool:
    return naive["segment"] in (None, 1, run["segment"])
