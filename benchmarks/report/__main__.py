"""Operators and whole methods, timed beside what one would use instead:
python -m benchmarks.report [--quick] [--output DIR] [--against FILE] [--only PART] [--third MODEL]

Writes a folder with report.md, its plots, and report.json. Run from the repository's root with the
package installed: where the native library is missing, nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers.utils import logging

from benchmarks.end_to_end.goals import goals
from benchmarks.end_to_end.measure import defaults, measure
from benchmarks.report.facts import ROOT, facts, without_native
from benchmarks.report.history import compare
from benchmarks.report.markdown import render
from benchmarks.report.needs import (
    MissingError,
    check_models,
    check_packages,
    make_folder,
    read_earlier,
)

EARLIER = ROOT / "benchmarks/results/report-cpu/report.json"
INTERRUPTED = "benchmarks of operators were interrupted"
PARTS = ("operators", "end-to-end")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few cases, two minutes")
    parser.add_argument("--output", metavar="DIR", type=Path, default=Path("build/report"))
    parser.add_argument("--against", metavar="FILE", type=Path, help="an earlier report.json")
    parser.add_argument("--only", choices=PARTS, help="one part; the default is both")
    parser.add_argument("--third", metavar="MODEL", help="a folder or hub id, for three members")
    options = parser.parse_args()
    console = Console(stderr=True)
    missing = without_native()
    if missing:
        console.print(f"nothing to measure without the native library: {missing}", soft_wrap=True)
        return 2
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        earlier = prepare(options)
    except MissingError as error:
        console.print(str(error), soft_wrap=True, markup=False)
        return 2
    try:
        failures = run(options, console, earlier)
    except KeyboardInterrupt:
        console.print(f"interrupted: {options.output} has what was measured", soft_wrap=True)
        return 130
    console.print(f"{options.output / 'report.md'} is written", soft_wrap=True)
    for failure in failures:
        console.print(failure, soft_wrap=True, markup=False)
    return 1 if failures else 0


def prepare(options: argparse.Namespace) -> dict[str, Any] | None:
    """The earlier report, read before its file may be written anew. Raises MissingError where a run
    would come to nothing."""
    check_packages(operators=options.only != "end-to-end")
    if options.only != "operators":
        check_models(options.third)
    make_folder(options.output)
    if options.against is None and not EARLIER.exists():
        return None
    return read_earlier(options.against or EARLIER)


def run(options: argparse.Namespace, console: Console, earlier: dict[str, Any] | None) -> list[str]:
    """Writes the report as it grows; what went wrong."""
    start, failures = time.perf_counter(), list[str]()
    size = "quick" if options.quick else "full"
    command = shlex.join(["python", "-m", "benchmarks.report", *sys.argv[1:]])
    report: dict[str, Any] = {"machine": facts(), "size": size, "seconds": 0.0, "command": command}

    def write() -> None:
        report["seconds"] = time.perf_counter() - start
        _write(report, options.output, earlier)

    def keep(rows: list[dict[str, Any]]) -> None:
        report["end_to_end"] = {"defaults": defaults(size), "runs": rows, "goals": goals(rows)}
        write()

    if options.only != "end-to-end":
        report["operators"], failure = operators(size, options.output)
        failures += [failure] if failure else []
        write()
        if failure == INTERRUPTED:
            raise KeyboardInterrupt
    if options.only != "operators":
        try:
            rows = measure(size, options.third, console.log, keep)
        except Exception as error:  # a model that does not load: what came before is written
            failures.append(f"end to end: {type(error).__name__}: {error}".splitlines()[0])
            rows = report.get("end_to_end", {}).get("runs", [])
        failures += [
            f"{row['method']}: {row['failure']}" for row in rows if row["ours"] and row["failure"]
        ]
    return failures


def operators(size: str, folder: Path) -> tuple[dict[str, Any], str | None]:
    """What the operators' benchmarks measured, in a process of their own."""
    record = (folder / "operators.json").resolve()
    record.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "benchmarks/operators", "--benchmark-enable"]
    command += ["--benchmark-quiet", "-q", "--json", str(record), "-p", "no:cacheprovider"]
    command += ["--quick"] if size == "quick" else []
    process, failure = subprocess.Popen(command, cwd=ROOT), None
    try:
        if status := process.wait():
            failure = f"benchmarks of operators ended with status {status}"
    except KeyboardInterrupt:  # which pytest gets as well: it writes what it has
        process.wait()
        failure = INTERRUPTED
    if not record.exists():
        return {"operators": {}}, failure
    measured = json.loads(record.read_text())
    record.unlink()
    del measured["machine"]
    return measured, failure


def _write(report: dict[str, Any], folder: Path, earlier: dict[str, Any] | None) -> None:
    from benchmarks.report.plots import draw  # which without matplotlib fails, as is said before

    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    changes = None if earlier is None else compare(report, earlier)
    text = render(report, changes, draw(report, folder), earlier)
    (folder / "report.md").write_text(text)


if __name__ == "__main__":
    sys.exit(main())
