"""Whether a peer chose what ours chose, and how close the call was where it did not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from benchmarks.end_to_end.models import LoadedModel
from benchmarks.end_to_end.naive_cosd import NaiveDraft
from benchmarks.end_to_end.naive_specem import NaiveRound
from benchmarks.end_to_end.naive_union import NaiveToken
from ensemble_decoding.trace import Round

# What rounding turns round in float32: votes for candidates, logits of drafted tokens,
# probabilities of mixed ones or of those that a rule compares.
NEAR_TIES = {"vote": 1e-4, "logit": 1e-3, "probability": 1e-4}


class Match(NamedTuple):
    """What both chose alike, in words; `excused`: nothing but a near tie is between them."""

    text: str
    excused: bool


def same_rounds(
    models: Sequence[LoadedModel], naive: Sequence[NaiveRound], ours: Sequence[Round]
) -> Match:
    """SpecEM: the drafts and the winner of every round."""
    for number, (theirs, own) in enumerate(zip(naive, ours, strict=False)):
        if _drafted(theirs) != _drafted(own):
            gaps = [
                _draft_gap(loaded.model, before, draft)
                for loaded, before, draft in zip(
                    models, theirs.prefix_ids, theirs.draft_ids, strict=True
                )
            ]
            return _parted(number, len(naive), "rounds", "logit", min(gaps))
        if theirs.winner != own.winner:
            second, best = sorted(theirs.scores)[-2:]
            return _parted(number, len(naive), "rounds", "vote", best - second)
    return _whole(len(naive), len(ours), "rounds")


def same_drafts(drafter: LoadedModel, naive: Sequence[NaiveDraft], ours: Sequence[Round]) -> Match:
    """CoSD: the drafts, and what was decided at each of their tokens."""
    for number, (theirs, own) in enumerate(zip(naive, ours, strict=False)):
        if theirs.draft_ids != own.candidates[0].token_ids[0]:
            gap = _draft_gap(drafter.model, theirs.prefix_ids, theirs.draft_ids)
            return _parted(number, len(naive), "rounds", "logit", gap)
        for decision, other in zip(theirs.decisions, own.decisions, strict=False):
            chosen = None if other.chosen_end else other.chosen
            if decision[:2] != (chosen, other.decided_by is not None):
                return _parted(number, len(naive), "rounds", "probability", decision.gap)
        if len(theirs.decisions) != len(own.decisions):
            return _parted(number, len(naive), "rounds", "probability", math.inf)
    return _whole(len(naive), len(ours), "rounds")


def same_tokens(naive: Sequence[NaiveToken], ours: Sequence[Round]) -> Match:
    """A token-level ensemble: every token."""
    for number, (theirs, own) in enumerate(zip(naive, ours, strict=False)):
        if own.data != (theirs.data or b""):
            return _parted(number, len(naive), "tokens", "probability", theirs.gap)
    return _whole(len(naive), len(ours), "tokens")


def same_ids(theirs: Sequence[int], ours: Sequence[int], model: LoadedModel, prompt: str) -> Match:
    """Text that one model writes alone."""
    for number, (one, other) in enumerate(zip(theirs, ours, strict=False)):
        if one != other:
            before = [*model.tokenizer(prompt)["input_ids"], *theirs[:number]]
            gap = _draft_gap(model.model, before, [one])
            return _parted(number, len(theirs), "tokens", "logit", gap)
    return _whole(len(theirs), len(ours), "tokens")


def _parted(number: int, count: int, unit: str, kind: str, gap: float) -> Match:
    text = f"{number} of {count} {unit}, then a {kind} gap of {gap:.1e} decides"
    return Match(text, gap <= NEAR_TIES[kind])


def _whole(theirs: int, ours: int, unit: str) -> Match:
    if theirs != ours:
        return Match(f"{theirs} {unit} against {ours}", False)
    return Match(f"all {ours} {unit}", True)


def _drafted(round_: NaiveRound | Round) -> list[tuple[bytes, bool]]:
    return [(candidate.data, candidate.ended) for candidate in round_.candidates]


@torch.no_grad()
def _draft_gap(model: Any, before: list[int], draft: list[int]) -> float:
    """How close the second best token ever came while a draft was written."""
    fed = torch.tensor([[*before, *draft[:-1]]], device=model.device)
    logits = model(fed, use_cache=False, logits_to_keep=len(draft)).logits[0].float()
    best, second = logits.topk(2).values.unbind(1)
    return float((best - second).min())
