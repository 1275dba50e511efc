"""`sharpen_prefixes` against running sums over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor

from benchmarks.operators.ceilings import Work
from benchmarks.operators.frame import (
    TOLERANCE,
    Alternative,
    Refused,
    Setting,
    back_ends,
    compiled_peer,
    copies_needed,
)
from benchmarks.operators.mixture_peers import VOCABULARIES, Case
from benchmarks.operators.sharpening_peers import (
    THRESHOLD,
    Buffer,
    buffers_of,
    by_sums,
    nested_alignment,
)
from ensemble_kernels import sharpen_prefixes

DTYPES = (torch.float32, torch.bfloat16)

CASES = {
    "full": [Case(VOCABULARIES[0], *case) for case in product((1, 8), DTYPES)],
    "quick": [Case(VOCABULARIES[0], 1, torch.float32)],
    "tiny": [Case((40, 100, 60), 2, torch.float32)],
}


def test_sharpen_prefixes(case: Case, setting: Setting, figures: Callable[..., None]) -> None:
    alignment = nested_alignment(case.sizes)
    candidates = alignment.model_columns(0).shape[0]
    # The tokens that the few likely candidates begin do not count.
    size = case.rows * (2 * alignment.size * case.dtype.itemsize + 8 * candidates)
    generator = torch.Generator().manual_seed(case.rows)
    buffers = buffers_of(
        alignment, case.rows, case.dtype, copies_needed(size, setting.size), generator
    )
    ours = [
        Alternative(name, partial(sharpened, back_end=name), as_returned)
        for name in back_ends("sharpen_prefixes")
    ]
    figures(
        "sharpen_prefixes",
        f"{case}-u{alignment.size}",
        [*ours, *peers(case, buffers[0])],
        buffers,
        Work(size),
        bytes_each=size,
        tolerance=TOLERANCE[case.dtype],
    )


def sharpened(buffer: Buffer, back_end: str) -> Tensor:
    return sharpen_prefixes(
        *(buffer.values, buffer.alignment, buffer.candidates),
        threshold=THRESHOLD,
        backend=back_end,
    )


def peers(case: Case, buffer: Buffer) -> list[Alternative | Refused]:
    # In double precision, as ours adds up: the differences of sums in float32 are too coarse.
    plain = partial(by_sums, sums=torch.float64, result=case.dtype)
    return [
        Alternative("cumsum and differences", plain, as_returned),
        compiled_peer(
            "the same, compiled",
            # Of tensors: a compiled function cannot take an alignment.
            lambda *tensors: plain(Buffer(tensors[0], tensors[1], buffer.alignment, tensors[2])),
            lambda function, b: function(b.values, b.candidates, b.last),
            buffer,
            as_returned,
            marker="cpp_fused",
        ),
        Alternative("clone, no more", lambda b: b.values.clone(), None),
    ]


def as_returned(buffer: Buffer, result: Tensor) -> Sequence[Tensor]:
    return [result]
