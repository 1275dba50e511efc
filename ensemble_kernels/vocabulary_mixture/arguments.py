"""What the operators of this folder check, and how they hand it on, in the same way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .. import _checks
from .alignment import VocabularyAlignment
from .reference import check_temperature, check_weights

_SMALLEST_WEIGHT, _LARGEST_WEIGHT = 2.0**-149, torch.finfo(torch.float32).max


def check_alignment(alignment: VocabularyAlignment) -> None:
    if not isinstance(alignment, VocabularyAlignment):
        raise TypeError(f"alignment must be a VocabularyAlignment, got {type(alignment).__name__}")


def real_columns(logits: Sequence[Tensor], alignment: VocabularyAlignment) -> list[Tensor]:
    """The logits without their padding: views of the columns that the token tables know."""
    check_alignment(alignment)
    if isinstance(logits, Tensor) or not isinstance(logits, Sequence):
        raise TypeError(f"logits must be a list of Tensors, got {type(logits).__name__}")
    if len(logits) != alignment.model_count:
        raise ValueError(
            f"logits must have {alignment.model_count} entries, one per model of the alignment, "
            f"got {len(logits)}"
        )
    for model, given in enumerate(logits):
        name = f"logits[{model}]"
        _checks.tensor(name, given, ndim=2)
        _checks.dtype(name, given, _checks.FLOAT_DTYPES)
        _checks.same_device(name, given, "logits[0]", logits[0])
        if given.shape[0] != logits[0].shape[0]:
            raise ValueError(
                f"{name} must have {logits[0].shape[0]} rows as logits[0], got {given.shape[0]}"
            )
        if given.shape[1] == 0:
            raise ValueError(f"{name} must have at least one column, got {list(given.shape)}")
    if not torch.compiler.is_compiling():  # a warning would break the graph
        alignment.note_unmapped([given.shape[1] for given in logits])
    sizes = alignment.table_sizes
    # A view takes longer than some whole operators; mostly none is needed.
    return [
        given if given.shape[1] <= size else given[:, :size]
        for given, size in zip(logits, sizes, strict=True)
    ]


def weight_tensor(weights: Sequence[float] | Tensor | None, logits: Sequence[Tensor]) -> Tensor:
    if weights is None:
        return logits[0].new_ones(len(logits), dtype=torch.float32)
    return _per_model("weights", weights, _check_weight_numbers, logits)


def _check_weight_numbers(weights: Sequence[float]) -> None:
    """Also that float32 has them: on a GPU nobody looks at what it made of them."""
    if any(_LARGEST_WEIGHT < weight < math.inf for weight in weights):
        raise ValueError(f"weights must be at most {_LARGEST_WEIGHT}, got {list(weights)}")
    if 0 < max(weights) < _SMALLEST_WEIGHT:
        raise ValueError(
            f"weights must not all be below {_SMALLEST_WEIGHT}, 0 in float32, got {list(weights)}"
        )
    check_weights(weights)


def temperature_tensor(
    temperature: float | Sequence[float] | Tensor, logits: Sequence[Tensor]
) -> Tensor:
    if isinstance(temperature, int | float):
        temperature = [temperature] * len(logits)
    return _per_model("temperature", temperature, check_temperature, logits)


def _per_model(
    name: str,
    value: Sequence[float] | Tensor,
    check: Callable[[Sequence[float]], None],
    logits: Sequence[Tensor],
) -> Tensor:
    """`[M]` float32; the values of a Tensor are checked in the operator, where it is allowed."""
    if isinstance(value, Tensor):
        _checks.tensor(name, value, ndim=1)
        _checks.dtype(name, value, _checks.FLOAT_DTYPES)
        _checks.same_device(name, value, "logits[0]", logits[0])
        _checks.shape(name, value, (len(logits),))
        return value.to(torch.float32)
    if not isinstance(value, Sequence) or not all(isinstance(v, int | float) for v in value):
        raise TypeError(f"{name} must be floats or a Tensor, got {value!r}")
    if len(value) != len(logits):
        raise ValueError(f"{name} must have {len(logits)} entries, one per model, got {len(value)}")
    check(value)
    return torch.tensor(value, dtype=torch.float32, device=logits[0].device)
