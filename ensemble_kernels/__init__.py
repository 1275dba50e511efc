"""Operators for decoding with several language models at once."""

from ._dispatch import backends
from .kv_compaction.api import compact_kv_
from .segment_attention.api import segment_attention
from .token_statistics.api import TokenStatistics, segment_mean, token_statistics
from .vocabulary_mixture.alignment import VocabularyAlignment
from .vocabulary_mixture.api import (
    Mixture,
    TopKUnion,
    mix_distributions,
    sharpen_prefixes,
    top_k_union,
)

__all__ = [
    "Mixture",
    "TokenStatistics",
    "TopKUnion",
    "VocabularyAlignment",
    "backends",
    "compact_kv_",
    "mix_distributions",
    "segment_attention",
    "segment_mean",
    "sharpen_prefixes",
    "token_statistics",
    "top_k_union",
]
