"""`sharpen_prefixes` on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from benchmarks.gpu.case import Case, Peers, seeded
from benchmarks.operators.ceilings import Work, dtype_name
from benchmarks.operators.frame import Alternative
from benchmarks.operators.sharpening_peers import THRESHOLD, Buffer, buffers_of, by_sums
from ensemble_kernels import VocabularyAlignment, sharpen_prefixes


@dataclass(frozen=True)
class Sharpening(Case):
    rows: int
    letters: int  # the vocabulary is all strings of one and of two of so many bytes
    dtype: torch.dtype

    operator = "sharpen_prefixes"

    @property
    def name(self) -> str:
        return f"{dtype_name(self.dtype)}-u{self._alignment().size}-r{self.rows}"

    def _alignment(self) -> VocabularyAlignment:
        return nested(self.letters)

    @property
    def bytes_each(self) -> int:
        return 2 * self.rows * self._alignment().size * self.dtype.itemsize

    def work(self) -> Work:
        # The candidates are all columns, int64; the ranges of the few likely ones do not count.
        return Work(self.bytes_each + 8 * self.rows * self._alignment().size)

    def buffers(self, device: torch.device, count: int) -> list[Buffer]:
        generator = seeded(device, self.rows)
        return buffers_of(self._alignment(), self.rows, self.dtype, count, generator)

    def call(self, back_end: str, buffer: Buffer) -> Tensor:
        return sharpen_prefixes(
            *(buffer.values, buffer.alignment, buffer.candidates),
            threshold=THRESHOLD,
            backend=back_end,
        )

    def expected(self, buffer: Buffer) -> list[Tensor]:
        return [by_sums(buffer, sums=torch.float64, result=torch.float64)]

    def composition(self, buffer: Buffer) -> list[Tensor]:
        return [by_sums(buffer, sums=torch.float32, result=self.dtype)]

    def peers(self, buffers: list[Buffer]) -> Peers:
        # In double precision, as ours adds up: the differences of sums in float32 are too coarse.
        def sums(buffer: Buffer) -> Tensor:
            return by_sums(buffer, sums=torch.float64, result=self.dtype)

        return [Alternative("cumsum and differences", sums, lambda _, made: [made])]


@lru_cache(maxsize=4)
def nested(letters: int) -> VocabularyAlignment:
    single = [bytes([a]) for a in range(letters)]
    return VocabularyAlignment.from_token_bytes([single + [a + b for a in single for b in single]])
