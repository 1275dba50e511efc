"""Which back ends each operator has, and the choice among them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

BACKENDS = ("reference", "cpu", "triton", "cuda")
_NOT_INCLUDED = "not included in this build"

_references: dict[str, Callable[..., Any]] = {}


def register_reference(operator: str, reference: Callable[..., Any]) -> None:
    """Makes `backend="reference"` of `operator` run `reference`."""
    _references[operator] = reference


def select(operator: str, backend: str | None, default: Callable[..., Any]) -> Callable[..., Any]:
    """The callable that serves `operator` on the named back end.

    `default` is the registered PyTorch operator, whose dispatcher picks the fastest
    implementation for the device. A named back end is used or raises ValueError.
    """
    if backend is None:
        return default
    if backend == "reference":
        return _references[operator]
    if backend not in BACKENDS:
        raise ValueError(f"backend must be None or one of {BACKENDS}, got {backend!r}")
    reason = backends()[operator][backend]
    raise ValueError(f"backend={backend!r} is not available for {operator}: {reason}")


def backends() -> dict[str, dict[str, str | None]]:
    """For each operator and back end None where it is available, else the reason why not."""
    return {
        operator: {name: None if name == "reference" else _NOT_INCLUDED for name in BACKENDS}
        for operator in sorted(_references)
    }


def check_contents(device_type: str) -> bool:
    """Whether values of index tensors are checked: always on the CPU; elsewhere reading them
    back would stop the queue, so only with ENSEMBLE_KERNELS_DEBUG=1."""
    return device_type == "cpu" or os.environ.get("ENSEMBLE_KERNELS_DEBUG") == "1"
