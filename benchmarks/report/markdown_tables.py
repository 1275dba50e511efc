"""Tables and figures in GitHub-flavoured Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarks.report.cells import Spread

NOTHING = "–"  # where there is no figure


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, last: int = 0
) -> str:
    """The first `left` and the `last` columns are of words, those between of figures, to the right.
    Cells are escaped already."""
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"expected {len(columns)} cells, got {len(row)}: {row}")
    rule = ["---"] * left + ["---:"] * (len(columns) - left - last) + ["---"] * last
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (columns, rule, *rows)) + "\n"


def escape(text: object) -> str:
    """Words that are not ours, in one line and shown as they are."""
    line = " ".join(str(text).split())
    line = re.sub(r"[\\`*|\[\]~]", r"\\\g<0>", line)
    # Underscores within a word mean nothing to Markdown.
    line = re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", line)
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def figure(value: float | None) -> str:
    """Three digits, and no more than the whole number."""
    if value is None:
        return NOTHING
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 or not value else f"{value:.2g}"


def spread(value: Spread | None) -> str:
    """Middle (low-high); the middle alone where there is one figure."""
    if value is None:
        return NOTHING
    if value.low == value.high:
        return figure(value.middle)
    return f"{figure(value.middle)} ({figure(value.low)}–{figure(value.high)})"


def percent(share: float | None) -> str:
    return NOTHING if share is None else f"{100 * share:.1f} %"


def words(text: object) -> str:
    return NOTHING if text in (None, "") else escape(text)
