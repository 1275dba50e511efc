"""What one member says of its next token: its likeliest, the probability of one, its vote."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .sampling import TokenChooser, first_maximum

if TYPE_CHECKING:
    from .context import DecodingContext
    from .member import Member
    from .options import GenerationOptions
    from .token_mixture import Mixed, TokenMixture


def shares(weights: Sequence[float]) -> list[float]:
    """The weights, made to sum to 1."""
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def without_special(member: Member, row: Tensor) -> Tensor:
    """`row [V]` without the ids that are neither text nor end-of-text."""
    return row.index_fill(0, member.suppressed_index(row.device), -torch.inf)


def favourite(member: Member, row: Tensor) -> int:
    """The member's likeliest id in `row [V]` among text and end-of-text, the lowest on ties."""
    best = first_maximum(row)
    return first_maximum(without_special(member, row)) if member.is_suppressed(best) else best


def probability(member: Member, row: Tensor, token: int) -> float:
    """Of an id in `row [V]`; of all end-of-text ids together where it is one."""
    row = row.double()
    ids = list(member.end_of_text_ids) if member.is_end_of_text(token) else [token]
    return float((row[ids].logsumexp(0) - row.logsumexp(0)).exp())


def mix_votes(
    mixture: TokenMixture,
    contexts: Sequence[DecodingContext],
    rows: Sequence[Tensor],
    weights: Sequence[float],
    mean: str | None = None,
) -> Mixed:
    """The mixture of the members' votes `rows[j] [V_j]`, on the first one's device. Where special
    tokens take all of everybody's, they are left out."""
    device = contexts[0].member.device
    mixed = mixture.mix([row.to(device) for row in rows], weights, mean)
    if not bool(mixed.probabilities.sum() > 0):
        plain = [
            without_special(context.member, row).to(device)
            for context, row in zip(contexts, rows, strict=True)
        ]
        mixed = mixture.mix(plain, weights, mean)
    probabilities = mixed.probabilities
    if not probabilities.numel() or not bool(probabilities.sum() > 0):  # also NaN
        raise ValueError("no voting member gives text or end-of-text any probability")
    return mixed


def pick(chooser: TokenChooser, probabilities: Tensor, position: int) -> int:
    """An entry of `probabilities [n]`, by the chooser's seed or greedily."""
    # It takes logits. Greedily the probabilities do: their logarithms may tie where they do not.
    row = probabilities if chooser.seed is None else probabilities.double().log()
    return chooser.pick(row, position)


def voting_row(
    context: DecodingContext, row: Tensor, ids: Sequence[int], options: GenerationOptions
) -> Tensor:
    """`row [V]`, which follows `ids`, as the member votes with it: shaped by its processors."""
    if not context.chooser.processors:
        return row
    # Special tokens must not take a place among the top k. They keep their part of the softmax.
    special = context.member.suppressed_index(row.device)
    shaped = context.chooser.shaped(without_special(context.member, row), ids)
    temperature = (options.temperature or 1.0) if options.do_sample else 1.0
    return shaped.index_copy(0, special, row[special].to(shaped.dtype) / temperature)
