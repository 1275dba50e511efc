"""What the report asks of each operator at each shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.operators.ceilings import Work
from benchmarks.operators.frame import Alternative, Refused
from ensemble_kernels import backends

ON_A_GPU = ("triton", "cuda", "reference")

Peers = list[Alternative | Refused]


def back_ends(operator: str) -> list[str]:
    """Those that run on the device: Triton's in a dry run too, in the interpreter."""
    available = backends()[operator]
    return [name for name in ON_A_GPU if name in available and available[name] is None]


class Case(ABC):
    """One operator at one shape. Buffers are of its own kind; nothing but it looks into them."""

    operator: str
    exact_move = False  # the result must be that of `expected` bit for bit
    in_place = False

    @property
    @abstractmethod
    def name(self) -> str:
        """Dtype and shape; of an operator's cases no two are equal."""

    @property
    @abstractmethod
    def bytes_each(self) -> int:
        """Of memory that a call reads or writes of its own."""

    @abstractmethod
    def work(self) -> Work: ...

    @abstractmethod
    def buffers(self, device: torch.device, count: int) -> list[Any]: ...

    @abstractmethod
    def call(self, back_end: str, buffer: Any) -> Any: ...

    def outcome(self, buffer: Any, returned: Any) -> Sequence[Tensor]:
        """What must be right of a call."""
        return [returned] if isinstance(returned, Tensor) else list(returned)

    @abstractmethod
    def expected(self, buffer: Any) -> Sequence[Tensor]:
        """The outcome in float64, without our operators."""

    @abstractmethod
    def composition(self, buffer: Any) -> Sequence[Tensor] | None:
        """The outcome as PyTorch's operators give it in the same dtype, whose error is the
        measure; None: nothing but the absolute term is allowed."""

    @abstractmethod
    def peers(self, buffers: list[Any]) -> Peers:
        """What they need of the buffers beforehand, they may prepare here."""


@dataclass(frozen=True)
class Cases:
    """Of one operator, the most important first: what does not fit into the time is at the end."""

    operator: str
    checked: Sequence[Case]
    timed: Sequence[Case]


def seeded(device: torch.device, seed: int) -> torch.Generator:
    """Not the device's own generator: a recorded graph must not depend on its state."""
    return torch.Generator(device=device).manual_seed(seed)
