"""Models and tokenizers from a hub id or a folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

# What says where files come from; everything else is for the model alone.
_SHARED = ("revision", "token", "cache_dir", "local_files_only", "trust_remote_code", "subfolder")


def load_checkpoint(
    path: str, dtype: torch.dtype | str, hf_kwargs: Mapping[str, Any]
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads a causal language model, with all of its weights, and its tokenizer.

    Raises ValueError, with the reason in one sentence, where that cannot be done, and
    ModuleNotFoundError where a package for it is missing.
    """
    shared = {name: hf_kwargs[name] for name in _SHARED if name in hf_kwargs}
    # Else transformers names the weights of other shapes in its log only.
    options = {"ignore_mismatched_sizes": True, **hf_kwargs}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **shared)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, output_loading_info=True, **options
        )
        model, loading_info = loaded
        check_complete(loading_info, other_shapes="ignore_mismatched_sizes" in hf_kwargs)
    except (ModuleNotFoundError, MemoryError, torch.OutOfMemoryError):
        raise  # says nothing about the files
    except Exception as error:  # readers of damaged files raise what they like
        cause = " ".join(str(error).split())
        if not isinstance(error, OSError | ValueError):
            cause = f"{type(error).__name__}: {cause}"
        raise ValueError(f"no model could be loaded from {path!r}: {cause}") from error
    return model, tokenizer


def check_complete(loading_info: Mapping[str, Any], *, other_shapes: bool = False) -> None:
    """Raises ValueError for weights that transformers made up, since the files have them not at
    all, or, unless `other_shapes` are allowed, in another shape."""
    if missing := sorted(loading_info["missing_keys"]):
        raise ValueError(f"{len(missing)} weights are missing, the first is {missing[0]}")
    mismatched = sorted(loading_info["mismatched_keys"], key=str)
    if mismatched and not other_shapes:
        name, has, wanted = mismatched[0]
        raise ValueError(
            f"{len(mismatched)} weights have another shape than the configuration says, the first "
            f"is {name} with {list(has)} instead of {list(wanted)}"
        )
