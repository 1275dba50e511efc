"""`top_k_union` against compositions of softmax, topk and maps of indices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor

from benchmarks.operators.ceilings import Work, dtype_name
from benchmarks.operators.frame import TOLERANCE, Alternative, Setting, back_ends, copies_needed
from benchmarks.operators.mixture_peers import VOCABULARIES
from benchmarks.operators.top_k_peers import (
    Buffer,
    aligned_with_subtokens,
    best_of_each,
    buffer_of,
    by_logits,
    by_probabilities,
)
from ensemble_kernels import TopKUnion, VocabularyAlignment, top_k_union


@dataclass(frozen=True)
class Case:
    sizes: tuple[int, ...]
    rows: int
    dtype: torch.dtype
    k: int = 10  # UniTE's

    def __str__(self) -> str:
        sizes = "+".join(map(str, self.sizes))
        return f"{dtype_name(self.dtype)}-v{sizes}-r{self.rows}-k{self.k}"


DTYPES = (torch.float32, torch.bfloat16)

CASES = {
    "full": [Case(*case) for case in product(VOCABULARIES[:1], (1, 8), DTYPES)],
    "quick": [Case(VOCABULARIES[0], 1, torch.float32)],
    "tiny": [Case((40, 100, 60), 2, torch.float32, k=3)],
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_top_k_union(case: Case, setting: Setting, figures: Callable[..., None]) -> None:
    alignment = aligned_with_subtokens(case.sizes)
    logits = logits_of(case, alignment)
    maps = alignment.maps("cpu")
    size = sum(tensor.nbytes for tensor in [*logits, *maps.offsets, *maps.ids])
    ours = [
        Alternative(name, partial(united, k=case.k, back_end=name), as_returned)
        for name in back_ends("top_k_union")
    ]
    peers = [
        Alternative("softmax, topk, indices", partial(by_probabilities, k=case.k), as_returned),
        Alternative("topk, indices, softmax", partial(by_logits, k=case.k), as_returned),
        Alternative(
            "topk of each model, no more", lambda b: best_of_each(b.mixture.logits, case.k), None
        ),
    ]
    figures(
        "top_k_union",
        f"{case}-u{alignment.size}",
        [*ours, *peers],
        [buffer_of(logits, case.sizes) for _ in range(copies_needed(size, setting.size))],
        Work(size + 12 * case.rows * len(case.sizes) * case.k),
        bytes_each=size,
        tolerance=TOLERANCE[torch.float32],  # in which all of them compute
    )


def logits_of(case: Case, alignment: VocabularyAlignment) -> list[Tensor]:
    """The likely tokens stand apart, since which of equal ones is among the k best is up to each
    alternative. Half of them are tokens that all models have, so that some are chosen twice."""
    generator = torch.Generator().manual_seed(case.rows)
    heights = 26 + torch.arange(2 * case.k) / 4  # exact in bfloat16, and above the others
    common = alignment.model_columns(0)
    for model in range(1, len(case.sizes)):
        common = common[torch.isin(common, alignment.model_columns(model))]
    maps = alignment.maps("cpu")
    made = []
    shared = [
        common[torch.randperm(len(common), generator=generator)[: case.k]] for _ in range(case.rows)
    ]
    for size, offsets, ids in zip(case.sizes, maps.offsets, maps.ids, strict=True):
        logits = torch.randn(case.rows, size, generator=generator) * 4
        for row, columns in zip(logits, shared, strict=True):
            likely = ids[offsets[columns].long()].long()
            others = torch.randperm(size, generator=generator)
            others = others[~torch.isin(others, likely)][: case.k]
            order = torch.randperm(2 * case.k, generator=generator)
            row[torch.cat([likely, others])] = heights[order]
        made.append(logits.to(case.dtype))
    return made


def united(buffer: Buffer, k: int, back_end: str) -> TopKUnion:
    return top_k_union(buffer.mixture.logits, buffer.mixture.alignment, k=k, backend=back_end)


def as_returned(buffer: Buffer, union: tuple[Tensor, Tensor]) -> list[Tensor]:
    return list(union)
