"""The operators over a union vocabulary in Triton, each in a file of its own."""

from .triton_mixture import mix_distributions
from .triton_sharpening import sharpen_prefixes
from .triton_top_k import top_k_union

__all__ = ["mix_distributions", "sharpen_prefixes", "top_k_union"]
