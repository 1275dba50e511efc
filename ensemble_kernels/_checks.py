"""Checks of arguments shared by the operators. Each message names the argument, what was
expected and what came."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

# A divisor is in float32's range, and so are its inverse and its product with log2(e).
_SMALLEST, _LARGEST = 1e-37, 1e37
_SMALLEST_OF_FLOAT32 = 9.9999991e-38  # 1e-37 as a Tensor holds it, rounded down
FLOAT_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def tensor(name: str, value: Any, *, ndim: int | Sequence[int] | None = None) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a Tensor, got {type(value).__name__}")
    if value.layout is not torch.strided or value.is_nested:
        kind = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        raise TypeError(f"{name} must be a strided Tensor, got a {kind} one")
    if ndim is None:
        return
    allowed = (ndim,) if isinstance(ndim, int) else tuple(ndim)
    if value.ndim not in allowed:
        expected = " or ".join(map(str, allowed))
        raise ValueError(
            f"{name} must have {expected} dimensions, got {value.ndim}: {list(value.shape)}"
        )


def dtype(name: str, value: Tensor, allowed: Sequence[torch.dtype]) -> None:
    if value.dtype not in allowed:
        expected = ", ".join(str(d).removeprefix("torch.") for d in allowed)
        raise TypeError(
            f"{name} must be of dtype {expected}, got {str(value.dtype).removeprefix('torch.')}"
        )


def same_device(name: str, value: Tensor, reference_name: str, reference: Tensor) -> None:
    if value.device != reference.device:
        raise ValueError(
            f"{name} must be on the device of {reference_name}, {reference.device}, "
            f"got {value.device}"
        )


def shape(name: str, value: Tensor, expected: Sequence[int]) -> None:
    if tuple(value.shape) != tuple(expected):
        raise ValueError(f"{name} must have shape {list(expected)}, got {list(value.shape)}")


def number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a float, got {type(value).__name__}")


def finite(name: str, value: Any) -> None:
    number(name, value)
    if not -float("inf") < value < float("inf"):
        raise ValueError(f"{name} must be finite, got {value}")


def positive(name: str, value: Any) -> None:
    number(name, value)
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be positive and finite, got {value}")
    if not _SMALLEST <= value <= _LARGEST:
        raise ValueError(f"{name} must be from {_SMALLEST} to {_LARGEST}, got {value}")


def all_positive(name: str, values: Sequence[float]) -> None:
    """As `positive`, of what a Tensor holds or will hold in float32."""
    if not all(0 < value < float("inf") for value in values):
        raise ValueError(f"{name} must be positive and finite, got {list(values)}")
    if not all(_SMALLEST_OF_FLOAT32 <= value <= _LARGEST for value in values):
        raise ValueError(f"{name} must be from {_SMALLEST} to {_LARGEST}, got {list(values)}")


def offsets_content(name: str, rows: Sequence[Sequence[int]], length: int) -> None:
    """Offsets of segments: from 0, non-decreasing, the last at most `length`."""
    for row in rows:
        if row[0] != 0:
            raise ValueError(f"{name} must start at 0, got {row[0]}")
        if any(b < a for a, b in pairwise(row)):
            raise ValueError(f"{name} must be non-decreasing, got {list(row)}")
        if row[-1] > length:
            raise ValueError(f"{name} must end at or before {length}, got {row[-1]}")
