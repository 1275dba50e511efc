"""How far the vocabularies of an alignment overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _checks
from .column_maps import AlignmentMaps

# [ours] Below it most of what a model says has no counterpart in the other. Of real pairs the
# smaller vocabulary shares 80 to 94 % of its tokens.
LITTLE_OVERLAP = 0.25


class PairCoverage(NamedTuple):
    """How much of the vocabulary of `model` the model `other` has too."""

    model: int
    other: int
    shared: int  # columns of the union that both have
    columns: int  # columns that `model` has
    by_mass: float | None  # mean probability that `model` puts on shared columns, if known

    @property
    def by_count(self) -> float:
        return self.shared / self.columns


class AlignmentReport(NamedTuple):
    size: int  # columns of the union
    pairs: tuple[PairCoverage, ...]

    def __str__(self) -> str:
        lines = [f"union of {self.size} columns"]
        for pair in self.pairs:
            line = (
                f"model {pair.other} has {pair.by_count:.1%} of the {pair.columns} tokens of "
                f"model {pair.model}"
            )
            lines.append(line + ("" if pair.by_mass is None else f", {pair.by_mass:.1%} by mass"))
        return "\n".join(lines)

    def little_overlap(self) -> list[tuple[int, int]]:
        """The pairs in which neither model has `LITTLE_OVERLAP` of the other's vocabulary."""
        by_pair = {(pair.model, pair.other): pair.by_count for pair in self.pairs}
        return [
            (model, other)
            for (model, other), covered in by_pair.items()
            if model < other and max(covered, by_pair[other, model]) < LITTLE_OVERLAP
        ]


def coverage(maps: AlignmentMaps, distributions: Sequence[Tensor] | None = None) -> AlignmentReport:
    models = range(len(maps.offsets))
    counts = [offsets.diff() for offsets in maps.offsets]
    has = [count > 0 for count in counts]
    masses = None if distributions is None else _column_masses(maps, counts, distributions)
    pairs = []
    for model in models:
        for other in models:
            if model == other:
                continue
            shared = has[model] & has[other]
            mass = None if masses is None else float(masses[model][shared].sum())
            pairs.append(PairCoverage(model, other, int(shared.sum()), int(has[model].sum()), mass))
    return AlignmentReport(maps.prefix_end.shape[0], tuple(pairs))


def _column_masses(
    maps: AlignmentMaps, counts: Sequence[Tensor], distributions: Sequence[Tensor]
) -> list[Tensor]:
    """Per model `[U]` float64: the mean probability of each column."""
    if len(distributions) != len(counts):
        raise ValueError(
            f"distributions must have {len(counts)} entries, one per model, "
            f"got {len(distributions)}"
        )
    masses = []
    for model, given in enumerate(distributions):
        _checks.tensor(f"distributions[{model}]", given, ndim=(1, 2))
        _checks.dtype(f"distributions[{model}]", given, _checks.FLOAT_DTYPES)
        mean = given.detach().cpu().double().reshape(-1, given.shape[-1]).mean(0)
        ids = maps.ids[model].long()
        columns = torch.repeat_interleave(counts[model].long())
        inside = ids < mean.shape[0]
        mass = mean.new_zeros(maps.prefix_end.shape[0])
        masses.append(mass.index_add_(0, columns[inside], mean[ids[inside]]))
    return masses
