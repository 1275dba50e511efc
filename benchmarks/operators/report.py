"""The tables at the end of a run."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.operators.ceilings import Ceilings

COLUMNS = ("median, µs", "IQR", "floor, µs", "floor/median", "time/ours", "match", "load")


def render(ceilings: list[Ceilings], operators: dict[str, list[dict[str, Any]]]) -> str:
    text = StringIO()
    console = Console(file=text, width=180)
    table = Table("threads", "read, GB/s", "copy, GB/s", title="ceilings", title_justify="left")
    for dtype in ceilings[0].products:
        table.add_column(f"{dtype}, GFLOP/s")
    for ceiling in ceilings:
        figures = (ceiling.read, ceiling.copy, *ceiling.products.values())
        table.add_row(str(ceiling.threads), *(f"{figure:.1f}" for figure in figures))
    console.print(table)
    for operator, rows in operators.items():
        console.print(_operator_table(operator, rows))
    return text.getvalue()


def _operator_table(operator: str, rows: list[dict[str, Any]]) -> Table:
    memory = any("peak_mib" in row for row in rows)
    table = Table("case", "back end or peer", title=operator, title_justify="left")
    for column in COLUMNS + ("peak, MiB",) * memory:
        table.add_column(column, justify="right", no_wrap=True)
    case = None
    for row in rows:
        if case is not None and row["case"] != case:
            table.add_section()
        name = "" if row["case"] == case else row["case"] + " in cache" * row["in_cache"]
        case = row["case"]
        if "refused" in row:
            table.add_row(name, f"{row['alternative']}: refused: {row['refused']}")
        else:
            table.add_row(name, row["alternative"], *_cells(row, memory))
    return table


def _cells(row: dict[str, Any], memory: bool) -> list[str]:
    low, high = row["ratio_quartiles"]
    cells = [
        f"{row['median_us']:.1f}",
        f"{row['iqr_us']:.1f}",
        f"{row['floor_us']:.1f} {row['bound'][0]}",
        f"{row['floor_share']:.2f}",
        "" if row["ours"] else f"{row['ratio']:.2f} ({low:.2f}-{high:.2f})",
        row["match"],
        f"{row['load']:.1f}",
    ]
    peak = row.get("peak_mib")
    return cells + ["?" if peak is None else f"{peak:.1f}"] * memory
