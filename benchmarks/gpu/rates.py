"""What the GPU does at most, measured in the same run as what is held against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.gpu.clock import Clock
from benchmarks.gpu.timing import Plan, in_turns
from benchmarks.operators.ceilings import Ceilings, dtype_name

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def measure(clock: Clock, plan: Plan, tiny: bool) -> Ceilings:
    """The best block of each. Products of float32 are those without TF32, PyTorch's default."""
    products = {}
    for dtype in DTYPES:
        side = 64 if tiny else 4096 if dtype == torch.float32 else 8192
        a, b = torch.randn(2, side, side, device=clock.device).to(dtype)
        seconds = _best(clock, plan, lambda a=a, b=b: torch.mm(a, b))
        products[dtype_name(dtype)] = 2 * side**3 / seconds / 1e9
    elements = 1 << (12 if tiny else 28)
    source = torch.ones(elements, device=clock.device)
    target = torch.empty_like(source)
    # Whichever reduction is written best.
    read = _best(clock, plan, source.sum, source.amax, lambda: torch.dot(source, source))
    copy = _best(clock, plan, lambda: target.copy_(source))
    return Ceilings(1, products, 4 * elements / read / 1e9, 8 * elements / copy / 1e9)


def _best(clock: Clock, plan: Plan, *calls: Callable[[], Any]) -> float:
    """Seconds."""
    times = in_turns({str(number): call for number, call in enumerate(calls)}, clock, plan)
    return min(min(own) for own in times.values()) / 1e6


def as_json(ceilings: Ceilings) -> dict[str, Any]:
    """GFLOP/s and GB/s. The host's threads say nothing of a GPU."""
    return {key: value for key, value in asdict(ceilings).items() if key != "threads"}
