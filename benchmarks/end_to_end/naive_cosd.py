"""CoSD as research code runs it: nothing is kept from one round to the next but text and ids.

Every round the drafter drafts with `generate` behind the whole text, and the assistant encodes the
whole response once more and reads it without a cache. The rule is that of the paper, places and
tokens are compared as bytes, as in `ensemble_decoding`, so that the same tokens are chosen. Uses
nothing of the packages that it is a peer of.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from benchmarks.end_to_end.naive_union import NaiveModel


class NaiveOpinion(NamedTuple):
    """What the assistant has at a place of the text: its own token there and its likeliest (None:
    the end of the text), the probability of that, and how far the next best is behind it."""

    own: bytes | None
    best: bytes | None
    probability: float
    lead: float


class NaiveDecision(NamedTuple):
    """What stands in the place of a drafted token (None: the end of the text), whether the
    assistant put it there, and by how much a probability must change for another choice."""

    chosen: bytes | None
    replaced: bool
    gap: float


class NaiveDraft(NamedTuple):
    """A round: the drafter's ids before it, those it drafted, what was decided up to the first
    token that was replaced, and how many of the drafter's tokens were committed."""

    prefix_ids: list[int]
    draft_ids: list[int]
    decisions: list[NaiveDecision]
    tokens: int


@torch.no_grad()
def naive_cosd(
    drafter: NaiveModel,
    assistant: NaiveModel,
    prompt: str,
    max_new_tokens: int,
    *,
    draft_length: int = 5,
    alpha: float = 0.5,
    beta: float = 0.5,
) -> Iterator[NaiveDraft]:
    """Drafts greedily; the tokenizers differ, and the limit counts the drafter's tokens.

    Text that stops inside a character or that the assistant's tokenizer loses, and special tokens
    other than end-of-text, are a ValueError: prompts in plain English lead to neither.
    """
    ids, response = list(drafter.tokenizer(prompt)["input_ids"]), b""
    prompt_ids = list(assistant.tokenizer(prompt)["input_ids"])
    remaining = max_new_tokens
    while remaining > 0:
        draft, probabilities = _draft(drafter, ids, min(draft_length, remaining))
        drafted = [_token(drafter, number) for number in draft]
        opinions = _read(assistant, prompt_ids, response, drafted)
        place, kept, decisions = len(response), list[int](), list[NaiveDecision]()
        for number, token, probability in zip(draft, drafted, probabilities, strict=True):
            decision = NaiveDecision(token, False, math.inf)
            if place in opinions:
                decision = _decided(token, probability, opinions[place], alpha, beta)
            written = _written(drafter, decision.chosen) if decision.replaced else [number]
            if written is None:  # the drafter has no tokens for it
                decision, written = decision._replace(chosen=token, replaced=False), [number]
            decisions.append(decision)
            kept += written
            if decision.replaced:
                break
            place += len(token or b"")
        kept = kept[:remaining]
        remaining -= len(kept)
        yield NaiveDraft(ids, draft, decisions, len(kept))
        if decisions[-1].chosen is None:
            return
        ids = [*ids, *kept]
        response += b"".join(drafter.tokens[number] or b"" for number in kept)


def _draft(drafter: NaiveModel, before: list[int], length: int) -> tuple[list[int], list[float]]:
    """The ids, and the probabilities that the model itself gives them."""
    fed = torch.tensor([before], device=drafter.model.device)
    written = drafter.model.generate(
        fed,
        attention_mask=torch.ones_like(fed),
        max_new_tokens=length,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    ids = written.sequences[0, len(before) :].tolist()
    rows = torch.cat(written.logits).float().softmax(-1)
    return ids, [_probability(drafter, row, number) for row, number in zip(rows, ids, strict=True)]


def _read(
    assistant: NaiveModel, prompt_ids: list[int], response: bytes, drafted: list[bytes | None]
) -> dict[int, NaiveOpinion]:
    """By the place in the response, for those tokens of the assistant that begin in the draft."""
    data = response + b"".join(token for token in drafted if token is not None)
    ids = assistant.tokenizer(data.decode(), add_special_tokens=False)["input_ids"]
    tokens = [_token(assistant, number) for number in ids]
    if b"".join(token or b"" for token in tokens) != data:
        raise ValueError(f"the assistant must have tokens for all of a draft, got {data!r}")
    if drafted[-1] is None:
        ids, tokens = [*ids, assistant.ids_of[None]], [*tokens, None]
    places = [0]
    for token in tokens[:-1]:
        places.append(places[-1] + len(token or b""))
    first = next((n for n, place in enumerate(places) if place >= len(response)), len(places))
    judged = list(zip(places[first:], tokens[first:], strict=True))
    if not judged:  # all of the draft is in the middle of one token
        return {}
    # Each token is judged by the row before it; behind the last nothing is asked.
    fed = torch.tensor([[*prompt_ids, *ids[:-1]]], device=assistant.model.device)
    logits = assistant.model(fed, use_cache=False, logits_to_keep=len(judged)).logits[0]
    opinions = {}
    for (place, own), row in zip(judged, logits.float().softmax(-1), strict=True):
        (one, other), (best, _) = (values.tolist() for values in row.topk(2))
        probability = _probability(assistant, row, best)
        opinions[place] = NaiveOpinion(own, _token(assistant, best), probability, one - other)
    return opinions


def _decided(
    token: bytes | None, probability: float, opinion: NaiveOpinion, alpha: float, beta: float
) -> NaiveDecision:
    """The rule. What is replaced was near to being kept where any condition nearly failed, what is
    kept near to being replaced where all that failed nearly held."""
    bound = beta * probability
    conditions = [
        (opinion.best != opinion.own, opinion.lead),
        (probability < alpha, abs(alpha - probability)),
        (opinion.probability > bound, abs(opinion.probability - bound)),
    ]
    failed = [distance for holds, distance in conditions if not holds]
    if failed:
        return NaiveDecision(token, False, max(failed))
    return NaiveDecision(opinion.best, True, min(distance for _, distance in conditions))


def _written(drafter: NaiveModel, token: bytes | None) -> list[int] | None:
    """One id where the drafter has one, else an encoding; None where that loses a part of it."""
    if token is None:
        return [drafter.ids_of[None]]
    ids: list[int] = drafter.tokenizer(token.decode(), add_special_tokens=False)["input_ids"]
    if len(ids) != 1 and token in drafter.ids_of:
        return [drafter.ids_of[token]]
    spelled = b"".join(_token(drafter, number) or b"" for number in ids)
    return ids if spelled == token else None


def _token(model: NaiveModel, number: int) -> bytes | None:
    if number not in model.tokens:
        raise ValueError(f"tokens must be text or the end of it, got id {number}")
    return model.tokens[number]


def _probability(model: NaiveModel, row: torch.Tensor, number: int) -> float:
    """Of an end of the text that of all ids that end it."""
    if isinstance(model.end, list) and number in model.end:
        return float(row[model.end].sum())
    return float(row[number])
