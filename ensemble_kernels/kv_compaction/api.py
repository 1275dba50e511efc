"""`compact_kv_`: keep chosen slots of a key/value cache, in place."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _checks
from .._dispatch import select
from .._library import operator

_compact_kv_ = operator("compact_kv_")


def compact_kv_(
    cache: Tensor,
    keep: Tensor,
    destination_start: int | Tensor,
    *,
    backend: str | None = None,
) -> None:
    """Moves the slots `keep` of `cache` to the slots from `destination_start` on, in place.

    Slot `destination_start + i` takes slot `keep[i]` along the second-last dimension. Source and
    destination may overlap; the result is that of a simultaneous move, bit for bit. Slots outside
    the destination range do not change. One call serves all layers that share a tensor.

    Args:
        cache: `[..., S, D]`, any dtype, any leading dimensions and strides but those of an
            expanded tensor, whose elements share memory; no negated or conjugate view.
        keep: `[n]` int64, strictly ascending, `keep[i] >= destination_start + i`; or `[B, n]` for
            caches `[..., B, H, S, D]` whose rows differ, each row padded at its end with -1.
        destination_start: an int or a 0-d int64 tensor; a `[B]` int64 tensor with `keep [B, n]`.
        backend: None for the fastest available, or a name (see `ensemble_kernels.backends()`).

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: wrong shapes or devices, or slots that are out of range, not ascending or
            before their destination. Nothing is written then.
    """
    _checks.tensor("cache", cache)
    if cache.ndim < 2:
        raise ValueError(f"cache must have at least 2 dimensions, got {list(cache.shape)}")
    if any(n > 1 and step == 0 for n, step in zip(cache.shape, cache.stride(), strict=True)):
        raise ValueError(
            "cache must not be expanded, since its elements then share memory, "
            f"got {list(cache.shape)} with strides {list(cache.stride())}"
        )
    # Of inputs that are only read PyTorch's dispatcher makes plain tensors; this one is written to.
    # A compiled graph cannot ask.
    if not torch.compiler.is_compiling() and (cache.is_neg() or cache.is_conj()):
        kind = "negated" if cache.is_neg() else "conjugate"
        raise ValueError(f"cache must hold its values itself, got a {kind} view of others")
    _checks.tensor("keep", keep, ndim=(1, 2))
    _checks.dtype("keep", keep, (torch.int64,))
    _checks.same_device("keep", keep, "cache", cache)
    if isinstance(destination_start, bool) or not isinstance(destination_start, int | Tensor):
        raise TypeError(
            f"destination_start must be an int or a Tensor, got {type(destination_start).__name__}"
        )
    if isinstance(destination_start, int):
        if destination_start > cache.shape[-2]:
            raise ValueError(
                f"destination_start must be at most S = {cache.shape[-2]}, got {destination_start}"
            )
        if destination_start < 0:
            raise ValueError(f"destination_start must not be negative, got {destination_start}")
        destination_start = torch.full(
            keep.shape[:-1], destination_start, dtype=torch.int64, device=keep.device
        )
    _checks.dtype("destination_start", destination_start, (torch.int64,))
    _checks.same_device("destination_start", destination_start, "cache", cache)
    _checks.shape("destination_start", destination_start, keep.shape[:-1])
    if keep.ndim == 2 and (cache.ndim < 4 or cache.shape[-4] != keep.shape[0]):
        raise ValueError(
            f"cache must be [..., B, H, S, D] with B = {keep.shape[0]} for keep "
            f"{list(keep.shape)}, got {list(cache.shape)}"
        )
    select("compact_kv_", backend, _compact_kv_)(cache, keep, destination_start)
    # A backward pass through what has been overwritten must be refused. A compiled graph counts the
    # writes to its inputs itself.
    if not torch.compiler.is_compiling() and not cache.is_inference():
        torch.autograd.graph.increment_version(cache)
