"""`segment_mean` against `segment_reduce` and a mean for each segment.

The call is all there is: a few hundred bytes, just written by `token_statistics`, so that its two
buffers stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from benchmarks.operators.ceilings import Work
from benchmarks.operators.frame import TOLERANCE, Alternative, Setting, back_ends
from ensemble_kernels import segment_mean

Buffer = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    lengths: tuple[int, ...]

    def __str__(self) -> str:
        return f"float32-t{sum(self.lengths)}-n{len(self.lengths)}"


CASES = {
    "full": [Case((10, 9, 11)), Case((16,) * 64)],
    "quick": [Case((10, 9, 11))],
    "tiny": [Case((2, 3))],
}


def test_segment_mean(case: Case, setting: Setting, figures: Callable[..., None]) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(sum(case.lengths), generator=generator)
    offsets = torch.tensor([0, *accumulate(case.lengths)], dtype=torch.int32)
    ours = [
        Alternative(name, lambda b, name=name: segment_mean(*b, backend=name), as_returned)
        for name in back_ends("segment_mean")
    ]
    peers = [
        Alternative("segment_reduce", reduced, as_returned),
        Alternative("a mean for each", lambda b: one_by_one(b[0], case.lengths), as_returned),
    ]
    size = values.nbytes + offsets.nbytes
    figures(
        "segment_mean",
        case,
        [*ours, *peers],
        [(values.clone(), offsets.clone()) for _ in range(2)],
        Work(size + 4 * len(case.lengths)),
        bytes_each=size,
        tolerance=TOLERANCE[torch.float32],
    )


def as_returned(buffer: Buffer, means: Tensor) -> Sequence[Tensor]:
    return [means]


def reduced(buffer: Buffer) -> Tensor:
    values, offsets = buffer
    return torch.segment_reduce(values, "mean", offsets=offsets.long())


def one_by_one(values: Tensor, lengths: tuple[int, ...]) -> Tensor:
    return torch.stack([part.mean() for part in values.split(lengths)])
