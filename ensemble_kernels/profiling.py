"""Named ranges, for Nsight (NVTX), for `torch.profiler` and for a clock of our own.

`torch.profiler` shows each operator by itself. With `ENSEMBLE_KERNELS_NVTX=1` each call of an
operator is an NVTX range as well, and so is every range that a decoder marks with `annotate`.
`timed_ranges` adds up the seconds of both, at a small part of what a profiler costs.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.autograd import profiler

# One for all: entering it costs nothing worth speaking of.
_NOTHING = nullcontext()


def nvtx() -> bool:
    """Whether ranges go to NVTX: asked for, and this PyTorch is built with it."""
    return os.environ.get("ENSEMBLE_KERNELS_NVTX") == "1" and torch.cuda.is_available()


_NVTX = nvtx()

# What adds the ranges of this process up at the moment.
_clock: RangeClock | None = None


class RangeClock:
    """Seconds and calls of ranges, as the host sees them: work that a GPU does later is not in
    them.

    A range goes by its path, the names of the ranges that it stands in and its own. `seconds` are
    without those of the ranges inside, so that they add up to the time in ranges. A thread's paths
    begin with the thread.
    """

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, ...], float] = defaultdict(float)
        self.calls: dict[tuple[str, ...], int] = defaultdict(int)
        self._threads = threading.local()

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        around = getattr(self._threads, "innermost", None)
        self._threads.innermost = own = _OpenRange(name, around)
        start = time.perf_counter()
        try:
            yield
        finally:
            taken = time.perf_counter() - start
            self._threads.innermost = around
            if around is not None:
                around.inside += taken
            self.seconds[own.path] += taken - own.inside
            self.calls[own.path] += 1


class _OpenRange:
    def __init__(self, name: str, around: _OpenRange | None) -> None:
        self.path: tuple[str, ...] = (name,) if around is None else (*around.path, name)
        self.inside = 0.0


@contextmanager
def timed_ranges() -> Iterator[RangeClock]:
    """Within the block all ranges and operators of this process go to the clock that it gets, and
    to no profiler.

    Raises:
        RuntimeError: inside another such block.
    """
    global _clock
    if _clock is not None:
        raise RuntimeError("timed_ranges is on already: ranges go to one clock at a time")
    _clock = clock = RangeClock()
    try:
        yield clock
    finally:
        _clock = None


def annotate(name: str) -> AbstractContextManager[Any]:
    """A range around a block: on a clock or in NVTX if that is on, in a `torch.profiler` that is
    running, or, as mostly, nowhere."""
    if _clock is not None:
        return _clock.range(name)
    if _NVTX:
        return _nvtx_range(name)
    if profiler._is_profiler_enabled:
        return torch.profiler.record_function(name)
    return _NOTHING


def annotated(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, in a range where a clock or NVTX is on."""
    if (_clock is None and not _NVTX) or torch.compiler.is_compiling():
        return call

    def in_range(*args: Any, **kwargs: Any) -> Any:
        with annotate(name):
            return call(*args, **kwargs)

    return in_range


@contextmanager
def _nvtx_range(name: str) -> Iterator[None]:
    torch.cuda.nvtx.range_push(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()
