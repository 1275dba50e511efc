"""compute-sanitizer over one small case of every operator, in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Any

from benchmarks.gpu.budget import Part
from benchmarks.gpu.machine import ROOT

PROGRAM = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck")
FOUND = 86  # the exit status by which the tool says that it found something
SECONDS = 60.0  # of each tool: most of it is the start of PyTorch under it
LEAST_SECONDS = 10.0


def sanitize(part: Part, dry_run: bool) -> dict[str, Any]:
    """For each tool "clean", or what came of it. Only findings are failures."""
    program = shutil.which(PROGRAM)
    if program is None:
        return {"skipped": f"{PROGRAM} is not on PATH"}
    results = {}
    for tool in TOOLS:
        if part.fits(LEAST_SECONDS, tool):
            results[tool] = _run(program, tool, min(SECONDS, part.left()), dry_run)
    return results


def _run(program: str, tool: str, seconds: float, dry_run: bool) -> dict[str, Any]:
    command = [program, "--tool", tool, "--error-exitcode", str(FOUND)]
    if tool == "memcheck":
        # PyTorch asks the driver for functions that it may lack; those answers are no findings.
        command += ["--report-api-errors", "no"]
    command += [sys.executable, "-m", "benchmarks.gpu.sanitized", *(["--dry-run"] * dry_run)]
    # Each tensor in an allocation of its own: within a block of the caching allocator nothing that
    # is out of a tensor's bounds is out of bounds to the tool.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return {"result": f"not finished in {seconds:.0f} s", "failed": False}
    lines = (done.stdout + done.stderr).splitlines()
    if done.returncode == 0:
        return {"result": "clean", "failed": False, "covered": _covered(lines)}
    findings = [line for line in lines if line.startswith("=========") and line.strip("= ")]
    # A virtualised GPU may refuse the tool, and then every call of CUDA fails under it.
    refusals = [line.strip("= ") for line in findings if "not supported" in line]
    if refusals:
        return {"result": f"cannot run here: {refusals[0]}", "failed": False}
    if done.returncode == FOUND:
        return {"result": "errors found", "failed": True, "lines": findings[:20]}
    # Of the program under it, or of the tool: no verdict on the kernels.
    last = (lines or ["no output"])[-1]
    return {"result": f"exit status {done.returncode}: {last}", "failed": False}


def _covered(lines: list[str]) -> list[str]:
    return [line.removeprefix("ran ") for line in lines if line.startswith("ran ")]
