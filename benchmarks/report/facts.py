"""What the figures depend on, and whether there is anything to measure."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.machine import commit
from benchmarks.timing import machine
from ensemble_kernels import backends

ROOT = Path(__file__).parents[2]


def facts() -> dict[str, Any]:
    """The machine, versions and commit."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        **machine(),
        "cores": os.cpu_count(),
        "memory_gb": pages / 1e9,
        "platform": platform.platform(),
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        # What `without_native` has made sure of.
        "native": dict.fromkeys(backends(), "cpu"),
        "library": torch.ops.ensemble_kernels_native.cpu_isa(),
    }


def without_native() -> str | None:
    """Why an operator has no native back end on the CPU, or would not use it; None where all are
    native."""
    chosen = os.environ.get("ENSEMBLE_KERNELS_BACKEND")
    if chosen:
        return f"ENSEMBLE_KERNELS_BACKEND is {chosen!r}"
    for operator, reasons in backends().items():
        if reasons["cpu"] is not None:
            return f"{operator}: {reasons['cpu']}"
    return None
