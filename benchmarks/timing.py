"""Timing of alternatives side by side, since machines are shared and noisy."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


def side_by_side(
    alternatives: dict[str, tuple[Callable[[], object], Callable[[], object]]],
    *,
    repetitions: int,
    warmup: int = 3,
) -> dict[str, list[float]]:
    """Seconds of each alternative, which is a pair (prepare, call) of which the call is timed. They
    take turns, in an order that turns round each time."""
    seconds: dict[str, list[float]] = {name: [] for name in alternatives}
    for repetition in range(-warmup, repetitions):
        order = list(alternatives) if repetition % 2 else list(alternatives)[::-1]
        for name in order:
            prepare, call = alternatives[name]
            prepare()
            start = time.perf_counter()
            call()
            if repetition >= 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def median_ratio(numerators: list[float], denominators: list[float]) -> tuple[float, float, float]:
    """Median, lower and upper quartile of the ratios of calls that stood next to each other."""
    ratios = [a / b for a, b in zip(numerators, denominators, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, low, high


def machine() -> dict[str, Any]:
    """What a figure depends on besides the code."""
    return {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": installed_version("transformers"),
        "python": platform.python_version(),
    }


def installed_version(package: str) -> str | None:
    """Without importing it, which may take seconds; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(": ", 1)[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def first_line(error: Exception, most: int) -> str:
    """What an error is and says, as far as a table takes it: `most` characters of its message."""
    reason = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {reason[:most]}"


def write_json(path: str | None, results: dict[str, Any]) -> None:
    if path is not None:
        Path(path).write_text(json.dumps({"machine": machine(), **results}, indent=1) + "\n")
