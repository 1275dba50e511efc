"""Sample inputs of the registered operators over a union vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from ensemble_kernels import VocabularyAlignment

Samples = list[tuple[tuple, dict]]

TABLES: list[list[bytes | None]] = [
    [b"a", b"b", b"ab", None, b" ", b"\xff", b" "],
    [b"abc", b"a", None, b"b", b" ", b"c"],
    [b"\xff", b"a", b"", b" a", b"a"],
]
ENDS = [[3], [2, 5], []]
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def samples() -> dict[str, Samples]:
    return {
        "mix_distributions": mix_distributions(),
        "sharpen_prefixes": sharpen_prefixes(),
        "top_k_union": top_k_union(),
    }


def alignment(models: int) -> VocabularyAlignment:
    made = VocabularyAlignment.from_token_bytes(TABLES[:models], ENDS[:models])
    subtokens = [
        {
            token: table.index(token[:1])
            for token in made.missing_tokens(model)
            if token[:1] in table
        }
        for model, table in enumerate(TABLES[:models])
    ]
    return made.with_first_subtokens(subtokens)


def _logits(models: int, rows: int, dtype: torch.dtype) -> list[Tensor]:
    """Contiguous for the first model, transposed for the second, every other column after."""
    generator = torch.Generator().manual_seed(models * 100 + rows)
    logits = []
    for model in range(models):
        width = len(TABLES[model])
        if model == 1:
            given = torch.randn(width, rows, generator=generator).t()
        else:
            given = torch.randn(rows, width * (1 + model), generator=generator)[:, :: 1 + model]
        logits.append(given.to(dtype))
    return logits


def _weights(models: int) -> tuple[Tensor, Tensor]:
    return torch.arange(1.0, models + 1), torch.linspace(0.5, 1.5, models)


def mix_distributions() -> Samples:
    inputs: Samples = []
    for models, rows, dtype, geometric in [
        (1, 1, torch.float32, False),
        (2, 3, torch.float32, True),
        (3, 2, torch.float16, False),
        (3, 2, torch.bfloat16, True),
        (2, 4, torch.float64, True),
        (2, 0, torch.float32, False),
    ]:
        maps = alignment(models).maps("cpu")
        logits = _logits(models, rows, dtype)
        inputs.append(((logits, maps.offsets, maps.ids, *_weights(models), geometric), {}))
    return inputs


def sharpen_prefixes() -> Samples:
    inputs: Samples = []
    maps = alignment(3).maps("cpu")
    size = maps.prefix_end.shape[0]
    for rows, dtype in zip((1, 3, 2, 4), DTYPES, strict=True):
        generator = torch.Generator().manual_seed(rows)
        probabilities = torch.rand(rows, size, generator=generator).to(dtype)
        columns = torch.arange(-1, size).expand(rows, -1)
        inputs.append(((probabilities, maps.prefix_end, columns, 0.3), {}))
    none = torch.empty((1, 0), dtype=torch.int64)
    inputs.append(((torch.rand(size, 1).t(), maps.prefix_end, none, 0.1), {}))
    return inputs


def top_k_union() -> Samples:
    inputs: Samples = []
    for models, rows, dtype, k in [
        (1, 1, torch.float32, 1),
        (2, 3, torch.float32, 2),
        (3, 2, torch.float16, 3),
        (3, 2, torch.bfloat16, 100),
        (2, 4, torch.float64, 2),
    ]:
        maps = alignment(models).maps("cpu")
        logits = _logits(models, rows, dtype)
        arguments = (logits, maps.offsets, maps.ids, maps.score_columns, *_weights(models), k)
        inputs.append((arguments, {}))
    return inputs
