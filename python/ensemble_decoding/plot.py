"""A picture of a trace: the members' weights over the rounds, and who drafted what won."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from .trace import Round, Trace

# M. Okabe and K. Ito, "Color Universal Design": told apart with every kind of colour vision. Its
# black is left to the marks, its yellow is too light for a line.
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_SHARED = "0.6"
_SUFFIXES = (".png", ".svg", ".pdf")
_NAME_LENGTH = 26
# One member drafts, and what the others do is not a vote.
_WITHOUT_WINNERS = ("safe", "cosd")
_SMALL_LETTERS_PER_INCH = 13.5
# Above this many rounds neither a marker for each nor a gap between them can be seen.
_FEW_ROUNDS = 40
_ENDS: dict[str, tuple[str, Any]] = {
    "ended": ("the text ended", ":"),
    "cut": ("the winner was cut", "--"),
}


def plot_trace(trace: Trace) -> Figure:
    """Draws a trace of SpecEM or of a token-level ensemble.

    Above, a line for each member: its weight in the vote of each round, from the equal weights
    that it starts with. Below, a lane for each member that drafts: the rounds that its draft won,
    grey where others drafted the same. Rounds that ended the text or were cut are marked.

    Args:
        trace: the rounds, at least one.

    Returns:
        A matplotlib figure of its own, unknown to pyplot; `savefig` writes it.

    Raises:
        ValueError: the trace has no rounds, or is one of SAFE or CoSD.
    """
    if not trace.rounds:
        raise ValueError("trace must have at least one round, got none")
    if trace.method in _WITHOUT_WINNERS:
        raise ValueError(f"trace must be of a method whose drafts compete, got {trace.method}")
    names = _distinct([_short(name) for name in trace.members])
    drafters = sorted({j for r in trace for c in r.candidates for j in c.drafted_by})
    lanes = 0.24 * len(drafters)
    figure = Figure(layout="constrained")
    figure.set_figwidth(min(max(8.0, 5 + 0.06 * len(trace)), 13.0))
    panels = figure.subplots(2, sharex=True, height_ratios=[2.6, lanes + 0.1])
    _draw_weights(panels[0], trace)
    _draw_winners(panels[1], trace, drafters, [names[j] for j in drafters])
    handles: list[Artist] = list(panels[0].get_lines())
    labels = [f"{name}: {_record(trace, j, drafters)}" for j, name in enumerate(names)]
    if any(len(_winners(round_)) > 1 for round_ in trace):
        handles.append(Patch(facecolor=_SHARED))
        labels.append("drafted by several")
    for kind in _mark_ends(panels, trace):
        handles.append(Line2D([], [], color="black", linestyle=_ENDS[kind][1], linewidth=1))
        labels.append(_ENDS[kind][0])
    beside = 0.065 * max(map(len, names))
    lines = _write_title(figure, trace, figure.get_figwidth() - beside - 0.5)
    rows = _write_legend(figure, handles, labels)
    figure.set_figheight(2.6 + lanes + 1.5 + 0.16 * lines + 0.2 * rows)
    return figure


def save_plot(trace: Path, output: Path) -> None:
    """Draws the trace in one file into another, a .png, .svg or .pdf.

    Raises:
        ValueError: naming the argument, what was expected and what came.
    """
    if output.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"output must end in {', '.join(_SUFFIXES)}, got {output}")
    try:
        figure = plot_trace(Trace.load(trace))
    except OSError as error:
        raise ValueError(
            f"trace must be a file that can be read, got {trace}: {error.strerror}"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"trace must be a file that Trace.save wrote, got {trace}: {error.__cause__ or error}"
        ) from error
    try:
        figure.savefig(output, format=output.suffix[1:].lower(), dpi=150)
    except OSError as error:
        raise ValueError(
            f"output must be a file that can be written, got {output}: {error.strerror}"
        ) from error


def _draw_weights(axes: Axes, trace: Trace) -> None:
    members, rounds = len(trace.members), len(trace)
    for j in range(members):
        weights = [1 / members, *(round_.weights[j] for round_ in trace)]
        axes.plot(
            range(rounds + 1),
            weights,
            color=_COLORS[j % len(_COLORS)],
            linestyle="-" if j < len(_COLORS) else "--",
            marker=_MARKERS[j % len(_MARKERS)],
            markersize=5,
            markevery=1 if rounds <= _FEW_ROUNDS else (j * rounds // (10 * members), rounds // 10),
            # Lines that lie on each other are seen beside each other.
            linewidth=1.6 + 1.2 * (members - 1 - j) / members,
            clip_on=False,
        )
    top = max(1 / members, *(max(round_.weights) for round_ in trace))
    axes.set_ylim(0, 1.08 * top)
    axes.set_ylabel("weight")
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_winners(axes: Axes, trace: Trace, drafters: Sequence[int], names: Sequence[str]) -> None:
    few = len(trace) <= _FEW_ROUNDS
    for lane, j in enumerate(drafters):
        won = [t for t, round_ in enumerate(trace, 1) if j in _winners(round_)]
        colors = [
            _SHARED if len(_winners(trace[t - 1])) > 1 else _COLORS[j % len(_COLORS)] for t in won
        ]
        cells = [
            [
                (t - 0.5, lane - 0.4),
                (t + 0.5, lane - 0.4),
                (t + 0.5, lane + 0.4),
                (t - 0.5, lane + 0.4),
            ]
            for t in won
        ]
        axes.add_collection(
            PolyCollection(
                cells, facecolors=colors, edgecolors="white", linewidths=1.5 if few else 0.2
            )
        )
    axes.set_xlim(-0.5 if few else -1, len(trace) + 0.7)
    axes.set_ylim(len(drafters) - 0.4, -0.6)
    _plain(axes.set_yticks(range(len(drafters)), names, fontsize=8))
    axes.set_title("whose draft won", loc="left", fontsize=9)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda t, _: "start" if t == 0 else f"{t:.0f}"))
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _mark_ends(panels: Sequence[Axes], trace: Trace) -> list[str]:
    """A vertical line behind each round that ended the text or was cut; the kinds there are."""
    kinds = []
    for t, round_ in enumerate(trace, 1):
        winner = round_.candidates[round_.winner]
        ids = winner.token_ids
        cut = any(n < len(own) for n, own in zip(round_.committed_tokens, ids, strict=True))
        if not cut and not winner.ended:
            continue
        kind = "cut" if cut else "ended"
        kinds.append(kind)
        for axes in panels:
            axes.axvline(t + 0.5, color="black", linestyle=_ENDS[kind][1], linewidth=1)
    return sorted(set(kinds))


def _write_title(figure: Figure, trace: Trace, inches: float) -> int:
    """The method and, in lines of a length in inches, its options; returns how many lines."""
    shown = {k: v for k, v in trace.options.items() if v is not None and v is not False}
    # Held together by spaces at which no line is broken.
    options = [f"{name} {value}"[:80].replace(" ", "\u00a0") for name, value in shown.items()]
    lines = textwrap.wrap(" · ".join(options), int(inches * _SMALL_LETTERS_PER_INCH))
    rounds = "1 round" if len(trace) == 1 else f"{len(trace)} rounds"
    title = figure.suptitle(f"{trace.method}: weights and winners over {rounds}")
    small = figure.axes[0].set_title("\n".join(lines), fontsize=8, color="0.35")
    _plain([title, small])
    return len(lines)


def _write_legend(figure: Figure, handles: Sequence[Artist], labels: Sequence[str]) -> int:
    """Below everything; returns how many rows it has."""
    letters = max(map(len, labels)) + 7  # with its handle
    fitting = int(figure.get_figwidth() * _SMALL_LETTERS_PER_INCH / letters)
    columns = min(max(1, fitting), len(labels))
    legend = figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, fontsize=9, frameon=False
    )
    _plain(legend.get_texts())
    return -(-len(labels) // columns)


def _plain(texts: Sequence[Any]) -> None:
    """Names are no formulas, even with two dollar signs."""
    for text in texts:
        getattr(text, "label1", text).set_parse_math(False)


def _winners(round_: Round) -> list[int]:
    return round_.candidates[round_.winner].drafted_by


def _record(trace: Trace, j: int, drafters: Sequence[int]) -> str:
    if j not in drafters:
        return "judged only"
    return f"won {sum(j in _winners(round_) for round_ in trace)} of {len(trace)}"


def _short(name: str) -> str:
    """The family stands at the beginning of a model's name, size and kind at the end."""
    name = " ".join(name.split())
    if len(name) <= _NAME_LENGTH:
        return name
    half = (_NAME_LENGTH - 1) // 2
    return f"{name[: _NAME_LENGTH - 1 - half]}…{name[-half:]}"


def _distinct(names: Sequence[str]) -> list[str]:
    if len(set(names)) == len(names):
        return list(names)
    return [f"{place}. {name}" for place, name in enumerate(names, 1)]
