"""Token tables as one vocabulary of byte strings, and probabilities over it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ensemble_kernels import VocabularyAlignment, sharpen_prefixes

from .token_table import TokenTable
from .user_cache import cache_folder


def alignment_of(tables: Sequence[TokenTable]) -> VocabularyAlignment:
    """The union vocabulary of the tables, from the cache folder if it is there."""
    return VocabularyAlignment.cached(
        [table.token_bytes for table in tables],
        [table.end_of_text_ids for table in tables],
        [table.canonical_ids for table in tables],
        folder=cache_folder() / "alignments",
    )


def sharpened_columns(
    probabilities: Tensor, alignment: VocabularyAlignment, threshold: float
) -> Tensor:
    """`sharpen_prefixes` for all tokens of the first model above `threshold`; end-of-text is none
    of them."""
    above = (probabilities > threshold).nonzero().flatten().tolist()
    columns = [
        column
        for column in above
        if column != alignment.end_of_text and alignment.token_id(0, column) is not None
    ]
    if not columns:
        return probabilities
    chosen = torch.tensor([columns], device=probabilities.device)
    return sharpen_prefixes(probabilities[None], alignment, chosen, threshold=threshold)[0]


def over_columns(probabilities: Tensor, alignment: VocabularyAlignment, model: int) -> Tensor:
    """Probabilities `[V]` of one model's ids, added up over the columns of the union, `[U]`."""
    maps = alignment.maps(probabilities.device)
    reached = probabilities[maps.ids[model]].cumsum(0, dtype=torch.float64)
    reached = torch.cat([reached.new_zeros(1), reached])[maps.offsets[model]]
    return reached.diff().to(probabilities.dtype)
