"""The pictures of a report, as PNG files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks.report.cells import (
    Run,
    all_runs,
    defaults_of,
    is_default,
    milliseconds_behind_first,
    succeeded,
    sweep,
)
from benchmarks.report.plot_operators import operators

# Okabe and Ito's, which differ for the colour-blind as well; yellow is too pale for a line, and
# black is for naive code.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999999")
NAIVE = "#000000"
MARKERS = "osD^vPX*"
STAGES = {
    "prompt": "#000000",
    "draft": "#0072B2",
    "verify": "#009E73",
    "align": "#F0E442",
    "mix": "#CC79A7",
    "commit": "#D55E00",
    "tokenizers": "#56B4E9",
    "Python": "#999999",
}
Lines = dict[tuple[str, str], dict[int, Run]]


def draw(report: dict[str, Any], folder: Path) -> list[str]:
    """Writes the pictures that the data allows into `folder`; the names of their files."""
    makers: dict[str, Callable[[dict[str, Any]], Figure | None]] = {
        "context.png": context,
        "members.png": members,
        "stages.png": stages,
        "operators.png": operators,
    }
    written = []
    for name, make in makers.items():
        figure = make(report)
        if figure is not None:
            figure.savefig(folder / name, dpi=150)
            written.append(name)
    return written


def context(report: dict[str, Any]) -> Figure | None:
    """Lines of peers with a single length would be dots without a neighbour, but they say where
    the others stand: so any number of lengths is drawn once one method has two."""
    return _sweep_figure(report, "context", "tokens of the prompt", logarithmic=True)


def members(report: dict[str, Any]) -> Figure | None:
    return _sweep_figure(report, "members", "models", logarithmic=False)


def _sweep_figure(
    report: dict[str, Any], quantity: str, label: str, *, logarithmic: bool
) -> Figure | None:
    """A panel for each dtype, a line for each method, of its tokens behind the first piece."""
    lines = {key: _times(points) for key, points in sweep(report, quantity, least=1).items()}
    known = {key: sum(not isnan(t) for t in times.values()) for key, times in lines.items()}
    lines = {key: times for key, times in lines.items() if known[key]}
    if max(known.values(), default=0) < 2:
        return None
    dtypes = list(dict.fromkeys(dtype for dtype, _ in lines))
    ours = {run["method"] for run in all_runs(report) if run["ours"]}
    styles = _styles(list(dict.fromkeys(run["method"] for run in all_runs(report))), ours)
    figure = Figure(figsize=(1.5 + 4.6 * len(dtypes), 4.4), layout="constrained")
    panels = figure.subplots(1, len(dtypes), sharey=True, squeeze=False)[0]
    for axes, dtype in zip(panels, dtypes, strict=True):
        for (found, method), times in lines.items():
            if found == dtype:
                # Between two of these matplotlib reads TeX.
                name = method.replace("$", r"\$")
                axes.plot(list(times), list(times.values()), label=name, **styles[method])
        values = sorted({v for (found, _), times in lines.items() if found == dtype for v in times})
        _set_axes(axes, values, logarithmic)
        axes.set_title(dtype)
        axes.set_xlabel(label)
    panels[0].set_ylabel("ms a token, behind the first piece")
    _legend(figure, panels)
    return figure


def _times(points: dict[int, Run]) -> dict[int, float]:
    """NaN, a gap in the line, where a run failed."""
    spreads = {value: milliseconds_behind_first(run) for value, run in points.items()}
    return {value: spread.middle if spread else nan for value, spread in spreads.items()}


def _styles(methods: Sequence[str], ours: set[str]) -> dict[str, dict[str, Any]]:
    """Ours have full lines and filled marks, peers dashed lines and hollow ones."""
    styles: dict[str, dict[str, Any]] = {}
    order = sorted(methods, key=lambda m: (m not in ours, m.startswith("naive")))
    for number, method in enumerate(order):
        own = method in ours
        styles[method] = {
            "color": NAIVE if method.startswith("naive") else COLORS[number % len(COLORS)],
            "marker": MARKERS[number % len(MARKERS)],
            "linestyle": "-" if own else "--",
            "markerfacecolor": None if own else "white",
            "linewidth": 1.8 if own else 1.2,
        }
    return styles


def _set_axes(axes: Axes, values: Sequence[int], logarithmic: bool) -> None:
    """Marks at the values that were measured, written out: powers of ten say little here."""
    if logarithmic:
        axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(list(values), [f"{value:,}" for value in values])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.08)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One for all panels, beside them, where it hides no line."""
    entries: dict[str, Artist] = {}
    for axes in panels:
        entries |= dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(list(entries.values()), list(entries), loc="outside right upper", frameon=False)


def stages(report: dict[str, Any]) -> Figure | None:
    """A bar for each of our methods and dtypes at the default setting."""
    defaults = defaults_of(report)
    runs = [
        run
        for run in all_runs(report)
        if run.get("shares") and succeeded(run) and is_default(run, defaults)
    ]
    if not runs:
        return None
    figure = Figure(figsize=(9, 1.4 + 0.42 * len(runs)), layout="constrained")
    axes = figure.subplots()
    for place, run in enumerate(runs):
        begin = 0.0
        for stage, color in STAGES.items():
            share = 100 * (run["shares"].get(stage) or 0.0)
            axes.barh(-place, share, left=begin, color=color, height=0.7)
            if share >= 5:
                _name_share(axes, begin + share / 2, -place, share, color)
            begin += share
    names = [f"{run['method']}, {run['dtype']}".replace("$", r"\$") for run in runs]
    axes.set_yticks(range(0, -len(runs), -1), names)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the time of a run")
    axes.spines[["top", "right"]].set_visible(False)
    handles = [Patch(color=color) for color in STAGES.values()]
    figure.legend(handles, list(STAGES), loc="outside upper center", ncols=8, frameon=False)
    return figure


def _name_share(axes: Axes, middle: float, height: float, share: float, color: str) -> None:
    dark = color in (STAGES["prompt"], STAGES["draft"])
    tint = "white" if dark else "black"
    axes.text(middle, height, f"{share:.0f}", color=tint, ha="center", va="center", fontsize=8)
