"""`mix_distributions` and `top_k_union` on a GPU."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu.case import Case, Peers, seeded
from benchmarks.operators import mixture_peers as cpu
from benchmarks.operators.ceilings import Work, dtype_name
from benchmarks.operators.frame import Alternative
from benchmarks.operators.top_k_peers import aligned_with_subtokens, best_of_each
from ensemble_kernels import (
    Mixture,
    TopKUnion,
    VocabularyAlignment,
    mix_distributions,
    top_k_union,
)


class Buffer(NamedTuple):
    peers: cpu.Buffer
    # As tensors: numbers would be copied to the GPU in every call, which waits for it.
    weights: Tensor
    temperature: Tensor


@dataclass(frozen=True)
class Mix(Case):
    sizes: tuple[int, ...]
    rows: int
    dtype: torch.dtype
    mean: str = "arithmetic"

    operator = "mix_distributions"

    @property
    def name(self) -> str:
        sizes = "+".join(map(str, self.sizes))
        mean = "" if self.mean == "arithmetic" else f"-{self.mean}"
        return f"{dtype_name(self.dtype)}-v{sizes}-r{self.rows}{mean}"

    @property
    def bytes_each(self) -> int:
        maps = self._alignment().maps("cpu")
        size = sum(tensor.nbytes for tensor in [*maps.offsets, *maps.ids])
        return size + self.rows * sum(self.sizes) * self.dtype.itemsize

    def _alignment(self) -> VocabularyAlignment:
        return cpu.alignment(self.sizes)

    def work(self) -> Work:
        return Work(self.bytes_each + 4 * self.rows * self._alignment().size)

    def buffers(self, device: torch.device, count: int) -> list[Buffer]:
        generator = seeded(device, self.rows)
        logits = [
            torch.randn(self.rows, size, generator=generator, device=device).mul_(5).to(self.dtype)
            for size in self.sizes
        ]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            made = [cpu.buffer_of(logits, self.sizes, self._alignment()) for _ in range(count)]
        ones = torch.ones(len(self.sizes), device=device)
        return [Buffer(buffer, ones.clone(), ones.clone()) for buffer in made]

    def call(self, back_end: str, buffer: Buffer) -> Mixture:
        return mix_distributions(
            buffer.peers.logits,
            buffer.peers.alignment,
            weights=buffer.weights,
            mean=self.mean,
            temperature=buffer.temperature,
            backend=back_end,
        )

    def expected(self, buffer: Buffer) -> list[Tensor]:
        return self._defined(buffer, torch.float64)

    def composition(self, buffer: Buffer) -> list[Tensor]:
        return self._defined(buffer, torch.float32)

    def _defined(self, buffer: Buffer, dtype: torch.dtype) -> list[Tensor]:
        """Every id of these vocabularies has a column of its own, so no mass is lost."""
        first = buffer.peers.logits[0]
        shape = (self.rows, buffer.peers.alignment.size)
        mixed = torch.zeros(shape, dtype=dtype, device=first.device)
        fill = 0.0 if self.mean == "arithmetic" else -torch.inf
        for logits, columns in zip(buffer.peers.logits, buffer.peers.columns, strict=True):
            values = logits.log_softmax(-1, dtype=dtype) / len(self.sizes)
            if self.mean == "arithmetic":
                values = logits.softmax(-1, dtype=dtype) / len(self.sizes)
            mixed += torch.full_like(mixed, fill).index_copy_(1, columns, values)
        if self.mean == "geometric":
            mixed = mixed.softmax(-1)
        lost = torch.zeros((len(self.sizes), self.rows), dtype=dtype, device=first.device)
        return [mixed, lost, torch.zeros(self.rows, dtype=torch.bool, device=first.device)]

    def peers(self, buffers: list[Buffer]) -> Peers:
        # Of the results of ours they make the first.
        def only(_: object, mixed: Tensor) -> list[Tensor]:
            return [mixed]

        if self.mean == "geometric":
            return [Alternative("log_softmax, index_select", lambda b: by_logs(b.peers), only)]
        return [
            Alternative("softmax, index_select", lambda b: cpu.by_gather(b.peers), only),
            Alternative("softmax, index_add_", lambda b: cpu.by_scatter(b.peers), only),
            Alternative("softmax, sparse CSR product", lambda b: cpu.by_product(b.peers), only),
        ]


def by_logs(buffer: cpu.Buffer) -> Tensor:
    """The geometric mean, over the columns that all models have."""
    scores = []
    for logits, inverse in zip(buffer.logits, buffer.inverse, strict=True):
        own = torch.log_softmax(logits, -1, dtype=torch.float32)
        padded = torch.nn.functional.pad(own, (0, 1), value=-torch.inf)
        scores.append(padded.index_select(1, inverse))
    return torch.softmax(torch.stack(scores).mean(0), -1)


@dataclass(frozen=True)
class TopK(Mix):
    k: int = 10

    operator = "top_k_union"

    def _alignment(self) -> VocabularyAlignment:
        return aligned_with_subtokens(self.sizes)

    def work(self) -> Work:
        return Work(self.bytes_each + 12 * self.rows * len(self.sizes) * self.k)

    def call(self, back_end: str, buffer: Buffer) -> TopKUnion:
        return top_k_union(
            buffer.peers.logits,
            buffer.peers.alignment,
            k=self.k,
            weights=buffer.weights,
            temperature=buffer.temperature,
            backend=back_end,
        )

    def expected(self, buffer: Buffer) -> list[Tensor]:
        """By the reference on the CPU in float64, which the tests check against plain loops."""
        logits = [tensor.double().cpu() for tensor in buffer.peers.logits]
        union = top_k_union(logits, self._alignment(), k=self.k, backend="reference")
        return [tensor.to(buffer.weights.device) for tensor in union]

    def composition(self, buffer: Buffer) -> None:
        return None

    def peers(self, buffers: list[Buffer]) -> Peers:
        def best(buffer: Buffer) -> list[Tensor]:
            return best_of_each(buffer.peers.logits, self.k)

        return [Alternative("topk of each model, no more", best, None)]
