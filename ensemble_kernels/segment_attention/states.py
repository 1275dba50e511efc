"""The merge of attention states, as an attention that splits its keys needs it at its end."""

from __future__ import annotations

import torch
from torch import Tensor


def merge_attention_states(states: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """What all keys make of each row, from what every split of them did.

    Registered as `torch.ops.ensemble_kernels_cuda.merge_attention_states`; this is its definition,
    and serves where there is no CUDA kernel.

    Args:
        states: `[splits, ..., D]`, any float dtype: the normalised output of each split.
        lse: `[splits, ...]` float32, natural logarithm; -inf where a row sees nothing of a split,
            whose state then counts for nothing, whatever it holds.

    Returns:
        `[..., D]` in the dtype of `states`, 0 where a row sees nothing at all, and its LSE `[...]`.
    """
    if lse.dtype != torch.float32 or states.shape[:-1] != lse.shape or lse.ndim == 0:
        raise ValueError("lse must be float32 and have the shape of states but the last")
    dtype = torch.float64 if states.dtype == torch.float64 else torch.float32
    merged = torch.logsumexp(lse.to(dtype), 0)
    empty = lse == -torch.inf
    weights = (lse - merged).exp().masked_fill(empty, 0)[..., None]
    out = (states.to(dtype).masked_fill(empty[..., None], 0) * weights).sum(0)
    return out.to(states.dtype), merged.float()
