"""Operators for decoding with several language models at once."""

from ._dispatch import backends
from .kv_compaction.api import compact_kv_

__all__ = ["backends", "compact_kv_"]
