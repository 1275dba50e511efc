"""Triton, where it is there. It is imported at its first use: `import ensemble_kernels` stays cheap
and works without it, and a process that sets TRITON_INTERPRET first is interpreted."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

# The operators with a Triton kernel, and the folder whose `triton_kernel.py` has the launcher: a
# function of the operator's name that takes the arguments of its schema.
FOLDERS = {
    "compact_kv_": "kv_compaction",
    "mix_distributions": "vocabulary_mixture",
    "segment_attention": "segment_attention",
    "segment_mean": "token_statistics",
    "sharpen_prefixes": "vocabulary_mixture",
    "token_statistics": "token_statistics",
    "top_k_union": "vocabulary_mixture",
}

# How often each kernel was launched, by its name: shows that a back end was the one that ran.
launches: Counter[str] = Counter()


class Unsupported(ValueError):
    """A launcher raises it, before it launches anything, for inputs that it leaves to others:
    then the reference serves a call that names no back end."""


def refuse_float64(name: str, tensor: Tensor) -> None:
    """For kernels that compute in float32."""
    if tensor.dtype == torch.float64:
        raise Unsupported(
            f"{name} must be of dtype float32, float16, bfloat16 for backend='triton', got float64"
        )


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, which therefore take tensors on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def import_error() -> str | None:
    """None if Triton can be imported, else why not."""
    try:
        import triton.language  # noqa: F401
    except ImportError as error:
        if error.name == "triton":
            return "triton is not installed"
        return f"triton cannot be imported: {error}"
    return None


def missing(operator: str) -> str | None:
    """None if the Triton kernel of `operator` can run here, else why not."""
    if operator not in FOLDERS:
        return "it has no Triton kernel"
    if import_error() is None and not interpreted() and not torch.cuda.is_available():
        return "no GPU is available, and TRITON_INTERPRET is not set to 1"
    return import_error()


def device_types() -> tuple[str, ...]:
    """Types of the devices whose tensors the kernels take; AMD's are "cuda" to PyTorch."""
    return ("cuda", "cpu") if interpreted() else ("cuda",)


@cache
def _launcher(operator: str) -> Callable[..., Any]:
    module = import_module(f".{FOLDERS[operator]}.triton_kernel", __package__)
    return getattr(module, operator)


def run(operator: str, *args: Any, **kwargs: Any) -> Any:
    """Calls the launcher of `operator`, with the device of its tensors as the current one."""
    first = args[0] if isinstance(args[0], Tensor) else args[0][0]
    launcher = _launcher(operator)
    if first.device.type == "cpu":
        return launcher(*args, **kwargs)
    with torch.cuda.device(first.device):
        return launcher(*args, **kwargs)


def registers(count: int) -> dict[str, int]:
    """The option that gives a thread up to `count` registers. Without it NVIDIA's assembler spills
    a few for the sake of occupancy; AMD's has no such option."""
    return {} if torch.version.hip else {"maxnreg": count}


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., Any]:
    """`kernel[grid]`, counted."""
    launches[kernel.__name__] += 1
    # Said aloud, since Triton's default is about to change: all sums here are of products.
    return partial(kernel[grid], enable_fp_fusion=True)
