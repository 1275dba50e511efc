"""Sample inputs of the registered `compact_kv_`."""

from __future__ import annotations

import torch

Samples = list[tuple[tuple, dict]]


def samples() -> dict[str, Samples]:
    layers = torch.arange(2 * 3 * 2 * 8 * 4.0).view(2, 3, 2, 8, 4)
    return {
        "compact_kv_": [
            ((layers.clone(), torch.tensor([3, 4, 6]), torch.tensor(2)), {}),
            ((layers[0].bfloat16(), torch.tensor([5]), torch.tensor(5)), {}),
            ((layers.transpose(1, 2).clone()[..., ::2], torch.tensor([1, 7]), torch.tensor(0)), {}),
            (
                (
                    layers.clone(),
                    torch.tensor([[2, 3, -1], [1, 2, 3], [-1, -1, -1]]),
                    torch.tensor([0, 1, 6]),
                ),
                {},
            ),
            ((layers.clone(), torch.empty(0, dtype=torch.int64), torch.tensor(0)), {}),
        ]
    }
