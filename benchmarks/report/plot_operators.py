"""The picture of the operators: each case a dot, beside its best peer and beside the floor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.report.cells import best_peer, by_case, our_row

# By the first word of a case.
DTYPES = {"float32": ("#0072B2", "o"), "bfloat16": ("#E69F00", "s")}
OTHER = ("#009E73", "D")
TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20, 30, 50, 100)
DECADES = tuple(10.0**n for n in range(-3, 5))
SPAN = 0.3  # half of the height over which the dots of an operator and dtype are spread


class Dot(NamedTuple):
    operator: str
    dtype: str
    ratio: float | None  # the best peer's time over ours
    floor_share: float
    in_cache: bool


def operators(report: dict[str, Any]) -> Figure | None:
    dots = _dots((report.get("operators") or {}).get("operators") or {})
    if not dots:
        return None
    names = list(dict.fromkeys(dot.operator for dot in dots))
    figure = Figure(figsize=(10, 1.8 + 0.8 * len(names)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes in (left, right):
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        for place in range(1, len(names)):
            axes.axhline(0.5 - place, color="#dddddd", linewidth=0.6)
    _draw_ratios(left, names, dots)
    _draw_shares(right, names, dots)
    left.set_yticks(range(0, -len(names), -1), names)
    left.set_ylim(-len(names) + 0.45, 0.55)
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    return figure


def _dots(measured: dict[str, Any]) -> list[Dot]:
    dots = []
    for operator, rows in measured.items():
        for case, alternatives in by_case(rows).items():
            ours, peer = our_row(alternatives), best_peer(alternatives)
            if ours is not None:
                dtype = case.split("-")[0]
                ratio = peer["ratio"] if peer is not None else None
                dots.append(Dot(operator, dtype, ratio, ours["floor_share"], ours["in_cache"]))
    return dots


def _draw_ratios(axes: Axes, names: Sequence[str], dots: Sequence[Dot]) -> None:
    axes.set_xscale("log")
    _scatter(axes, names, dots, [dot.ratio for dot in dots])
    axes.axvline(1, color="black", linewidth=1)
    # A whole decade may not be there, and its parts are what matters.
    low, high = axes.get_xlim()
    places = TICKS if high < 20 * low else DECADES
    ticks = [t for t in places if low <= t <= high]
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("time of the best peer over ours (right of 1 ours is faster)")


def _draw_shares(axes: Axes, names: Sequence[str], dots: Sequence[Dot]) -> None:
    shares: list[float | None] = [100 * dot.floor_share for dot in dots]
    _scatter(axes, names, dots, shares)
    axes.axvline(100, color="black", linewidth=1)
    axes.set_xlim(left=0)
    axes.set_xlabel("% of the floor that is reached")


def _scatter(
    axes: Axes, names: Sequence[str], dots: Sequence[Dot], values: Sequence[float | None]
) -> None:
    dtypes = list(dict.fromkeys(dot.dtype for dot in dots))
    for dtype in dtypes:
        color, marker = DTYPES.get(dtype, OTHER)
        for in_cache in (False, True):
            xs, ys = _places(names, dots, values, dtypes, dtype, in_cache)
            if xs:
                face = "none" if in_cache else color
                label = dtype + ", in cache" * in_cache
                axes.scatter(
                    xs, ys, s=26, marker=marker, facecolor=face, edgecolor=color, label=label
                )


def _places(
    names: Sequence[str],
    dots: Sequence[Dot],
    values: Sequence[float | None],
    dtypes: Sequence[str],
    dtype: str,
    in_cache: bool,
) -> tuple[list[float], list[float]]:
    """Of the dots of one kind. Those of an operator stand below each other in the order of its
    cases, each dtype in a band of its own, so that few hide another."""
    xs, ys = [], []
    for number, operator in enumerate(names):
        band = [
            (dot, value)
            for dot, value in zip(dots, values, strict=True)
            if (dot.operator, dot.dtype) == (operator, dtype)
        ]
        height = 2 * SPAN / len(dtypes)
        top = SPAN - height * dtypes.index(dtype)
        for place, (dot, value) in enumerate(band):
            if value is not None and dot.in_cache == in_cache:
                xs.append(value)
                ys.append(-number + top - height * (place + 0.5) / len(band))
    return xs, ys
