"""Named ranges, for Nsight (NVTX) and for `torch.profiler`.

`torch.profiler` shows each operator by itself. With `ENSEMBLE_KERNELS_NVTX=1` each call of an
operator is an NVTX range as well, and so is every range that a decoder marks with `annotate`.
"""

from __future__ import annotations

import os
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


def annotate(name: str) -> AbstractContextManager[Any]:
    """A range around a block: in NVTX if that is on, in a `torch.profiler` that is running, or, as
    mostly, nowhere."""
    if _NVTX:
        return _nvtx_range(name)
    if profiler._is_profiler_enabled:
        return torch.profiler.record_function(name)
    return _NOTHING


def annotated(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, in an NVTX range where NVTX is on."""
    if not _NVTX or torch.compiler.is_compiling():
        return call

    def in_range(*args: Any, **kwargs: Any) -> Any:
        with _nvtx_range(name):
            return call(*args, **kwargs)

    return in_range


@contextmanager
def _nvtx_range(name: str) -> Iterator[None]:
    torch.cuda.nvtx.range_push(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()
