"""`sharpen_prefixes` on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu.case import Case, Peers, seeded
from benchmarks.operators.ceilings import Work, dtype_name
from benchmarks.operators.frame import Alternative
from ensemble_kernels import VocabularyAlignment, sharpen_prefixes

THRESHOLD = 0.1


class Probabilities(NamedTuple):
    values: Tensor
    candidates: Tensor
    alignment: VocabularyAlignment
    prefix_end: Tensor


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

    def buffers(self, device: torch.device, count: int) -> list[Probabilities]:
        aligned = self._alignment()
        scores = torch.randn(
            self.rows, aligned.size, generator=seeded(device, self.rows), device=device
        )
        scores[:, 0] += 12  # a single letter and a pair that are likely enough
        scores[:, aligned.size // 2] += 12
        values = scores.softmax(-1).to(self.dtype)
        candidates = aligned.model_columns(0).to(device).expand(self.rows, -1)
        end = aligned.maps(device).prefix_end
        return [
            Probabilities(values.clone(), candidates.contiguous(), aligned, end)
            for _ in range(count)
        ]

    def call(self, back_end: str, buffer: Probabilities) -> Tensor:
        return sharpen_prefixes(
            *(buffer.values, buffer.alignment, buffer.candidates),
            threshold=THRESHOLD,
            backend=back_end,
        )

    def expected(self, buffer: Probabilities) -> list[Tensor]:
        return [by_sums(buffer, torch.float64)]

    def composition(self, buffer: Probabilities) -> list[Tensor]:
        return [by_sums(buffer, torch.float32).to(self.dtype)]

    def peers(self, buffers: list[Probabilities]) -> Peers:
        # In double precision, as ours adds up: the differences of sums in float32 are too coarse.
        def sums(buffer: Probabilities) -> Tensor:
            return by_sums(buffer, torch.float64).to(self.dtype)

        return [Alternative("cumsum and differences", sums, lambda _, made: [made])]


def by_sums(buffer: Probabilities, dtype: torch.dtype) -> Tensor:
    """Every column is a candidate here, so those need no looking up."""
    values = buffer.values.to(dtype)
    sums = torch.nn.functional.pad(values.cumsum(-1), (1, 0))
    starts = torch.arange(values.shape[1], device=values.device)
    totals = sums[:, buffer.prefix_end.long()] - sums[:, starts]
    return torch.where(buffer.values > THRESHOLD, totals, values)


@lru_cache(maxsize=4)
def nested(letters: int) -> VocabularyAlignment:
    single = [bytes([a]) for a in range(letters)]
    return VocabularyAlignment.from_token_bytes([single + [a + b for a in single for b in single]])
