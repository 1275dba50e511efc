"""`segment_attention`: attention of several candidate segments behind one shared prefix."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from .. import _checks
from .._dispatch import select
from .._library import operator

_segment_attention = operator("segment_attention")
_WIDEST = 1 << 62  # of windows: hides nothing of any tensor, and an int64 holds it


@overload
def segment_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segment_offsets: Tensor,
    *,
    prefix_length: int | Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    key_start: Tensor | None = None,
    return_lse: Literal[False] = False,
    backend: str | None = None,
) -> Tensor: ...


@overload
def segment_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segment_offsets: Tensor,
    *,
    prefix_length: int | Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    key_start: Tensor | None = None,
    return_lse: Literal[True],
    backend: str | None = None,
) -> tuple[Tensor, Tensor]: ...


def segment_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segment_offsets: Tensor,
    *,
    prefix_length: int | Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    key_start: Tensor | None = None,
    return_lse: bool = False,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attends from packed candidate segments to a shared prefix and to themselves.

    Row t of segment s sees the whole prefix and the rows `segment_offsets[s]..t` of its own
    segment, never a sibling: one pass equals one separate pass per segment. A row that sees
    nothing gives 0 and an LSE of -inf. What a row may not see never reaches it, NaN included;
    NaN that it may see propagates.

    A score is computed in float32 (float64 for float64 inputs): `query · key`, then times
    `scale · log2(e)`. One for which that overflows is infinite: -inf weighs nothing, +inf makes
    its row NaN, as in PyTorch's `scaled_dot_product_attention` (whose fused kernel makes it 0 in
    bfloat16, and so does the reference).

    Args:
        query: `[B, Hq, T, D]` float32, float64, float16 or bfloat16, any strides.
        key, value: `[B, Hkv, S, D]` of the query's dtype, Hq a multiple of Hkv: `prefix_length`
            slots of prefix, then one slot per query row; what lies behind may hold anything.
        segment_offsets: `[N+1]`, or `[B, N+1]` where the batch rows differ, int32: from 0,
            non-decreasing, the last at most T. Segments may be empty. Rows behind the last offset
            are padding: they give 0 and -inf.
        prefix_length: slots of prefix: an int, `[B]` int32, or None for S - T.
        scale: factor on the scores before the softmax; None for `D ** -0.5`.
        window: a row sees the last `window` logical positions, its own included, as Hugging Face
            counts them: row t stands at `prefix_length + t - segment_offsets[s]`.
        softcap: caps the scaled scores at `softcap * tanh(score / softcap)` (Gemma 2); from 1e-37
            to 1e37.
        key_start: `[B]` int32, the first slot that may be seen: hides left padding.
        return_lse: whether to return the log-sum-exp of the scores as well.
        backend: None for the fastest available, or a name (see `ensemble_kernels.backends()`).

    Returns:
        out `[B, Hq, T, D]` in the query's dtype, and with `return_lse` the LSE `[B, Hq, T]`
        float32, natural logarithm.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: wrong shapes, devices, offsets or lengths, or numbers out of range.
    """
    _check_tensors(query, key, value, segment_offsets)
    batch, rows, slots = query.shape[0], query.shape[2], key.shape[2]
    if isinstance(prefix_length, Tensor):
        _check_per_row("prefix_length", prefix_length, query)
    elif prefix_length is not None:
        if isinstance(prefix_length, bool) or not isinstance(prefix_length, int):
            raise TypeError(
                "prefix_length must be an int, a Tensor or None, "
                f"got {type(prefix_length).__name__}"
            )
        if not 0 <= prefix_length <= slots - rows:
            raise ValueError(
                f"prefix_length must be from 0 to S - T = {slots - rows}, got {prefix_length}"
            )
        key = key[:, :, : prefix_length + rows]
        value = value[:, :, : prefix_length + rows]
        prefix_length = None
    if key_start is not None:
        _checks.tensor("key_start", key_start)
        _check_per_row("key_start", key_start, query)
    if segment_offsets.ndim == 2:
        _checks.shape("segment_offsets", segment_offsets, (batch, segment_offsets.shape[1]))
    if window is not None:
        if isinstance(window, bool) or not isinstance(window, int):
            raise TypeError(f"window must be an int or None, got {type(window).__name__}")
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
    if scale is not None:
        _checks.finite("scale", scale)
    if softcap is not None:
        _checks.positive("softcap", softcap)
    out, lse = select("segment_attention", backend, _segment_attention)(
        query,
        key,
        value,
        segment_offsets,
        prefix_length,
        key_start,
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        window=None if window is None else min(window, _WIDEST),
        softcap=softcap,
    )
    return (out, lse) if return_lse else out


def _check_tensors(query: Tensor, key: Tensor, value: Tensor, segment_offsets: Tensor) -> None:
    _checks.tensor("query", query, ndim=4)
    _checks.dtype("query", query, _checks.FLOAT_DTYPES)
    for name, states in (("key", key), ("value", value)):
        _checks.tensor(name, states, ndim=4)
        _checks.dtype(name, states, (query.dtype,))
        _checks.same_device(name, states, "query", query)
    _checks.tensor("segment_offsets", segment_offsets, ndim=(1, 2))
    _checks.dtype("segment_offsets", segment_offsets, (torch.int32,))
    _checks.same_device("segment_offsets", segment_offsets, "query", query)
    if segment_offsets.shape[-1] < 1:
        raise ValueError(
            f"segment_offsets must hold at least one offset, got {list(segment_offsets.shape)}"
        )
    batch, heads, rows, size = query.shape
    key_heads, slots = key.shape[1:3]
    _checks.shape("key", key, (batch, key_heads, slots, size))
    _checks.shape("value", value, key.shape)
    if size < 1 or key_heads < 1 or heads < 1 or heads % key_heads:
        raise ValueError(
            f"query must have a multiple of the heads of key, not 0, and D at least 1, "
            f"got {list(query.shape)} and {list(key.shape)}"
        )
    if slots < rows:
        raise ValueError(f"key must have a slot for each of the {rows} query rows, got {slots}")


def _check_per_row(name: str, value: Tensor, query: Tensor) -> None:
    _checks.dtype(name, value, (torch.int32,))
    _checks.same_device(name, value, "query", query)
    _checks.shape(name, value, query.shape[:1])
