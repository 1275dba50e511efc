"""The memory that a call needs besides its inputs, whoever allocates it."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")


def peak_mib(call: Callable[[], Any]) -> float | None:
    """MiB by which the resident size rises during `call` at most; None where Linux's peak cannot
    be reset. Coarse below some hundred KiB: it counts pages."""
    call()  # what is allocated once for all calls
    before = resident_kib()
    call()
    return rise_mib(before)


def resident_kib() -> int | None:
    """The resident size, from which on the peak counts; None where that cannot be."""
    gc.collect()
    try:
        # Freed blocks that the allocator keeps would hide what a call takes.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (AttributeError, OSError):
        return None
    return _kib("VmRSS")


def rise_mib(before: int | None) -> float | None:
    """How far the peak has risen above what `resident_kib` gave."""
    return None if before is None else max(0, _kib("VmHWM") - before) / 1024


def _kib(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"no {field} in {STATUS}")
    return int(found[1])
