"""The back end on CUDA devices: which implementation serves each operator there."""

from __future__ import annotations

import torch

from . import _native

# By how many launches each takes and what they read, a model and not a measurement: no GPU has
# run them yet. `segment_attention` lives from tensor cores, which Triton schedules for every
# generation.
FASTEST = {
    "compact_kv_": "cuda",  # one launch for all layers; Triton needs a barrier between its moves
    "token_statistics": "cuda",  # two launches, each logit read once
    "segment_mean": "cuda",  # one launch
    "mix_distributions": "cuda",  # three launches, whatever the number of models
    "sharpen_prefixes": "cuda",  # two launches
    "top_k_union": "cuda",  # three launches, no sort of the vocabulary
    "segment_attention": "triton",
}

# How many models the kernels that take several are told of, as csrc/cuda/launchers.h has it. A call
# with more that names no back end gets what would serve it without these kernels.
MOST_MODELS = 16
OF_MODELS = ("mix_distributions", "top_k_union")

# Types of the devices whose tensors the kernels take.
DEVICE_TYPES: tuple[str, ...] = ("cuda",)


def missing(operator: str) -> str | None:
    """None if the CUDA kernels can serve an operator, else why not."""
    if FASTEST[operator] != "cuda":
        return f"{operator} has no kernel in CUDA C++: on a GPU it is Triton's"
    reason = _native.cuda_missing()
    if reason is None and not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    return reason
