"""Sample inputs of the registered `segment_attention`."""

from __future__ import annotations

import torch
from torch import Tensor

Samples = list[tuple[tuple, dict]]


def samples() -> dict[str, Samples]:
    return {
        "segment_attention": [
            _sample(prefix=3, rows=4, offsets=[0, 2, 4]),
            _sample(prefix=0, rows=3, offsets=[0, 0, 2], dtype=torch.bfloat16),
            _sample(prefix=9, rows=5, offsets=[0, 4, 5], window=3, dtype=torch.float16),
            _sample(prefix=2, rows=3, offsets=[0, 3], softcap=2.0, dtype=torch.float64),
            _sample(
                batch=2,
                prefix=4,
                rows=2,
                offsets=[[0, 1, 2], [0, 2, 2]],
                prefix_length=[1, 4],
                key_start=[0, 2],
            ),
            _sample(prefix=2, rows=0, offsets=[0, 0]),
        ]
    }


def _sample(
    *,
    prefix: int,
    rows: int,
    offsets: list,
    batch: int = 1,
    dtype: torch.dtype = torch.float32,
    prefix_length: list[int] | None = None,
    key_start: list[int] | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> tuple[tuple, dict]:
    """Query with heads and rows transposed, keys and values as views of a larger cache."""
    generator = torch.Generator().manual_seed(prefix + rows)
    query = torch.randn(batch, rows, 4, 8, generator=generator).to(dtype).transpose(1, 2)
    cache = torch.randn(2, batch, 2, prefix + rows + 3, 8, generator=generator).to(dtype)
    key, value = cache[:, :, :, : prefix + rows]
    arguments = (query, key, value, _int32(offsets), _int32(prefix_length), _int32(key_start))
    return arguments, {"scale": 8**-0.5, "window": window, "softcap": softcap}


def _int32(values: list | None) -> Tensor | None:
    return None if values is None else torch.tensor(values, dtype=torch.int32)
