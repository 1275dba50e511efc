"""The parts of the report, one after the other, each within its time."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import check, machine, rates, rounds, sanitizer, tables, timing
from benchmarks.gpu.budget import TOTAL_SECONDS, Budget, Part
from benchmarks.gpu.case import Cases
from benchmarks.gpu.catalogue import catalogue
from benchmarks.gpu.clock import Clock, GpuClock, HostClock
from benchmarks.gpu.figures import Row, dispatch, literal
from benchmarks.operators.ceilings import Ceilings

# At most. A check takes what compiling its kernels takes, which timing then need not.
SECONDS = {"check": 110.0, "sanitizer": 90.0, "timing": 115.0, "rounds": 20.0}
# Of the time for checks and for timing, by how many shapes there are and what they cost.
SHARES = {"segment_attention": 0.45, "token_statistics": 0.15, "mix_distributions": 0.15}
OTHER_SHARE = 0.0625
# A dry run interprets and emulates the kernels, perhaps beside other work, and its times mean
# nothing: that it comes to all of them matters more.
DRY_STRETCH = 4.0


class Session:
    def __init__(self, path: str | None, dry_run: bool, only: str | None) -> None:
        self.path, self.dry_run = path, dry_run
        self.clock: Clock = HostClock() if dry_run else GpuClock()
        self.plan = timing.TINY if dry_run else timing.FULL
        self.cases = [c for c in catalogue(dry_run) if only in (None, c.operator)]
        stretch = DRY_STRETCH if dry_run else 1.0
        self.budget = Budget(TOTAL_SECONDS * stretch)
        self.seconds = {part: seconds * stretch for part, seconds in SECONDS.items()}
        self.failures: list[str] = []
        self.start = time.monotonic()
        self.results: dict[str, Any] = {
            "dry_run": dry_run,
            "machine": machine.facts(self.clock.device),
            "checks": [],
            "sanitizer": {},
            "ceilings": {},
            "timings": {},
            "rounds": {},
            "dispatch": {},
        }

    def run(self) -> int:
        """The exit status."""
        self._say(self._heading())
        for name, part in (
            ("check", self._check),
            ("sanitizer", self._sanitize),
            ("ceilings and timing", self._time),
            ("rounds", self._rounds),
        ):
            self._guarded(name, part)
            self._write()
        for line in self.budget.left_out:
            self._say(line)
        for line in self.failures:
            self._say(f"FAILED: {line}")
        seconds = time.monotonic() - self.start
        self._say(f"{seconds:.0f} s, {len(self.failures)} failures")
        return 1 if self.failures else 0

    def _heading(self) -> str:
        facts = self.results["machine"]
        gpu = facts["gpu"]
        what = f"{gpu['name']}, {gpu['nvidia-smi'] or 'driver unknown'}" if gpu else "DRY RUN"
        note = "" if gpu else ": every figure below is of the CPU and means nothing"
        versions = f"torch {facts['torch']}, triton {facts['triton']}, CUDA {facts['cuda']}"
        return f"{what}{note}\n{versions}, commit {facts['commit']}"

    def _guarded(self, name: str, part: Callable[[], None]) -> None:
        """What breaks in one part must not take what the others have found with it."""
        try:
            part()
        except Exception as error:
            traceback.print_exc()
            self.failures.append(f"{name}: {check.first_line(error)}")

    def _in_turn(self, name: str) -> Iterator[tuple[Cases, Part]]:
        """Each operator with its share; what one leaves over goes to those after it."""
        part = self.budget.part(name, self.seconds[name])
        shares = [SHARES.get(cases.operator, OTHER_SHARE) for cases in self.cases]
        for place, cases in enumerate(self.cases):
            seconds = part.left() * shares[place] / sum(shares[place:])
            yield cases, self.budget.part(f"{name} of {cases.operator}", seconds)

    def _check(self) -> None:
        rows = []
        for cases, part in self._in_turn("check"):
            # Said and written at each: of a kernel that hangs nothing else would be known.
            self._say(f"checking {cases.operator}")
            self._write()
            verdicts = check.check(cases, self.clock, part)
            self.results["checks"] += check.as_json(verdicts)
            self.failures += [verdict.line() for verdict in verdicts if verdict.reason is not None]
            for back_end in dict.fromkeys(verdict.back_end for verdict in verdicts):
                own = [verdict for verdict in verdicts if verdict.back_end == back_end]
                measured = [verdict.error for verdict in own if verdict.declined is None]
                worst = f"{max(measured):.2g}" if measured else ""
                declined = sum(verdict.declined is not None for verdict in own)
                failed = sum(verdict.reason is not None for verdict in own)
                counts = (str(len(own)), worst, str(declined), str(failed))
                rows.append((cases.operator, back_end, *counts))
        columns = ("operator", "back end", "cases", "worst error/allowed", "declined", "failed")
        self._say(tables.render("against float64", columns, rows))

    def _sanitize(self) -> None:
        part = self.budget.part("sanitizer", self.seconds["sanitizer"])
        found = sanitizer.sanitize(part, self.dry_run)
        self.results["sanitizer"] = found
        for tool, result in found.items():
            if tool == "skipped":
                self._say(f"sanitizer: left out, {result}")
                continue
            self._say(f"{tool}: {result['result']}")
            if result["failed"]:
                self.failures.append("\n".join([f"{tool}:", *result["lines"]]))

    def _time(self) -> None:
        ceilings = rates.measure(self.clock, self.plan, self.dry_run)
        self.results["ceilings"] = rates.as_json(ceilings)
        rows = [(name, f"{rate / 1e3:.1f} TFLOP/s") for name, rate in ceilings.products.items()]
        rows += [("read", f"{ceilings.read:.0f} GB/s"), ("copy", f"{ceilings.copy:.0f} GB/s")]
        self._say(tables.render("ceilings", ("what", "rate"), rows))
        for cases, part in self._in_turn("timing"):
            checked = [v["ok"] for v in self.results["checks"] if v["operator"] == cases.operator]
            if not checked or not all(checked):
                why = "a check has failed" if checked else "it could not be checked"
                self._say(f"{cases.operator}: not timed, since {why}")
                continue
            self.results["timings"][cases.operator] = self._timed(cases, part, ceilings)
            self._write()
        for kind, name in (("eager", "FASTEST"), ("graph", "FASTEST_IN_GRAPHS")):
            choices = dispatch(self.results["timings"], kind)
            self.results["dispatch"][kind] = choices
            self._say(literal(name, choices))

    def _timed(self, cases: Cases, part: Part, ceilings: Ceilings) -> list[Row]:
        cache = machine.l2_cache(self.clock.device)
        rows: list[Row] = []
        for case in part.each(cases.timed):
            try:
                rows += timing.time_case(case, self.clock, ceilings, cache, self.plan)
                if self.clock.device.type == "cuda":
                    torch.cuda.empty_cache()  # the memory of this case's graphs
            except Exception as error:  # say too little memory: the other cases may still run
                self.failures.append(f"{cases.operator} {case.name}: {check.first_line(error)}")
        # A back end that was checked and then cannot be timed is a failure, unless it says that it
        # leaves the case to the reference, or the case is too large for it here.
        for row in rows:
            refused = row.get("refused", "Unsupported")
            if row["back_end"] and not refused.startswith(("Unsupported", "OutOfMemoryError")):
                self.failures.append(
                    f"{cases.operator} {row['case']}, {row['alternative']}: {row['refused']}"
                )
        self._say(tables.timings(cases.operator, rows))
        return rows

    def _rounds(self) -> None:
        part = self.budget.part("rounds", self.seconds["rounds"])
        self.results["rounds"] = rounds.measure(self.clock, part, self.dry_run)
        for line in rounds.lines(self.results["rounds"]):
            self._say(line)

    def _write(self) -> None:
        """After each part: a run that is stopped leaves what it has."""
        if self.path is None:
            return
        kept = {
            **self.results,
            "seconds": time.monotonic() - self.start,
            "left_out": self.budget.left_out,
            "failures": self.failures,
        }
        Path(self.path).write_text(json.dumps(kept, indent=1, allow_nan=False) + "\n")

    @staticmethod
    def _say(text: str) -> None:
        print(text, flush=True)
