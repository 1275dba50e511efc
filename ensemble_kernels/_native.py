"""Loads the native library, where there is one, and says why there is none."""

from __future__ import annotations

import json
from pathlib import Path

import torch

LIBRARY = Path(__file__).with_name("libensemble_kernels.so")
_RECORD = Path(__file__).with_name("_native_build.json")


def _load() -> str | None:
    """None if the library is in use, else why not."""
    if not LIBRARY.exists():
        return _why_missing()
    try:
        torch.ops.load_library(LIBRARY)
        torch.ops.ensemble_kernels_native.cpu_isa()
    except (OSError, RuntimeError, ValueError, AttributeError) as error:
        cause = " ".join(str(error).split())
        return f"the native library cannot be used with torch {torch.__version__}: {cause}"
    return None


def _why_missing() -> str:
    cure = "reinstall where there are a C++17 compiler and torch"
    reason = _recorded("reason")
    if reason is None:
        # A source tree on the path, which has never been built, hides an installed package.
        return f"{LIBRARY.parent} has no native library: install the package, or {cure}"
    return f"installed without native kernels, {reason}: {cure}"


def _recorded(name: str) -> str | None:
    try:
        return json.loads(_RECORD.read_text())[name]
    except (OSError, ValueError, KeyError):
        return None


MISSING = _load()


def cuda_missing() -> str | None:
    """None if the library has CUDA kernels, else why not."""
    # Under a name that nothing else registers, as Triton may under the other.
    if MISSING is not None or registered("compact_kv_", "CUDA", "ensemble_kernels_cuda"):
        return MISSING
    return f"built without CUDA kernels, {_recorded('cuda')}: reinstall where there is nvcc"


def registered(operator: str, dispatch_key: str, namespace: str = "ensemble_kernels") -> bool:
    """Whether the library, which is in use, implements an operator."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"{namespace}::{operator}", dispatch_key)
