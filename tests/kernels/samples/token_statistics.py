"""Sample inputs of the registered `token_statistics` and `segment_mean`."""

from __future__ import annotations

import torch

Samples = list[tuple[tuple, dict]]

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def samples() -> dict[str, Samples]:
    return {"token_statistics": token_statistics(), "segment_mean": segment_mean()}


def token_statistics() -> Samples:
    inputs: Samples = []
    shapes = [(3, 7, 7), (1, 1025, 1000), (0, 5, 5), (4, 512, 512)]
    for (rows, columns, vocab_size), dtype in zip(shapes, DTYPES, strict=True):
        generator = torch.Generator().manual_seed(columns)
        logits = torch.randn(columns, rows, generator=generator).to(dtype).t()
        token_ids = torch.randint(vocab_size, (rows,), generator=generator)
        inputs.append(((logits, token_ids), {"vocab_size": vocab_size, "temperature": 0.7}))
    return inputs


def segment_mean() -> Samples:
    values = torch.linspace(-3, 0, 8)
    return [
        ((values, torch.tensor([0, 3, 3, 7], dtype=torch.int32)), {}),
        ((values[::2].bfloat16(), torch.tensor([0], dtype=torch.int32)), {}),
        ((values[:0].double(), torch.tensor([0, 0], dtype=torch.int32)), {}),
    ]
