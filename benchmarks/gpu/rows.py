"""`token_statistics` and `segment_mean` on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from benchmarks.gpu.case import Case, Peers, seeded
from benchmarks.operators.bench_token_statistics import frugal, plain
from benchmarks.operators.ceilings import Work, dtype_name
from benchmarks.operators.frame import Alternative
from ensemble_kernels import segment_mean, token_statistics

Logits = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Statistics(Case):
    columns: int
    rows: int
    dtype: torch.dtype
    # So many of the last rows are checked; 0: all. For tensors whose temporaries in float64 would
    # not fit, and whose last rows lie where an offset of 32 bits does not reach.
    tail: int = 0

    operator = "token_statistics"

    @property
    def name(self) -> str:
        return f"{dtype_name(self.dtype)}-v{self.columns}-r{self.rows}"

    @property
    def bytes_each(self) -> int:
        return self.rows * self.columns * self.dtype.itemsize

    def work(self) -> Work:
        return Work(self.bytes_each)

    def buffers(self, device: torch.device, count: int) -> list[Logits]:
        generator = seeded(device, self.columns)
        shape = (self.rows, self.columns)
        logits = torch.empty(shape, dtype=self.dtype, device=device)
        logits.normal_(generator=generator).mul_(5)
        token_ids = torch.randint(
            self.columns, (self.rows,), generator=generator, device=device, dtype=torch.int64
        )
        return [(logits, token_ids)] + [
            (logits.clone(), token_ids.clone()) for _ in range(count - 1)
        ]

    def call(self, back_end: str, buffer: Logits) -> tuple[Tensor, ...]:
        return token_statistics(*buffer, backend=back_end)

    def outcome(self, buffer: Logits, returned: tuple[Tensor, ...]) -> list[Tensor]:
        return [field[-self.tail :] for field in returned]

    def expected(self, buffer: Logits) -> list[Tensor]:
        logits, token_ids = (tensor[-self.tail :] for tensor in buffer)
        return _fields(logits.double(), token_ids)

    def composition(self, buffer: Logits) -> list[Tensor]:
        logits, token_ids = (tensor[-self.tail :] for tensor in buffer)
        return _fields(logits.float(), token_ids)

    def peers(self, buffers: list[Logits]) -> Peers:
        return [
            Alternative("log_softmax, gather, argmax, entropy", lambda b: plain(*b), self.outcome),
            Alternative("softmax, max, vecdot", lambda b: frugal(*b), self.outcome),
        ]


def _fields(logits: Tensor, token_ids: Tensor) -> list[Tensor]:
    logprobs = logits.log_softmax(-1)
    # The first of equal logits, which low precision makes frequent and argmax does not promise.
    columns = torch.arange(logits.shape[1], device=logits.device)
    highest = logits == logits.amax(-1, keepdim=True)
    return [
        logprobs.gather(1, token_ids[:, None])[:, 0],
        torch.where(highest, columns, logits.shape[1]).amin(-1),
        logprobs.amax(-1),
        logits.logsumexp(-1),
        -(logprobs.exp() * logprobs).sum(-1),
    ]


@dataclass(frozen=True)
class Mean(Case):
    lengths: tuple[int, ...]
    dtype: torch.dtype

    operator = "segment_mean"

    @property
    def name(self) -> str:
        return f"{dtype_name(self.dtype)}-t{sum(self.lengths)}-n{len(self.lengths)}"

    @property
    def bytes_each(self) -> int:
        return sum(self.lengths) * self.dtype.itemsize

    def work(self) -> Work:
        return Work(self.bytes_each + 8 * len(self.lengths))

    def buffers(self, device: torch.device, count: int) -> list[tuple[Tensor, Tensor]]:
        generator = seeded(device, len(self.lengths))
        values = torch.randn(sum(self.lengths), generator=generator, device=device).to(self.dtype)
        offsets = torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32, device=device)
        return [(values.clone(), offsets.clone()) for _ in range(count)]

    def call(self, back_end: str, buffer: tuple[Tensor, Tensor]) -> Tensor:
        return segment_mean(*buffer, backend=back_end)

    def expected(self, buffer: tuple[Tensor, Tensor]) -> list[Tensor]:
        return [_means(buffer[0].double(), self.lengths)]

    def composition(self, buffer: tuple[Tensor, Tensor]) -> list[Tensor]:
        return [_means(buffer[0].float(), self.lengths)]

    def peers(self, buffers: list[tuple[Tensor, Tensor]]) -> Peers:
        def reduced(buffer: tuple[Tensor, Tensor]) -> Tensor:
            values, offsets = buffer
            return torch.segment_reduce(values.float(), "mean", offsets=offsets.long())

        return [Alternative("segment_reduce", reduced, lambda _, means: [means])]


def _means(values: Tensor, lengths: tuple[int, ...]) -> Tensor:
    spans = pairwise([0, *accumulate(lengths)])
    empty = values.new_tensor(-torch.inf)  # which therefore never wins
    return torch.stack([values[a:b].mean() if a < b else empty for a, b in spans])
