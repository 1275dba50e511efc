"""A report as one Markdown file. Every function returns text; nothing is read or written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.report import markdown_decoding as decoding
from benchmarks.report import markdown_operators as operators
from benchmarks.report.cells import all_runs
from benchmarks.report.history import (
    GONE,
    NEW,
    NOISE,
    VERDICTS,
    Change,
    machine_differences,
    summary,
)
from benchmarks.report.history_cells import run_name
from benchmarks.report.markdown_tables import escape, figure, table, words

PICTURES = {
    "context.png": "Time of a token by the length of the context",
    "members.png": "Time of a token by the number of members",
    "stages.png": "Where the time of a run goes",
    "operators.png": "The operators against their best peers and against the floor",
}


def render(
    report: dict[str, Any],
    changes: Sequence[Change] | None,
    pictures: Sequence[str],
    earlier: dict[str, Any] | None = None,
) -> str:
    """`changes` are those of `history.compare` to the report `earlier`, None where there is none to
    compare with. `pictures` are names of files in the folder of the text."""
    parts = ["# Benchmark report", *_machine(report), "## In short", short_table(report)]
    parts += _goals(report)
    parts += [f"![{PICTURES.get(name, name)}]({name})" for name in pictures]
    parts += [*_disturbed(report), *decoding.sections(report), *operators.sections(report)]
    parts += _history(report, changes, earlier)
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def short_table(report: dict[str, Any]) -> str:
    """The few figures that say most, also for the project's README."""
    parts = []
    if lines := decoding.short_rows(report):
        title = f"decoding: {decoding.setting(report)}"
        columns = (title, "dtype", "tokens/s", "naive code takes", "outside of the models")
        parts.append(table(columns, lines, left=2))
    if lines := operators.short_rows(report):
        figures = ("cases", "best peer's time over ours", "faster in", "of the floor")
        parts.append(table(("operator", *figures), lines))
    return "\n".join(parts)


def _machine(report: dict[str, Any]) -> list[str]:
    machine = report["machine"]
    native = ", ".join(f"{name}: {used}" for name, used in (machine.get("native") or {}).items())
    facts = {
        "date": machine.get("date"),
        "commit": _commit(machine),
        "processor": machine["processor"],
        "threads": f"{machine['threads']}, on {machine.get('cores')} cores",
        "memory": f"{figure(machine.get('memory_gb'))} GB",
        "instruction set": machine.get("library"),
        "operators' back ends": native,
        "torch": machine["torch"],
        "transformers": machine.get("transformers"),
        "Python": machine.get("python"),
        "platform": machine.get("platform"),
        "duration": f"{report['seconds'] / 60:.1f} minutes, size {report['size']}",
    }
    command = "python -m benchmarks.report" + " --quick" * (report["size"] == "quick")
    command = report.get("command") or command
    return [
        table(("machine", ""), [[name, words(fact)] for name, fact in facts.items()], left=2),
        f"Made by\n\n```sh\n{command}\n```",
    ]


def _commit(machine: dict[str, Any]) -> str:
    commit = machine.get("commit") or "unknown"
    return f"{commit[:-1]}, with uncommitted changes" if commit.endswith("+") else commit


def _goals(report: dict[str, Any]) -> list[str]:
    goals = (report.get("end_to_end") or {}).get("goals") or []
    lines = [
        [
            escape(goal["goal"]),
            escape(goal["asked"]),
            f"{figure(goal['measured'])} {escape(goal['unit'])}".strip(),
            "met" if goal["met"] else "**missed**",
        ]
        for goal in goals
    ]
    columns = ("goal", "asked", "measured", "")
    return ["## Goals", table(columns, lines, left=2, last=1)] if lines else []


def _disturbed(report: dict[str, Any]) -> list[str]:
    """What ran beside other work, whose figures are worth less."""
    most = report["machine"]["threads"] + 1
    rows = ((report.get("operators") or {}).get("operators") or {}).items()
    names = [run_name(run) for run in all_runs(report) if (run.get("load") or 0) > most]
    names += [
        f"{name}, {row['case']}" for name, found in rows for row in found if row["load"] > most
    ]
    text = f"load average above {most} (threads + 1)"
    if not names:
        return [f"Nothing was measured at a {text}."]
    return [_listing(f"Measured at a {text}, beside other work, and worth less", names)]


def _listing(title: str, names: Sequence[str]) -> str:
    """All of them by name; folded where they are many."""
    found = list(dict.fromkeys(names))
    lines = "\n".join(f"- {escape(name)}" for name in found)
    if len(found) <= 10:
        return f"{title}:\n\n{lines}"
    return f"<details><summary>{title} ({len(found)})</summary>\n\n{lines}\n\n</details>"


def _history(
    report: dict[str, Any], changes: Sequence[Change] | None, earlier: dict[str, Any] | None
) -> list[str]:
    if changes is None:
        return []
    parts = ["## Against the earlier report"]
    if earlier is not None:
        then = earlier["machine"]
        parts.append(f"That of {words(then.get('date'))}, commit {escape(_commit(then))}.")
        if earlier.get("size") != report.get("size"):
            parts.append(
                f"It is a {earlier.get('size')} report and this is a {report.get('size')} one, "
                "which call each case another number of times: for that alone some get faster or "
                "slower by a tenth or two."
            )
    differences = machine_differences(report, earlier) if earlier is not None else []
    if differences or any(change.basis == "ratio" for change in changes):
        reason = f" ({escape('; '.join(differences))})" if differences else ""
        parts.append(
            f"It is of another machine{reason}: times are not comparable, and only the ratios to "
            "the peers of the same runs are."
        )
    parts.append(f"{summary(changes) or 'Nothing to compare'}.")
    told = [c for c in changes if c.verdict not in (NOISE, NEW, GONE) or c.note]
    if told:
        told.sort(key=lambda change: VERDICTS.index(change.verdict))
        columns = ("cell", "verdict", "before", "now", "now/before", "peers/ours before", "now", "")
        parts.append(table(columns, [_change(change) for change in told], left=2, last=1))
    for verdict in (NEW, GONE):
        names = [f"{c.part}: {c.cell}" for c in changes if c.verdict == verdict]
        parts += [_listing(verdict.capitalize(), names)] if names else []
    return parts


def _change(change: Change) -> list[str]:
    both = change.before is not None and change.now is not None
    return [
        escape(change.cell),
        change.verdict,
        *(
            f"{figure(value)} {change.unit}" if value is not None else figure(value)
            for value in (change.before, change.now)
        ),
        figure(change.now / change.before if both and change.now and change.before else None),
        figure(change.ratio_before),
        figure(change.ratio_now),
        words(change.note),
    ]
