"""`mix_distributions`, `sharpen_prefixes` and `top_k_union` in plain PyTorch.

Floors, in bytes: `mix_distributions` R·Σ V_m·b + map + 4·R·U; `sharpen_prefixes` 2·R·U·b + the
ranges; `top_k_union` R·Σ V_m·b + map. These here hold one [R, U] tensor per model besides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .. import _checks
from .._dispatch import check_contents

_NOTHING = -math.inf


def mix_distributions(
    logits: list[Tensor],
    map_offsets: list[Tensor],
    map_ids: list[Tensor],
    weights: Tensor,
    temperature: Tensor,
    geometric: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    shares, temperatures = _values(weights, temperature)
    rows, size = logits[0].shape[0], map_offsets[0].shape[0] - 1
    mixed, log_mixed = weights.new_zeros((rows, size)), weights.new_zeros((rows, size))
    lost_mass = []
    for model, share in enumerate(shares):
        scores = _scaled(logits[model], temperatures[model])
        ids = _ids_in_turn(map_offsets[model], map_ids[model], logits[model].shape[1])
        mass = _over_union(torch.softmax(scores, -1), ids, torch.add)
        lost_mass.append((1 - mass.sum(-1)).clamp(min=0))
        if share == 0:  # 0 · NaN and 0 · -inf must not reach the mixture
            continue
        mixed = mixed + share * mass
        if geometric:
            # In logarithms: a product of small masses must not underflow to an empty support.
            log_mass = _over_union(torch.log_softmax(scores, -1), ids, torch.logaddexp)
            log_mixed = log_mixed + share * log_mass
    probabilities = mixed / mixed.sum(-1, keepdim=True)
    fell_back = torch.zeros(rows, dtype=torch.bool, device=weights.device)
    if geometric:
        fell_back = log_mixed.amax(-1) == _NOTHING
        probabilities = torch.where(fell_back[:, None], probabilities, torch.softmax(log_mixed, -1))
    return probabilities.float(), torch.stack(lost_mass).float(), fell_back


def sharpen_prefixes(
    probabilities: Tensor, prefix_end: Tensor, columns: Tensor, threshold: float
) -> Tensor:
    if check_contents(columns.device.type):
        check_columns(columns, prefix_end.shape[0])
    sharpened = probabilities.clone(memory_format=torch.contiguous_format)
    held = probabilities.gather(1, columns.clamp(min=0))
    rows, candidates = ((columns >= 0) & (held > threshold)).nonzero(as_tuple=True)
    starts = columns[rows, candidates]
    ends = prefix_end[starts]
    # At most 1 / threshold ranges a row, whatever the number of candidates.
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        sharpened[row, start] = probabilities[row, start:end].sum(dtype=torch.float64)
    return sharpened


def top_k_union(
    logits: list[Tensor],
    map_offsets: list[Tensor],
    map_ids: list[Tensor],
    score_columns: list[Tensor],
    weights: Tensor,
    temperature: Tensor,
    k: int,
) -> tuple[Tensor, Tensor]:
    shares, temperatures = _values(weights, temperature)
    rows, size = logits[0].shape[0], map_offsets[0].shape[0] - 1
    chosen = torch.zeros((rows, size), dtype=torch.bool, device=weights.device)
    broken = torch.zeros(rows, dtype=torch.bool, device=weights.device)
    scores: dict[int, Tensor] = {}
    for model, share in enumerate(shares):
        if share == 0:
            continue
        scaled = _scaled(logits[model], temperatures[model])
        ids = _ids_in_turn(map_offsets[model], map_ids[model], logits[model].shape[1])
        scores[model] = _over_union(scaled, ids, torch.logaddexp)
        chosen |= _highest(scores[model], k)
        broken |= scaled.amax(-1).isnan()  # also where it is no candidate's score
    columns = _packed(chosen, len(logits) * k)
    mixed = weights.new_zeros(columns.shape)
    for model, model_scores in scores.items():
        candidate_scores = _candidate_scores(columns, model_scores, score_columns[model])
        mixed = mixed + shares[model] * torch.softmax(candidate_scores, -1)
    broken |= mixed.isnan().any(-1)
    return (
        columns.masked_fill(broken[:, None], -1),
        mixed.float().masked_fill(broken[:, None], math.nan),
    )


def _values(weights: Tensor, temperature: Tensor) -> tuple[list[float], list[float]]:
    """The weights, normalised, and the temperatures."""
    shares, temperatures = weights.tolist(), temperature.tolist()
    check_weights(shares)
    check_temperature(temperatures)
    total = sum(shares)
    return [share / total for share in shares], temperatures


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    """Logits over temperature `[R, V + 1]` in float32 or better; the last column, -inf, is what
    an id that the model lacks reads."""
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    rows, width = logits.shape
    scaled = torch.full((rows, width + 1), _NOTHING, dtype=dtype, device=logits.device)
    scaled[:, :width] = logits
    return scaled.div_(temperature)


def _ids_in_turn(offsets: Tensor, ids: Tensor, width: int) -> list[tuple[Tensor | None, Tensor]]:
    """The map as gathers: the first id of each column, `width` where it has none, then, since ids
    of equal bytes are few, for i = 1, 2, ... the columns that have an i-th further id, and it."""
    starts, counts = offsets[:-1], offsets.diff()
    first = ids.index_select(0, starts.clamp(max=ids.shape[0] - 1))
    turns: list[tuple[Tensor | None, Tensor]] = [
        (None, first.masked_fill_(counts == 0, width).clamp_(max=width))
    ]
    several = (counts > 1).nonzero().squeeze(1)
    while several.numel():
        further = ids[starts[several] + len(turns)]
        turns.append((several, further.clamp_(max=width)))
        several = several[counts[several] > len(turns)]
    return turns


def _over_union(
    scores: Tensor,
    ids_in_turn: list[tuple[Tensor | None, Tensor]],
    add: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """`[R, U]`: the sum, by `add`, of `scores [R, V + 1]` over the ids of each column."""
    union = scores.index_select(1, ids_in_turn[0][1])
    for columns, ids in ids_in_turn[1:]:
        union[:, columns] = add(union[:, columns], scores[:, ids])
    return union


def _highest(scores: Tensor, k: int) -> Tensor:
    """The mask of the k highest finite entries of each row, the lower column first on ties."""
    kth = scores.topk(min(k, scores.shape[1])).values[:, -1:]
    highest = scores > kth
    tied = (scores == kth) & (kth > _NOTHING)
    rows, columns = tied.nonzero(as_tuple=True)
    taken = _rank_in_row(tied, rows) < (k - highest.sum(-1))[rows]
    highest[rows[taken], columns[taken]] = True
    return highest


def _packed(chosen: Tensor, width: int) -> Tensor:
    """The chosen columns of each row, ascending, padded with -1 to `[R, width]`."""
    rows, columns = chosen.nonzero(as_tuple=True)
    packed = torch.full((chosen.shape[0], width), -1, dtype=torch.int64, device=chosen.device)
    packed[rows, _rank_in_row(chosen, rows)] = columns
    return packed


def _rank_in_row(mask: Tensor, rows: Tensor) -> Tensor:
    """For the entries of `mask.nonzero()`, whose rows are given: 0, 1, 2, ... in each row."""
    counts = mask.sum(-1)
    before = counts.cumsum(0) - counts
    return torch.arange(rows.shape[0], device=rows.device) - before[rows]


def _candidate_scores(columns: Tensor, scores: Tensor, score_columns: Tensor) -> Tensor:
    """One model's scores of the candidates `columns [R, W]`: n candidates that take the score of
    one token get it less ln n each, so that together they weigh as much as the token."""
    sources = torch.where(columns >= 0, score_columns[columns.clamp(min=0)].long(), -1)
    taken = scores.gather(1, sources.clamp(min=0)).masked_fill(sources < 0, _NOTHING)
    ordered = sources.sort(-1).values
    sharers = torch.searchsorted(ordered, sources, right=True)
    sharers -= torch.searchsorted(ordered, sources)
    return taken - sharers.to(taken.dtype).log()


def check_weights(weights: Sequence[float]) -> None:
    if not all(0 <= weight < math.inf for weight in weights) or not sum(weights) > 0:
        raise ValueError(
            f"weights must be finite, not negative and not all zero, got {list(weights)}"
        )


def check_temperature(temperature: Sequence[float]) -> None:
    _checks.all_positive("temperature", temperature)


def check_columns(columns: Tensor, size: int) -> None:
    wrong = columns[(columns < -1) | (columns >= size)]
    if wrong.numel():
        raise ValueError(f"columns must be from -1 to {size - 1}, got {int(wrong[0])}")
