"""The sections of a report about the operators."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.report.cells import Row, Spread, best_peer, by_case, our_row
from benchmarks.report.markdown_tables import (
    NOTHING,
    escape,
    figure,
    percent,
    spread,
    table,
    words,
)

COLUMNS = (
    *("case", "back end or peer", "median, µs", "quartiles, µs", "floor, µs", "of the floor"),
    *("time/ours", "load", "checked"),
)


def sections(report: dict[str, Any]) -> list[str]:
    """Empty where the operators were not measured."""
    measured = report.get("operators") or {}
    if not measured.get("operators"):
        return []
    parts = ["## Operators", *_ceilings(measured)]
    parts.append(
        "The floor is the least time for the bytes (m) or the matrix products (p) of a call at "
        "these rates; of the floor is what is reached of it, 100 % is all (above it, what "
        "measured the rates did not reach them itself). Time/ours is the median of the ratios of "
        "neighbouring calls with its quartiles; above 1 ours is faster. The first line of a case "
        "is ours (bold)."
    )
    for operator, rows in measured["operators"].items():
        parts += [f"### `{operator}`", _operator_table(rows)]
    return parts


def _ceilings(measured: dict[str, Any]) -> list[str]:
    ceilings = measured.get("ceilings") or []
    if not ceilings:
        return []
    dtypes = list(ceilings[0]["products"])
    columns = ["threads", "read, GB/s", "copy, GB/s", *(f"{d} products, GFLOP/s" for d in dtypes)]
    lines = [
        [str(c["threads"]), figure(c["read"]), figure(c["copy"])]
        + [figure(c["products"].get(dtype)) for dtype in dtypes]
        for c in ceilings
    ]
    cache = measured["last_level_cache"] / 2**20
    text = (
        "What the machine reached in this run. The buffers of a case take turns and exceed the "
        f"last-level cache of {cache:,.0f} MiB where it does not say that they are in it."
    )
    return [text, table(columns, lines)]


def _operator_table(rows: Sequence[Row]) -> str:
    memory = any("peak_mib" in row for row in rows)
    columns = (*COLUMNS[:-1], *("peak, MiB",) * memory, COLUMNS[-1])
    lines = []
    for case, alternatives in by_case(rows).items():
        for row in alternatives:
            name = escape(case) + ", in cache" * bool(row["in_cache"])
            *figures, checked = _cells(row)
            peak = [figure(row.get("peak_mib"))] * memory
            lines.append([name, *figures, *peak, checked])
    return table(columns, lines, left=2, last=1)


def _cells(row: Row) -> list[str]:
    name = escape(row["alternative"])
    name = f"**{name}**" if row["ours"] else name
    floor, load = f"{figure(row['floor_us'])} {row['bound'][0]}", figure(row["load"])
    if "refused" in row:
        return [name, "refused", NOTHING, floor, NOTHING, NOTHING, load, escape(row["refused"])]
    low, high = row["quartiles_us"]
    ratio = Spread(row["ratio_quartiles"][0], row["ratio"], row["ratio_quartiles"][1])
    return [
        name,
        figure(row["median_us"]),
        f"{figure(low)}–{figure(high)}",
        floor,
        percent(row["floor_share"]),
        "1" if row["ours"] else spread(ratio),
        load,
        words(row.get("match")),
    ]


def short_rows(report: dict[str, Any]) -> list[list[str]]:
    """Of each operator, what `markdown.short_table` shows."""
    lines = []
    for operator, rows in ((report.get("operators") or {}).get("operators") or {}).items():
        cases = by_case(rows)
        ratios = [peer["ratio"] for rows in cases.values() if (peer := best_peer(rows))]
        shares = [ours["floor_share"] for rows in cases.values() if (ours := our_row(rows))]
        beaten = f"{sum(ratio > 1 for ratio in ratios)} of {len(ratios)}" if ratios else NOTHING
        span = NOTHING
        if ratios:
            middle = statistics.median(ratios)
            span = f"{figure(min(ratios))}–{figure(max(ratios))}, median {figure(middle)}"
        floors = f"{percent(min(shares))} to {percent(max(shares))}" if shares else NOTHING
        lines.append([f"`{operator}`", str(len(cases)), span, beaten, floors])
    return lines
