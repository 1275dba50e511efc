"""What this machine does at most, and the least time that a piece of work takes on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

CACHE_WHERE_UNKNOWN = 64 << 20
DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Work:
    """What a call cannot do without."""

    bytes: int  # read and written
    flops: float = 0.0
    dtype: torch.dtype = torch.float32  # of the matrix products
    copies: bool = False  # as much is written as read: the copy rate bounds it


@dataclass(frozen=True)
class Ceilings:
    """Of matrix products in GFLOP/s by dtype, of reading and copying in GB/s (copying counts the
    bytes read and those written)."""

    threads: int
    products: dict[str, float]
    read: float
    copy: float

    def floor_us(self, work: Work) -> tuple[float, str]:
        """The least microseconds of `work`, and which of "memory" and "products" binds."""
        memory = work.bytes / (self.copy if work.copies else self.read) / 1e3
        products = work.flops / self.products[dtype_name(work.dtype)] / 1e3
        return (memory, "memory") if memory >= products else (products, "products")


def measure(threads: int, size: str) -> Ceilings:
    """Best of many, so that what else runs on the machine matters least."""
    side, elements, budget = {
        "full": (2048, _beyond_cache() // 4, 1.0),
        "quick": (1024, _beyond_cache() // 4, 0.2),
        "tiny": (128, 1 << 18, 0.01),
    }[size]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        products = {}
        for dtype in DTYPES:
            a, b = torch.randn(2, side, side).to(dtype)
            seconds = _best(lambda a=a, b=b: torch.mm(a, b), budget)
            products[dtype_name(dtype)] = 2 * side**3 / seconds / 1e9
        source = torch.ones(elements)
        target = torch.empty_like(source)
        # Whichever reduction computes least: one core may not keep up with memory in another.
        reductions = (source.sum, source.amax, lambda: torch.dot(source, source))
        read = 4 * elements / min(_best(call, budget) for call in reductions) / 1e9
        copy = 8 * elements / _best(lambda: target.copy_(source), budget) / 1e9
    finally:
        torch.set_num_threads(before)
    return Ceilings(threads, products, read, copy)


def _best(call: Callable[[], Any], budget: float) -> float:
    call()
    seconds: list[float] = []
    while len(seconds) < 3 or sum(seconds) < budget:
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def highest(measured: Sequence[Ceilings], threads: int) -> Ceilings:
    """What up to `threads` threads reach: on a busy machine, or where one core fills the memory
    bus, fewer may reach more."""
    within = [ceilings for ceilings in measured if ceilings.threads <= threads]
    products = {name: max(c.products[name] for c in within) for name in within[0].products}
    return Ceilings(threads, products, max(c.read for c in within), max(c.copy for c in within))


def _beyond_cache() -> int:
    return max(256 << 20, 4 * last_level_cache())


def last_level_cache() -> int:
    """Bytes of the last-level cache that the first core sees."""
    sizes = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            text = (index / "size").read_text().strip()
            level = int((index / "level").read_text())
        except (OSError, ValueError):
            continue
        unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:])
        if unit is not None and text[:-1].isdigit():
            sizes[level] = int(text[:-1]) * unit
    return sizes[max(sizes)] if sizes else CACHE_WHERE_UNKNOWN


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
