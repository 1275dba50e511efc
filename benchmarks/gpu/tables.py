"""Tables for a terminal: rich's where it is installed, plain columns elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from benchmarks.gpu.figures import Row

COLUMNS = (
    "case",
    "back end or peer",
    "eager, µs",
    "graph, µs",
    "floor, µs",
    "floor/eager",
    "floor/graph",
    "time/ours",
    "in graphs",
)


def render(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        return plain(title, columns, rows)
    text = StringIO()
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 2 else "right")
    grouped = any(not row[0] for row in rows)
    for row in rows:
        if grouped and row[0] and table.row_count:
            table.add_section()
        table.add_row(*row)
    Console(file=text, width=170).print(table)
    return text.getvalue()


def plain(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if number < 2 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([title, line(columns), rule, *map(line, rows)]) + "\n"


def timings(operator: str, rows: Sequence[Row]) -> str:
    lines, case = [], None
    for row in rows:
        shown = "" if row["case"] == case else row["case"] + " in cache" * row["in_cache"]
        case = row["case"]
        if "refused" in row:
            lines.append((shown, f"{row['alternative']}: {row['refused']}", *[""] * 7))
        else:
            lines.append((shown, row["alternative"] + " (ours)" * row["ours"], *_cells(row)))
    return render(operator, COLUMNS, lines)


def _cells(row: Row) -> list[str]:
    eager, graph = row["eager"], row["graph"]
    return [
        _microseconds(eager["us"]),
        _microseconds(graph["us"]) if graph else "",
        f"{_microseconds(row['floor_us'])} {row['bound'][0]}",
        f"{eager['floor_share']:.2f}",
        f"{graph['floor_share']:.2f}" if graph else "",
        "" if row["ours"] else f"{eager['ratio']:.2f}",
        f"{graph['ratio']:.2f}" if graph and graph["ratio"] and not row["ours"] else "",
    ]


def _microseconds(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
