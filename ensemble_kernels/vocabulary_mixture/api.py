"""Mixtures of several models' next-token distributions over one byte-keyed vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _checks, _cuda
from .._dispatch import select
from .._library import operator, operator_without_cuda
from .alignment import VocabularyAlignment
from .arguments import check_alignment, real_columns, temperature_tensor, weight_tensor

_mix_distributions = operator("mix_distributions")
_sharpen_prefixes = operator("sharpen_prefixes")
_top_k_union = operator("top_k_union")
_mix_without_cuda = operator_without_cuda("mix_distributions")
_top_k_without_cuda = operator_without_cuda("top_k_union")

MEANS = ("arithmetic", "geometric")


class Mixture(NamedTuple):
    """What `mix_distributions` returns."""

    probabilities: Tensor
    """`[R, U]` float32: each row sums to 1."""
    lost_mass: Tensor
    """`[M, R]` float32: what each model puts on ids that are neither text nor end-of-text."""
    fell_back: Tensor
    """`[R]` bool: the geometric mean had no support, the row is the arithmetic mean."""


class TopKUnion(NamedTuple):
    """What `top_k_union` returns."""

    columns: Tensor
    """`[R, M·k]` int64: columns of the union, ascending, each once, then -1."""
    probabilities: Tensor
    """`[R, M·k]` float32: each row sums to 1; 0 where there is no column."""


def mix_distributions(
    logits: Sequence[Tensor],
    alignment: VocabularyAlignment,
    *,
    weights: Sequence[float] | Tensor | None = None,
    mean: str = "arithmetic",
    temperature: float | Sequence[float] | Tensor = 1.0,
    backend: str | None = None,
) -> Mixture:
    """The weighted mean of the models' distributions over the union vocabulary.

    Each model's softmax runs over all ids of its token table, special tokens included; columns
    behind the table are padding and count for nothing. The probabilities of ids with the same
    bytes add up, as do those of all end-of-text ids. What falls on ids that are neither is lost
    mass: it lowers the say of that model, and the mixture is renormalised once, at the end.

    `mean="arithmetic"`: Σ w_m p_m, a token that a model lacks counts 0 (GaC, "Breaking the
    Ceiling of the LLM Community by Treating Token Generation as a Classification for Ensembling").
    `mean="geometric"`: Π p_m^w_m over the tokens that all models of non-zero weight have and none
    of them excludes; a row without such a token is the arithmetic mean, and is flagged (SAFE,
    "When to Ensemble", uses it to sharpen).

    Computed in float32 (float64 for float64 logits), with no atomics: the result is bitwise the
    same on every run. Under `torch.compile`, weights and temperatures given as Tensors may change
    without a recompilation.

    Args:
        logits: per model `[R, V_m]`, any float dtypes and strides, all on one device.
        alignment: of the models, in the same order. Tokens whose ids lie behind `V_m` count for
            nothing; the first such use of an alignment warns (but not inside a compiled graph).
        weights: per model a float, or `[M]`; not negative, not all zero, in the range of float32;
            None: equal. Only their ratios matter. A model of weight 0 has no say, whatever its
            logits, NaN included.
        mean: "arithmetic" or "geometric".
        temperature: one for all models or one per model, or `[M]`; from 1e-37 to 1e37. A row
            whose logits float32 cannot hold, once divided by it, may be NaN.
        backend: None for the fastest available, or a name (see `ensemble_kernels.backends()`).

    Returns:
        `Mixture(probabilities [R, U] float32, lost_mass [M, R] float32, fell_back [R] bool)`.
        A row where a model of non-zero weight has a NaN, or nothing but -inf, is NaN throughout;
        so is one where all mass is lost, to what float32 can hold.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: wrong shapes or devices, or weights or temperatures out of range (those in
            Tensors on a GPU are checked only with ENSEMBLE_KERNELS_DEBUG=1).
    """
    rows = real_columns(logits, alignment)
    if mean not in MEANS:
        raise ValueError(f"mean must be one of {MEANS}, got {mean!r}")
    maps = alignment.maps(rows[0].device)
    registered = _mix_without_cuda if _too_many_for_cuda(rows) else _mix_distributions
    mix = select("mix_distributions", backend, registered)
    return Mixture(
        *mix(
            rows,
            maps.offsets,
            maps.ids,
            weight_tensor(weights, rows),
            temperature_tensor(temperature, rows),
            mean == "geometric",
        )
    )


def sharpen_prefixes(
    probabilities: Tensor,
    alignment: VocabularyAlignment,
    columns: Tensor,
    *,
    threshold: float = 0.1,
    backend: str | None = None,
) -> Tensor:
    """Adds to likely candidates the mass of the tokens that continue them.

    SAFE's consolidation ("When to Ensemble: Identifying Token-Level Points for Stable and Fast
    LLM Ensembling", λ = 0.1 there): each column of `columns` that holds more than `threshold`
    receives the mass of all other tokens of the union whose bytes start with its own. All sums
    are taken from the input, in float64, so nested candidates do not compound. The result is not
    renormalised: its argmax is what SAFE takes; renormalise it before sampling.

    Args:
        probabilities: `[R, U]` over the columns of `alignment`, any float dtype and strides.
        alignment: whose `prefix_end` says where the tokens with a common prefix end.
        columns: `[R, n]` int64, the drafter's candidates (all of its tokens:
            `alignment.model_columns(drafter)`), -1 for none. A repeated one counts once;
            end-of-text is the prefix of nothing.
        threshold: not negative.
        backend: None for the fastest available, or a name (see `ensemble_kernels.backends()`).

    Returns:
        `[R, U]`, a new tensor of the dtype of `probabilities`. A NaN stays where it is, and
        reaches the candidates that are its prefix.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: wrong shapes or devices, a negative threshold, or columns out of range
            (checked on a GPU only with ENSEMBLE_KERNELS_DEBUG=1).
    """
    check_alignment(alignment)
    _checks.tensor("probabilities", probabilities, ndim=2)
    _checks.dtype("probabilities", probabilities, _checks.FLOAT_DTYPES)
    _checks.shape("probabilities", probabilities, (probabilities.shape[0], alignment.size))
    _checks.tensor("columns", columns, ndim=2)
    _checks.dtype("columns", columns, (torch.int64,))
    _checks.same_device("columns", columns, "probabilities", probabilities)
    _checks.shape("columns", columns, (probabilities.shape[0], columns.shape[1]))
    _checks.number("threshold", threshold)
    if not threshold >= 0:
        raise ValueError(f"threshold must not be negative, got {threshold}")
    prefix_end = alignment.maps(probabilities.device).prefix_end
    sharpen = select("sharpen_prefixes", backend, _sharpen_prefixes)
    return sharpen(probabilities, prefix_end, columns, float(threshold))


def top_k_union(
    logits: Sequence[Tensor],
    alignment: VocabularyAlignment,
    *,
    k: int = 10,
    weights: Sequence[float] | Tensor | None = None,
    temperature: float | Sequence[float] | Tensor = 1.0,
    backend: str | None = None,
) -> TopKUnion:
    """The weighted mean of the models' distributions over the union of their k likeliest tokens.

    UniTE's alignment ("Determine-Then-Ensemble: Necessity of Top-k Union for Large Language Model
    Ensembling", k = 10 there). Each model contributes its k likeliest byte strings (end-of-text
    is one; ids with equal bytes are log-sum-exp'ed first; ties go to the lower bytes; what it
    excludes with -inf is not among them), then scores all candidates: by its own logit, or, for
    a token that it lacks, by that of the first sub-token of the token's encoding. n candidates
    that fall on one token of a model get its logit minus ln n each (here the released code gives
    a duplicate the logit 0, which can take all the mass). End-of-text that a model lacks has no
    probability in it. Each model's softmax runs over the candidates.

    Args:
        logits: per model `[R, V_m]`, any float dtypes and strides, all on one device.
        alignment: of the models, in the same order, made with `with_first_subtokens` unless every
            model has every token: the bytes alone cannot tell how a tokenizer splits them.
        k: byte strings of each model, at least 1.
        weights, temperature, backend: as in `mix_distributions`. A model of weight 0 contributes
            no candidates either.

    Returns:
        `TopKUnion(columns [R, M·k] int64, probabilities [R, M·k] float32)`. A row where a model
        of non-zero weight has a NaN, or nothing but -inf for all candidates, is -1 and NaN.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: wrong shapes or devices, k below 1, weights or temperatures out of range
            (those in Tensors on a GPU are checked only with ENSEMBLE_KERNELS_DEBUG=1), or an
            alignment that lacks first sub-tokens.
    """
    rows = real_columns(logits, alignment)
    if isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f"k must be an int, got {type(k).__name__}")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if alignment.models_without_subtokens:
        raise ValueError(
            f"alignment must know the first sub-tokens of what its models "
            f"{alignment.models_without_subtokens} lack; see with_first_subtokens"
        )
    maps = alignment.maps(rows[0].device)
    registered = _top_k_without_cuda if _too_many_for_cuda(rows) else _top_k_union
    select_top = select("top_k_union", backend, registered)
    return TopKUnion(
        *select_top(
            rows,
            maps.offsets,
            maps.ids,
            maps.score_columns,
            weight_tensor(weights, rows),
            temperature_tensor(temperature, rows),
            k,
        )
    )


def _too_many_for_cuda(logits: Sequence[Tensor]) -> bool:
    return len(logits) > _cuda.MOST_MODELS and logits[0].device.type in _cuda.DEVICE_TYPES
