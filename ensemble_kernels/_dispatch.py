"""Which back ends each operator has, and the choice among them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from torch import Tensor

from . import _cuda, _native, _triton
from .profiling import annotated

BACKENDS = ("reference", "cpu", "triton", "cuda")
_NOT_INCLUDED = "not included in this build"

# The back end of calls that name none; unset or empty: the fastest there is. For comparisons.
default_backend = os.environ.get("ENSEMBLE_KERNELS_BACKEND") or None

_references: dict[str, Callable[..., Any]] = {}
_triton_operators: dict[str, Callable[..., Any]] = {}
_cuda_operators: dict[str, Callable[..., Any]] = {}


def register_reference(operator: str, reference: Callable[..., Any]) -> None:
    """Makes `backend="reference"` of `operator` run `reference`."""
    _references[operator] = reference


def register_triton(operator: str, registered: Callable[..., Any]) -> None:
    """Makes `backend="triton"` of `operator` run `registered`, which is a PyTorch operator too."""
    _triton_operators[operator] = registered


def register_cuda(operator: str, registered: Callable[..., Any]) -> None:
    """Makes `backend="cuda"` of `operator` run `registered`, which is a PyTorch operator too."""
    _cuda_operators[operator] = registered


def select(operator: str, backend: str | None, default: Callable[..., Any]) -> Callable[..., Any]:
    """The callable that serves `operator` on the named back end.

    `default` is the registered PyTorch operator, whose dispatcher picks the fastest
    implementation for the device. A named back end is used or raises ValueError.
    """
    return annotated(operator, _select(operator, backend or default_backend, default))


def _select(operator: str, backend: str | None, default: Callable[..., Any]) -> Callable[..., Any]:
    if backend is None:
        return default
    if backend == "reference":
        return _references[operator]
    if backend not in BACKENDS:
        what = "backend must be None"
        if backend == default_backend:
            what = "ENSEMBLE_KERNELS_BACKEND must be unset"
        raise ValueError(f"{what} or one of {BACKENDS}, got {backend!r}")
    reason = _missing(operator, backend)
    if reason is not None:
        raise ValueError(f"backend={backend!r} is not available for {operator}: {reason}")
    if backend == "triton":
        registered, device_types = _triton_operators[operator], _triton.device_types()
    else:
        # The dispatcher knows the native ones by the device.
        registered = _cuda_operators[operator] if backend == "cuda" else default
        device_types = _cuda.DEVICE_TYPES if backend == "cuda" else (backend,)
    return partial(_on_device, operator, backend, device_types, registered)


def _on_device(
    operator: str,
    backend: str,
    device_types: tuple[str, ...],
    registered: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    first = args[0] if isinstance(args[0], Tensor) else args[0][0]
    if first.device.type not in device_types:
        raise ValueError(
            f"backend={backend!r} of {operator} needs tensors on a device of type "
            f"{' or '.join(device_types)}, got {first.device.type}"
        )
    return registered(*args, **kwargs)


def _missing(operator: str, backend: str) -> str | None:
    if backend == "reference":
        return None
    if backend == "triton":
        return _triton.missing(operator)
    if backend == "cuda":
        return _cuda.missing(operator)
    if _native.MISSING is not None:
        return _native.MISSING
    return None if _in_library(operator) else _NOT_INCLUDED


@cache  # asked in each call that names the back end
def _in_library(operator: str) -> bool:
    return _native.registered(operator, "CPU")


def backends() -> dict[str, dict[str, str | None]]:
    """For each operator and back end None where it is available, else the reason why not."""
    return {
        operator: {backend: _missing(operator, backend) for backend in BACKENDS}
        for operator in sorted(_references)
    }


def check_contents(device_type: str) -> bool:
    """Whether values of index tensors are checked: always on the CPU; elsewhere reading them
    back would stop the queue, so only with ENSEMBLE_KERNELS_DEBUG=1."""
    return device_type == "cpu" or os.environ.get("ENSEMBLE_KERNELS_DEBUG") == "1"
