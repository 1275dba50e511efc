"""SpecEM as research code runs it: nothing is kept from one round to the next but ids.

Every round each model drafts with `generate` after the whole text, and verifies all drafts in one
pass over the whole text and the packed drafts: no cache, a dense mask [T, T], logits of all
positions and the softmax over all of them. Scores, feedback and vote are those of
`ensemble_decoding`, so that the same drafts win. It imports nothing of this project.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor


class NaiveCandidate(NamedTuple):
    """A distinct draft, and whether the text ends behind it."""

    data: bytes
    ended: bool


@dataclass
class NaiveRound:
    """What a round came to.

    `prefix_ids[i]` are the ids that model i had before the round and `draft_ids[i]` those it
    drafted; `scores[c]` is the vote for candidate c, `tokens` counts the first model's committed
    tokens. `seconds` has the stages draft, pass and softmax, the last with picking its entries.
    """

    candidates: list[NaiveCandidate]
    prefix_ids: list[list[int]]
    draft_ids: list[list[int]]
    scores: list[float]
    winner: int
    tokens: int
    seconds: dict[str, float] = field(default_factory=dict)


@torch.no_grad()
def naive_specem(
    models: Sequence[tuple[Any, Any]],
    prompt: str,
    *,
    max_new_tokens: int,
    segment_length: int = 10,
    learning_rate: float = 1.0,
) -> Iterator[NaiveRound]:
    """Decodes greedily; `models` are pairs of a transformers model with SDPA and its tokenizer.

    The limit counts the first model's tokens. Text that stops inside a character, and special
    tokens other than end-of-text, are a ValueError: prompts in plain English lead to neither.
    """
    ids = [list(tokenizer(prompt)["input_ids"]) for _, tokenizer in models]
    weights = [1 / len(models)] * len(models)
    number, remaining = 0, max_new_tokens
    while remaining > 0:
        number += 1
        clock = _Clock()
        draft_ids = [
            _draft(model, before, min(segment_length, remaining) if j == 0 else segment_length)
            for j, ((model, _), before) in enumerate(zip(models, ids, strict=True))
        ]
        clock.stop("draft")
        written = [_candidate(*pair, draft) for pair, draft in zip(models, draft_ids, strict=True)]
        candidates = list(dict.fromkeys(written))
        drafts = [candidates.index(candidate) for candidate in written]
        shares, encoded = [], []
        for j, (model, tokenizer) in enumerate(models):
            # What a model drafted it keeps as drafted.
            own = {drafts[j]: draft_ids[j]}
            encoded.append(
                [own.get(c) or _encode(model, tokenizer, x) for c, x in enumerate(candidates)]
            )
            shares.append(_judge(model, ids[j], encoded[j], clock))
        weights = _fed_back(weights, shares, drafts, learning_rate / number)
        scores = [
            sum(weight * row[c] for weight, row in zip(weights, shares, strict=True))
            for c in range(len(candidates))
        ]
        winner = scores.index(max(scores))
        tokens = min(len(encoded[0][winner]), remaining)
        remaining -= tokens
        yield NaiveRound(candidates, ids, draft_ids, scores, winner, tokens, clock.seconds)
        ids = [before + choice[winner] for before, choice in zip(ids, encoded, strict=True)]
        if candidates[winner].ended:
            return


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def stop(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


def _draft(model: Any, before: list[int], length: int) -> list[int]:
    fed = torch.tensor([before], device=model.device)
    written = model.generate(
        fed, attention_mask=torch.ones_like(fed), max_new_tokens=length, do_sample=False
    )
    return written[0, len(before) :].tolist()


def _candidate(model: Any, tokenizer: Any, draft: list[int]) -> NaiveCandidate:
    ended = draft[-1] == model.generation_config.eos_token_id
    text_ids = draft[:-1] if ended else draft
    text = tokenizer.decode(text_ids, clean_up_tokenization_spaces=False)
    if "\ufffd" in text or set(text_ids) & set(tokenizer.all_special_ids):
        raise ValueError(f"drafts must be whole characters and no special tokens, got {text!r}")
    return NaiveCandidate(text.encode(), ended)


def _encode(model: Any, tokenizer: Any, candidate: NaiveCandidate) -> list[int]:
    ids = tokenizer(candidate.data.decode(), add_special_tokens=False)["input_ids"]
    return [*ids, model.generation_config.eos_token_id] if candidate.ended else ids


def _judge(model: Any, before: list[int], encoded: list[list[int]], clock: _Clock) -> list[float]:
    """The model's shares of the candidates: softmax over their mean log-probabilities."""
    prefix, packed = len(before), [token for ids in encoded for token in ids]
    positions, segments = list(range(prefix)), [0] * prefix
    # The row that judges each packed token: the one before it, for a first token the prefix's last.
    judges: list[int] = []
    for number, ids in enumerate(encoded, 1):
        positions += range(prefix, prefix + len(ids))
        judges += [prefix - 1, *range(prefix + len(judges), prefix + len(judges) + len(ids) - 1)]
        segments += [number] * len(ids)
    position_ids = torch.tensor([positions], device=model.device)
    logits = model(
        input_ids=torch.tensor([before + packed], device=model.device),
        position_ids=position_ids,
        attention_mask=_masks(model, position_ids[0], torch.tensor(segments, device=model.device)),
        use_cache=False,
    ).logits
    clock.stop("pass")
    log_probabilities = logits[0].log_softmax(-1, dtype=torch.float32)
    del logits
    scores = log_probabilities[judges, packed].split([len(ids) for ids in encoded])
    del log_probabilities
    shares = torch.stack([score.double().mean() for score in scores]).softmax(0).tolist()
    clock.stop("softmax")
    return shares


def _masks(model: Any, positions: Tensor, segments: Tensor) -> Tensor | dict[str, Tensor]:
    """Who sees whom, `[1, 1, T, T]`: the text and its own segment, up to its own position; for
    Gemma 3 one mask for each kind of layer, since a sliding window counts positions."""
    distance = positions[:, None] - positions[None, :]
    seen = (distance >= 0) & ((segments == 0) | (segments[:, None] == segments))
    kinds = set(getattr(model.config, "layer_types", None) or [])
    if "sliding_attention" not in kinds:
        return seen[None, None]
    near = seen & (distance < model.config.sliding_window)
    return {"full_attention": seen[None, None], "sliding_attention": near[None, None]}


def _fed_back(
    weights: list[float], shares: list[list[float]], drafts: list[int], rate: float
) -> list[float]:
    """Model i wins where judge j gives its draft at least the share of k's, j and k not i."""
    count = len(weights)
    raised = []
    for i, weight in enumerate(weights):
        others = [j for j in range(count) if j != i]
        wins = sum(shares[j][drafts[i]] >= shares[j][drafts[k]] for j in others for k in others)
        gain = wins / (count - 1) ** 2 if others else 1.0
        raised.append(weight * math.exp(rate * math.sqrt(1 / count) * gain))
    return [weight / sum(raised) for weight in raised]
