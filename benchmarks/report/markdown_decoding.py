"""The sections of a report about decoding from the prompt to the last token."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.report.cells import (
    Run,
    Spread,
    all_runs,
    defaults_of,
    is_default,
    milliseconds_behind_first,
    naive_time_over,
    succeeded,
    sweep,
    tokens_per_second,
)
from benchmarks.report.history_cells import run_name
from benchmarks.report.markdown_tables import (
    NOTHING,
    escape,
    figure,
    percent,
    spread,
    table,
    words,
)

STAGES = ("prompt", "draft", "verify", "align", "mix", "commit", "tokenizers", "Python")
MAIN = (
    *("dtype", "method", "new tokens", "tokens/s", "first piece, s", "naive's time over this"),
    *("outside of the models", "passes a token", "peak, MB", "load", "checked"),
)
SWEEPS = (
    ("context", "Length of the context", "tokens of prompt"),
    ("members", "Number of members", "models"),
    ("segment", "Length of a segment", "tokens a segment"),
)


def sections(report: dict[str, Any]) -> list[str]:
    """Empty where decoding was not measured."""
    runs = all_runs(report)
    if not runs:
        return []
    parts = ["## Decoding, end to end", *_main(report), *_stages(report)]
    for quantity, title, unit in SWEEPS:
        parts += _sweep(report, quantity, title, unit)
    return [*parts, *_failures(runs), *_models(runs)]


def setting(report: dict[str, Any]) -> str:
    """The default one in words."""
    defaults = defaults_of(report)
    words = [
        f"{defaults[name]:,} {unit}"
        for name, unit in (
            ("members", "models"),
            ("context", "tokens of prompt"),
            ("new", "new tokens"),
        )
        if name in defaults
    ]
    return ", ".join(words) or "as measured"


def _main(report: dict[str, Any]) -> list[str]:
    defaults, runs = defaults_of(report), all_runs(report)
    chosen = [run for run in runs if is_default(run, defaults)]
    text = (
        f"The default setting: {setting(report)}; segments of "
        + (_segments(defaults) or "the methods' own lengths")
        + ". New tokens are the first model's, of a model alone its own; of so many, where the "
        "text ended before. Tokens a second include the prompt; figures are medians of the "
        "repetitions, with the least and the most. The first "
        "piece is the first segment of a method and the first token of a single model. Outside of "
        "the models is the share of the time that is spent in no forward pass. Passes a token are "
        "given for each member."
    )
    lines = [_main_row(run, runs) for run in chosen]
    return [text, table(MAIN, lines, left=2, last=1)] if lines else []


def _segments(defaults: dict[str, Any]) -> str:
    lengths = defaults.get("segment", {})
    return ", ".join(f"{length or 1} in {escape(name)}" for name, length in lengths.items())


def _main_row(run: Run, runs: Sequence[Run]) -> list[str]:
    beginning = [run["dtype"], escape(run["method"]), str(run["new"])]
    if not succeeded(run):
        return [*beginning, "failed", *[NOTHING] * 5, figure(run.get("load")), _reason(run)]
    first = run.get("first_seconds")
    if run["tokens"] != run["new"]:  # the text ended before
        beginning[2] = f"{run['tokens']} of {run['new']}"
    return [
        *beginning,
        spread(tokens_per_second(run)),
        spread(Spread(min(first), statistics.median(first), max(first)) if first else None),
        figure(naive_time_over(run, runs)),
        percent(run.get("outside")),
        ", ".join(f"{passes:.2f}" for passes in run.get("passes") or ()) or NOTHING,
        figure(run.get("peak_mb")),
        figure(run.get("load")),
        words(run.get("match")),
    ]


def _reason(run: Run) -> str:
    return escape(run.get("failure") or "no token was committed")


def _stages(report: dict[str, Any]) -> list[str]:
    chosen = [
        run
        for run in all_runs(report)
        if run.get("shares") and succeeded(run) and is_default(run, defaults_of(report))
    ]
    if not chosen:
        return []
    lines = [
        [run["dtype"], escape(run["method"]), *(percent(run["shares"].get(s)) for s in STAGES)]
        for run in chosen
    ]
    text = "Shares of the time of a run by stage, at the default setting."
    return ["### Where the time goes", text, table(("dtype", "method", *STAGES), lines, left=2)]


def _sweep(report: dict[str, Any], quantity: str, title: str, unit: str) -> list[str]:
    found = sweep(report, quantity)
    if not found:
        return []
    values = sorted({value for points in found.values() for value in points})
    columns = ["dtype", "method", *(f"{value:,}" for value in values), "growth"]
    lines = [
        [dtype, escape(method), *(_point(points.get(value)) for value in values), _growth(points)]
        for (dtype, method), points in found.items()
    ]
    text = (
        f"Milliseconds a token behind the first piece, by {unit}, the rest as by default. Growth "
        "is the time at the largest value over that at the least."
    )
    return [f"### {title}", text, table(columns, lines, left=2)]


def _point(run: Run | None) -> str:
    if run is None:
        return NOTHING
    return spread(milliseconds_behind_first(run)) if succeeded(run) else "failed"


def _growth(points: dict[int, Run]) -> str:
    times = {value: milliseconds_behind_first(run) for value, run in points.items()}
    known = {value: time for value, time in times.items() if time is not None}
    if len(known) < 2:
        return NOTHING
    least, largest = min(known), max(known)
    return f"{known[largest].middle / known[least].middle:.2f} ({largest:,} over {least:,})"


def _failures(runs: Sequence[Run]) -> list[str]:
    lines = [[escape(run_name(run)), _reason(run)] for run in runs if not succeeded(run)]
    return ["### What failed", table(("run", "reason"), lines, left=2)] if lines else []


def _models(runs: Sequence[Run]) -> list[str]:
    """Which models stand behind a number of members."""
    chosen = dict.fromkeys(" + ".join(run["models"]) for run in runs)
    return ["Models: " + "; ".join(escape(models) for models in chosen) + "."]


def short_rows(report: dict[str, Any]) -> list[list[str]]:
    """Of each of our methods at the default setting: what `markdown.short_table` shows."""
    runs = all_runs(report)
    lines = []
    for run in runs:
        if not run["ours"] or not is_default(run, defaults_of(report)):
            continue
        rate = figure(rate.middle) if (rate := tokens_per_second(run)) else "failed"
        ratio, new = _against_naive(run, runs)
        shown = NOTHING if ratio is None else f"{figure(ratio)} times"
        if ratio is not None and new != run["new"]:
            shown += f" ({new} new tokens)"
        lines.append(
            [escape(run["method"]), run["dtype"], rate, shown, percent(run.get("outside"))]
        )
    return lines


def _against_naive(run: Run, runs: Sequence[Run]) -> tuple[float | None, int]:
    """At this setting, or, since naive code takes long, at another number of new tokens."""
    same = ("dtype", "method", "members", "context", "segment")
    alike = [other for other in runs if all(other[name] == run[name] for name in same)]
    for other in sorted(alike, key=lambda other: abs(other["new"] - run["new"])):
        ratio = naive_time_over(other, runs)
        if ratio is not None:
            return ratio, other["new"]
    return None, run["new"]
