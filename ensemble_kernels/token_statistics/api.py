"""`token_statistics`: what scoring, comparing and checking need of each row of logits, in one
pass; `segment_mean`: its reduction per segment."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import _checks
from .._dispatch import select
from .._library import operator

_token_statistics = operator("token_statistics")
_segment_mean = operator("segment_mean")


class TokenStatistics(NamedTuple):
    """Per row of logits, each `[R]`, of the softmax of `logits / temperature`.

    A row with NaN or +inf, or with -inf alone, has NaN fields and `argmax` -1.
    """

    logprob: Tensor
    """float32: natural log-probability of the row's token id; -inf where its logit is -inf."""
    argmax: Tensor
    """int64: the most probable token id, the lowest on ties."""
    max_logprob: Tensor
    """float32: natural log-probability of `argmax`."""
    logsumexp: Tensor
    """float32: natural log-sum-exp of `logits / temperature`."""
    entropy: Tensor
    """float32, nats; a token of probability 0 adds nothing."""


def token_statistics(
    logits: Tensor,
    token_ids: Tensor,
    *,
    vocab_size: int | None = None,
    temperature: float = 1.0,
    backend: str | None = None,
) -> TokenStatistics:
    """Statistics of each row of logits, without writing anything of the size of the logits.

    Args:
        logits: `[R, V]` float32, float64, float16 or bfloat16, any strides.
        token_ids: `[R]` int64: the token of each row whose log-probability is wanted.
        vocab_size: columns from here on are padding and count for nothing; None for V.
        temperature: divides the logits; from 1e-37 to 1e37.
        backend: None for the fastest available, or a name (see `ensemble_kernels.backends()`).

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: wrong shapes or devices, a vocab_size, temperature or token id out of range.
    """
    _checks.tensor("logits", logits, ndim=2)
    _checks.dtype("logits", logits, _checks.FLOAT_DTYPES)
    _checks.tensor("token_ids", token_ids)
    _checks.dtype("token_ids", token_ids, (torch.int64,))
    _checks.same_device("token_ids", token_ids, "logits", logits)
    _checks.shape("token_ids", token_ids, logits.shape[:1])
    columns = logits.shape[1]
    if vocab_size is None:
        vocab_size = columns
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int):
        raise TypeError(f"vocab_size must be an int or None, got {type(vocab_size).__name__}")
    if not 1 <= vocab_size <= columns:
        raise ValueError(f"vocab_size must be from 1 to V = {columns}, got {vocab_size}")
    _checks.positive("temperature", temperature)
    return TokenStatistics(
        *select("token_statistics", backend, _token_statistics)(
            logits, token_ids, vocab_size=vocab_size, temperature=temperature
        )
    )


def segment_mean(values: Tensor, segment_offsets: Tensor, *, backend: str | None = None) -> Tensor:
    """Mean of the values of each segment, as SpecEM scores candidates by their log-probabilities.

    Args:
        values: `[T]` float32, float64, float16 or bfloat16.
        segment_offsets: `[N+1]` int32: from 0, non-decreasing, the last at most T; values behind
            it are padding.
        backend: None for the fastest available, or a name (see `ensemble_kernels.backends()`).

    Returns:
        `[N]` float32; -inf for an empty segment, which therefore never wins.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: wrong shapes, devices or offsets.
    """
    _checks.tensor("values", values, ndim=1)
    _checks.dtype("values", values, _checks.FLOAT_DTYPES)
    _checks.tensor("segment_offsets", segment_offsets, ndim=1)
    _checks.dtype("segment_offsets", segment_offsets, (torch.int32,))
    _checks.same_device("segment_offsets", segment_offsets, "values", values)
    if segment_offsets.shape[0] < 1:
        raise ValueError("segment_offsets must hold at least one offset, got none")
    return select("segment_mean", backend, _segment_mean)(values, segment_offsets)
