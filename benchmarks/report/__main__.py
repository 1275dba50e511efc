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
from benchmarks.report.plots import draw

EARLIER = ROOT / "benchmarks/results/report-cpu/report.json"
PARTS = ("operators", "end-to-end")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few cases, two minutes")
    parser.add_argument("--output", metavar="DIR", type=Path, default=Path("build/report"))
    parser.add_argument(
        "--against", metavar="FILE", type=Path, default=EARLIER, help="an earlier report.json"
    )
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
    failures = run(options, console)
    console.print(f"{options.output / 'report.md'} is written", soft_wrap=True)
    for failure in failures:
        console.print(failure, soft_wrap=True)
    return 1 if failures else 0


def run(options: argparse.Namespace, console: Console) -> list[str]:
    """Writes the report as it grows; what went wrong."""
    start, failures = time.perf_counter(), list[str]()
    size = "quick" if options.quick else "full"
    command = shlex.join(["python", "-m", "benchmarks.report", *sys.argv[1:]])
    report: dict[str, Any] = {"machine": facts(), "size": size, "seconds": 0.0, "command": command}
    options.output.mkdir(parents=True, exist_ok=True)

    def write() -> None:
        report["seconds"] = time.perf_counter() - start
        _write(report, options)

    def keep(rows: list[dict[str, Any]]) -> None:
        report["end_to_end"] = {"defaults": defaults(size), "runs": rows, "goals": goals(rows)}
        write()

    if options.only != "end-to-end":
        report["operators"], failure = operators(size, options.output)
        failures += [failure] if failure else []
        write()
    if options.only != "operators":
        rows = measure(size, options.third, console.log, keep)
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
    status = subprocess.run(command, cwd=ROOT).returncode
    failure = f"benchmarks of operators ended with status {status}" if status else None
    if not record.exists():
        return {"operators": {}}, failure
    measured = json.loads(record.read_text())
    record.unlink()
    del measured["machine"]
    return measured, failure


def _write(report: dict[str, Any], options: argparse.Namespace) -> None:
    folder = options.output
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    earlier, changes = None, None
    if options.against.exists():
        earlier = json.loads(options.against.read_text())
        changes = compare(report, earlier)
    text = render(report, changes, draw(report, folder), earlier)
    (folder / "report.md").write_text(text)


if __name__ == "__main__":
    sys.exit(main())
