"""The PyTorch operators: their schemas, fake kernels and references.

They are registered here, in Python, so that they exist without a compiler; a native build or
Triton only adds implementations for its dispatch keys. The reference is registered as
CompositeExplicitAutograd and so serves every device that has nothing faster.

What has a kernel in Triton or in CUDA C++ is registered once more, under `ensemble_kernels_triton`
and `ensemble_kernels_cuda`, for the calls that name that back end: those never fall back, and
compile as any other. Under `ensemble_kernels_without_cuda` stands what serves a call of more models
than the CUDA kernels take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import _cuda, _native, _triton
from ._dispatch import register_cuda, register_reference, register_triton
from .kv_compaction.reference import compact_kv_
from .segment_attention.reference import segment_attention
from .segment_attention.states import merge_attention_states
from .token_statistics.reference import segment_mean, token_statistics
from .vocabulary_mixture.reference import mix_distributions, sharpen_prefixes, top_k_union

_LIBRARY = torch.library.Library("ensemble_kernels", "DEF")
_TRITON_LIBRARY = torch.library.Library("ensemble_kernels_triton", "DEF")
_CUDA_LIBRARY = torch.library.Library("ensemble_kernels_cuda", "DEF")
_WITHOUT_CUDA_LIBRARY = torch.library.Library("ensemble_kernels_without_cuda", "DEF")

# What serves tensors on a GPU where the library has no CUDA kernel.
_fastest_without_cuda: dict[str, Callable[..., Any]] = {}


def operator(name: str) -> Callable[..., Any]:
    """The registered operator `name`, resolved once by each `api.py`."""
    return getattr(torch.ops.ensemble_kernels, name).default


def operator_without_cuda(name: str) -> Callable[..., Any]:
    """The same, of an operator in `_cuda.OF_MODELS` and as if it had no CUDA kernel."""
    return getattr(torch.ops.ensemble_kernels_without_cuda, name).default


def _define(schema: str, reference: Callable[..., Any], fake: Callable[..., Any]) -> None:
    name = schema.split("(", 1)[0]
    # As with a native implementation, no gradient is recorded.
    reference = torch.no_grad()(reference)
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, reference, "CompositeExplicitAutograd")
    torch.library.register_fake(f"ensemble_kernels::{name}", fake, lib=_LIBRARY)
    register_reference(name, reference)
    if _cuda.FASTEST[name] == "cuda":
        _CUDA_LIBRARY.define(schema)
        torch.library.register_fake(f"ensemble_kernels_cuda::{name}", fake, lib=_CUDA_LIBRARY)
        register_cuda(name, getattr(torch.ops.ensemble_kernels_cuda, name).default)
    if name in _triton.FOLDERS:
        _define_triton(name, schema, reference, fake)


def _define_triton(
    name: str, schema: str, reference: Callable[..., Any], fake: Callable[..., Any]
) -> None:
    @torch.no_grad()
    def named(*args: Any, **kwargs: Any) -> Any:
        return _triton.run(name, *args, **kwargs)

    def fastest(*args: Any, **kwargs: Any) -> Any:
        if _triton.import_error() is None:
            try:
                return named(*args, **kwargs)
            except _triton.Unsupported:
                pass
        return reference(*args, **kwargs)

    _TRITON_LIBRARY.define(schema)
    _TRITON_LIBRARY.impl(name, named, "CompositeExplicitAutograd")
    torch.library.register_fake(f"ensemble_kernels_triton::{name}", fake, lib=_TRITON_LIBRARY)
    register_triton(name, getattr(torch.ops.ensemble_kernels_triton, name).default)
    _fastest_without_cuda[name] = fastest
    if name in _cuda.OF_MODELS:
        _WITHOUT_CUDA_LIBRARY.define(schema)
        _WITHOUT_CUDA_LIBRARY.impl(name, fastest, "CompositeExplicitAutograd")
        namespaced = f"ensemble_kernels_without_cuda::{name}"
        torch.library.register_fake(namespaced, fake, lib=_WITHOUT_CUDA_LIBRARY)
    if not _native.registered(name, "CUDA"):
        _LIBRARY.impl(name, fastest, "CUDA")


def _fake_compact_kv_(cache: Tensor, keep: Tensor, destination_start: Tensor) -> None:
    return None


_define(
    "compact_kv_(Tensor(a!) cache, Tensor keep, Tensor destination_start) -> ()",
    compact_kv_,
    _fake_compact_kv_,
)


def _fake_segment_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segment_offsets: Tensor,
    prefix_length: Tensor | None = None,
    key_start: Tensor | None = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), query.new_empty(query.shape[:3], dtype=torch.float32)


_define(
    "segment_attention(Tensor query, Tensor key, Tensor value, Tensor segment_offsets, "
    "Tensor? prefix_length=None, Tensor? key_start=None, *, float scale, int? window=None, "
    "float? softcap=None) -> (Tensor, Tensor)",
    segment_attention,
    _fake_segment_attention,
)


def _fake_mix_distributions(
    logits: list[Tensor],
    map_offsets: list[Tensor],
    map_ids: list[Tensor],
    weights: Tensor,
    temperature: Tensor,
    geometric: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    rows, size = logits[0].shape[0], map_offsets[0].shape[0] - 1
    return (
        weights.new_empty((rows, size)),
        weights.new_empty((len(logits), rows)),
        weights.new_empty(rows, dtype=torch.bool),
    )


_define(
    "mix_distributions(Tensor[] logits, Tensor[] map_offsets, Tensor[] map_ids, Tensor weights, "
    "Tensor temperature, bool geometric) -> (Tensor, Tensor, Tensor)",
    mix_distributions,
    _fake_mix_distributions,
)


def _fake_sharpen_prefixes(
    probabilities: Tensor, prefix_end: Tensor, columns: Tensor, threshold: float
) -> Tensor:
    return probabilities.new_empty(probabilities.shape)


_define(
    "sharpen_prefixes(Tensor probabilities, Tensor prefix_end, Tensor columns, float threshold) "
    "-> Tensor",
    sharpen_prefixes,
    _fake_sharpen_prefixes,
)


def _fake_top_k_union(
    logits: list[Tensor],
    map_offsets: list[Tensor],
    map_ids: list[Tensor],
    score_columns: list[Tensor],
    weights: Tensor,
    temperature: Tensor,
    k: int,
) -> tuple[Tensor, Tensor]:
    shape = (logits[0].shape[0], len(logits) * k)
    return weights.new_empty(shape, dtype=torch.int64), weights.new_empty(shape)


_define(
    "top_k_union(Tensor[] logits, Tensor[] map_offsets, Tensor[] map_ids, "
    "Tensor[] score_columns, Tensor weights, Tensor temperature, SymInt k) -> (Tensor, Tensor)",
    top_k_union,
    _fake_top_k_union,
)


def _fake_token_statistics(
    logits: Tensor, token_ids: Tensor, *, vocab_size: int, temperature: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows = logits.shape[:1]
    logprob, max_logprob, logsumexp, entropy = (
        logits.new_empty(rows, dtype=torch.float32) for _ in range(4)
    )
    argmax = logits.new_empty(rows, dtype=torch.int64)
    return logprob, argmax, max_logprob, logsumexp, entropy


_define(
    "token_statistics(Tensor logits, Tensor token_ids, *, int vocab_size, float temperature) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    token_statistics,
    _fake_token_statistics,
)


def _fake_segment_mean(values: Tensor, segment_offsets: Tensor) -> Tensor:
    return values.new_empty(segment_offsets.shape[0] - 1, dtype=torch.float32)


_define(
    "segment_mean(Tensor values, Tensor segment_offsets) -> Tensor",
    segment_mean,
    _fake_segment_mean,
)


def _fake_merge_attention_states(states: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    return states.new_empty(states.shape[1:]), lse.new_empty(lse.shape[1:])


# A part of an operator and none of its own: what an attention that splits its keys ends with.
_CUDA_LIBRARY.define("merge_attention_states(Tensor states, Tensor lse) -> (Tensor, Tensor)")
_CUDA_LIBRARY.impl(
    "merge_attention_states",
    torch.no_grad()(merge_attention_states),
    "CompositeExplicitAutograd",
)
torch.library.register_fake(
    "ensemble_kernels_cuda::merge_attention_states",
    _fake_merge_attention_states,
    lib=_CUDA_LIBRARY,
)
