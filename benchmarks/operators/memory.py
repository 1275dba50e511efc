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
    gc.collect()
    try:
        # Freed blocks that the allocator keeps would hide what the call takes.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (AttributeError, OSError):
        return None
    before = _kib("VmRSS")
    call()
    return max(0, _kib("VmHWM") - before) / 1024


def _kib(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"no {field} in {STATUS}")
    return int(found[1])
