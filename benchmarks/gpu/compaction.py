"""`compact_kv_` on a GPU, in the buffers of the CPU benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu.case import Case, Peers
from benchmarks.operators import bench_compact_kv as cpu
from benchmarks.operators.ceilings import Work
from benchmarks.operators.frame import Alternative
from ensemble_kernels import compact_kv_


class Buffer(NamedTuple):
    cache: Tensor
    keep: Tensor
    start: int
    kept: Tensor
    target: Tensor
    on_device: Tensor  # the start, which a call with an int would have to write there first


@dataclass(frozen=True)
class Compaction(Case):
    shape: cpu.Case

    operator = "compact_kv_"
    exact_move = True
    in_place = True

    @property
    def name(self) -> str:
        shape = self.shape
        return f"{shape}-l{shape.layers}-h{shape.heads}-d{shape.size}"

    @property
    def bytes_each(self) -> int:
        """Read and written."""
        shape = self.shape
        elements = 2 * shape.layers * shape.heads * shape.size * len(shape.keep)
        return 2 * elements * shape.dtype.itemsize

    def work(self) -> Work:
        return Work(self.bytes_each, copies=True)

    def buffers(self, device: torch.device, count: int) -> list[Buffer]:
        made = cpu.buffers_of(self.shape, count, device)
        return [Buffer(*b, torch.tensor(b.start, device=device)) for b in made]

    def call(self, back_end: str, buffer: Buffer) -> None:
        compact_kv_(buffer.cache, buffer.keep, buffer.on_device, backend=back_end)

    def outcome(self, buffer: Buffer, returned: None) -> list[Tensor]:
        return [buffer.cache]

    def expected(self, buffer: Buffer) -> list[Tensor]:
        cache = buffer.cache.clone()
        end = buffer.start + len(self.shape.keep)
        cache[..., buffer.start : end, :] = buffer.cache[..., buffer.keep, :]
        return [cache]

    def composition(self, buffer: Buffer) -> None:
        return None

    def peers(self, buffers: list[Buffer]) -> Peers:
        return [
            Alternative("index_select, narrow().copy_", cpu.whole_cache, self.outcome),
            Alternative("the same layer by layer", cpu.by_layer, self.outcome),
            Alternative("memcpy of as many bytes", lambda b: b.target.copy_(b.kept), None),
        ]
