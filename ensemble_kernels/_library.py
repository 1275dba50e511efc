"""The PyTorch operators: their schemas, fake kernels and references.

They are registered here, in Python, so that they exist without a compiler; a native build or
Triton only adds implementations for its dispatch keys. The reference is registered as
CompositeExplicitAutograd and so serves every device that has nothing faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._dispatch import register_reference
from .kv_compaction.reference import compact_kv_

_LIBRARY = torch.library.Library("ensemble_kernels", "DEF")


def operator(name: str) -> Callable[..., Any]:
    """The registered operator `name`, resolved once by each `api.py`."""
    return getattr(torch.ops.ensemble_kernels, name).default


def _define(schema: str, reference: Callable[..., Any], fake: Callable[..., Any]) -> None:
    name = schema.split("(", 1)[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, reference, "CompositeExplicitAutograd")
    torch.library.register_fake(f"ensemble_kernels::{name}", fake, lib=_LIBRARY)
    register_reference(name, reference)


def _fake_compact_kv_(cache: Tensor, keep: Tensor, destination_start: Tensor) -> None:
    return None


_define(
    "compact_kv_(Tensor(a!) cache, Tensor keep, Tensor destination_start) -> ()",
    compact_kv_,
    _fake_compact_kv_,
)
