"""A copy of a tokenizer that encodes a piece of text and adds nothing of its own."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, models

# What these normalizers add or take away depends on where a text begins and ends, and every
# segment that crosses between members would count as a text.
_EDGE_NORMALIZERS = {"Prepend", "Strip"}


def backend_of(tokenizer: Any) -> Tokenizer:
    """The `tokenizers.Tokenizer` inside a transformers fast tokenizer, or ValueError."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ValueError(
            "tokenizer must be a fast tokenizer (with a backend_tokenizer that is a "
            f"tokenizers.Tokenizer), got {type(tokenizer).__name__}, which has none"
        )
    return backend


def pipeline(backend: Tokenizer) -> dict[str, Any]:
    """Everything in `backend`'s JSON but its model and its added tokens.

    The vocabulary makes up nearly all of the JSON (12 MB for Gemma), so it is left out before
    it is written rather than parsed and thrown away.
    """
    shell = Tokenizer(models.BPE())
    shell.normalizer = backend.normalizer
    shell.pre_tokenizer = backend.pre_tokenizer
    shell.decoder = backend.decoder
    return json.loads(shell.to_str())


def plain_tokenizer(tokenizer: Any, token_bytes: Sequence[bytes | None]) -> Tokenizer:
    """A tokenizer with the vocabulary and merges of `tokenizer` for texts inside a response.

    No special tokens, dummy prefix, truncation or padding; an added token that has no bytes in
    `token_bytes` is not looked for. `tokenizer` stays as it is: the model, which is only
    read, is shared, everything else is new.
    """
    backend = backend_of(tokenizer)
    parts = pipeline(backend)
    parts["normalizer"] = _without_edges(parts["normalizer"])
    _forget_dummy_prefix(parts["pre_tokenizer"])
    plain = Tokenizer.from_str(json.dumps(parts))
    plain.model = _deterministic(backend.model)
    _copy_added_tokens(backend, plain, token_bytes)
    plain.encode_special_tokens = True
    return plain


def _without_edges(normalizer: dict[str, Any] | None) -> dict[str, Any] | None:
    if normalizer is None or normalizer["type"] in _EDGE_NORMALIZERS:
        return None
    if normalizer["type"] == "Sequence":
        kept = [part for part in map(_without_edges, normalizer["normalizers"]) if part]
        return {**normalizer, "normalizers": kept}
    return normalizer


def _forget_dummy_prefix(pre_tokenizer: dict[str, Any] | None) -> None:
    if pre_tokenizer is None:
        return
    if pre_tokenizer["type"] == "Sequence":
        for part in pre_tokenizer["pretokenizers"]:
            _forget_dummy_prefix(part)
    elif pre_tokenizer["type"] == "Metaspace":
        pre_tokenizer["prepend_scheme"] = "never"
        # Written by old versions, where it stood for prepend_scheme="always".
        pre_tokenizer.pop("add_prefix_space", None)
    elif pre_tokenizer["type"] == "ByteLevel":
        pre_tokenizer["add_prefix_space"] = False


def _deterministic(model: Any) -> Any:
    """BPE dropout is for training: with it the same bytes would give other ids each time."""
    if getattr(model, "dropout", None) is None:
        return model
    model = copy.deepcopy(model)
    model.dropout = None
    return model


def _copy_added_tokens(
    backend: Tokenizer, plain: Tokenizer, token_bytes: Sequence[bytes | None]
) -> None:
    """Adds them in the order of their ids, since an id that the model lacks is counted up."""
    added = sorted(backend.get_added_tokens_decoder().items())
    plain.add_tokens(
        [
            AddedToken(
                token.content,
                single_word=token.single_word,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.normalized,
                # `encode_special_tokens` hides exactly the tokens that are marked so.
                special=number >= len(token_bytes) or token_bytes[number] is None,
            )
            for number, token in added
        ]
    )
