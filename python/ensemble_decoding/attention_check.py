"""Whether a model can decode in segments, found out by a few short passes when a member is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from .attention import no_mask
from .attention_switch import NAME, segment_attention_active
from .cache import SegmentCache, cache_argument
from .usage import OperatorClock
from .verification import PackedCandidates

# Norm of the difference over norm of the logits. What is compared was computed alike, in passes of
# one shape or rows of one pass, so that it is equal to the bit in nearly all models, also quantized
# ones. Models that take positions otherwise are off by 0.1 and more with random weights.
_TOLERANCE = 0.05


class _CallCounter(OperatorClock):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def add(self, operator: str, seconds: float) -> None:
        self.calls += 1


def check_attention(model: PreTrainedModel, num_layers: int, token_ids: Sequence[int]) -> None:
    """Feeds `token_ids` to the model, as two equal candidates and as a prompt.

    Raises ValueError unless every layer sends the candidates through segment attention, with
    nothing that it does not know, and positions and logits are those that a run asks for.
    """
    name, counter = type(model).__name__, _CallCounter()
    with _quiet(), _evaluating(model), segment_attention_active(model), torch.no_grad():
        if model.config._attn_implementation == NAME:
            try:
                _check_passes(model, num_layers, list(token_ids), counter)
            except (MemoryError, torch.OutOfMemoryError):
                raise  # says nothing about the model
            except Exception as error:  # models are programs: they raise what they like
                raise ValueError(
                    f"model cannot decode in segments: {name}: {' '.join(str(error).split())}"
                ) from error
    if counter.calls != num_layers:
        raise ValueError(
            f"model must take the attention of all its {num_layers} layers from transformers' "
            f"attention interface, {name} does in {counter.calls}"
        )


def _check_passes(
    model: PreTrainedModel, num_layers: int, ids: list[int], counter: _CallCounter
) -> None:
    cache = SegmentCache(num_layers)
    keywords = {"use_cache": True, cache_argument(model): cache}
    tokens, positions, offsets = PackedCandidates.of([ids, ids]).inputs(0, model.device)
    logits = model(
        input_ids=tokens,
        position_ids=positions,
        attention_mask=no_mask(model.device),
        segment_offsets=offsets,
        operator_clock=counter,
        **keywords,
    ).logits[0]
    if counter.calls != num_layers:
        return
    if _differ(*logits.chunk(2)):
        raise ValueError("it does not take the positions of candidates from position_ids")
    tokens, positions = tokens[:, : len(ids)], positions[:, : len(ids)]
    keywords["logits_to_keep"] = 1
    cache.reset()
    alone = model(input_ids=tokens, **keywords).logits[0]
    if len(alone) != 1:
        raise ValueError(f"it gives logits for {len(alone)} tokens with logits_to_keep=1")
    cache.reset()
    if _differ(alone, model(input_ids=tokens, position_ids=positions, **keywords).logits[0]):
        raise ValueError("without position_ids it counts tokens in a way of its own, not from 0 on")


def _differ(one: Tensor, other: Tensor) -> bool:
    """Rows without a distribution are left to the run, which says where they are."""
    one, other = one.double(), other.double()
    seen = one.isfinite() & other.isfinite()
    one, other = one[seen], other[seen]
    return bool((one - other).norm() > _TOLERANCE * (one - one.mean()).norm())


@contextmanager
def _quiet() -> Iterator[None]:
    """Holds back what transformers logs about a switch that the check then reports itself."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Without the dropout of a model that is still in training mode, and back."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
