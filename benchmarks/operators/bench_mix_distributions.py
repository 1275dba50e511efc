"""`mix_distributions` against gathers, scatters and sparse products."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch

from benchmarks.operators.ceilings import Work
from benchmarks.operators.frame import TOLERANCE, Alternative, Setting, back_ends, copies_needed
from benchmarks.operators.mixture_peers import (
    VOCABULARIES,
    Case,
    alignment,
    as_returned,
    buffer_of,
    by_gather,
    by_product,
    by_scatter,
)
from ensemble_kernels import mix_distributions

DTYPES = (torch.float32, torch.bfloat16)

CASES = {
    "full": [Case(*case) for case in product(VOCABULARIES, (1, 8), DTYPES)],
    "quick": [Case(VOCABULARIES[0], 1, torch.float32)],
    "tiny": [Case((40, 100, 60), 2, torch.float32)],
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_mix_distributions(case: Case, setting: Setting, figures: Callable[..., None]) -> None:
    generator = torch.Generator().manual_seed(case.rows)
    logits = [
        (torch.randn(case.rows, size, generator=generator) * 5).to(case.dtype)
        for size in case.sizes
    ]
    maps = alignment(case.sizes).maps("cpu")
    union = alignment(case.sizes).size
    size = sum(tensor.nbytes for tensor in [*logits, *maps.offsets, *maps.ids])
    ours = [
        Alternative(
            name,
            lambda b, name=name: mix_distributions(b.logits, b.alignment, backend=name),
            lambda _, mixture: [mixture.probabilities],
        )
        for name in back_ends("mix_distributions")
    ]
    peers = [
        Alternative("softmax, index_select", by_gather, as_returned),
        Alternative("softmax, index_add_", by_scatter, as_returned),
        Alternative("softmax, sparse CSR product", by_product, as_returned),
    ]
    figures(
        "mix_distributions",
        f"{case}-u{union}",
        [*ours, *peers],
        [buffer_of(logits, case.sizes) for _ in range(copies_needed(size, setting.size))],
        Work(size + 4 * case.rows * union),
        bytes_each=size,
        tolerance=TOLERANCE[torch.float32],  # in which all of them compute
    )
