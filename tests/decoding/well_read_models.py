"""Tiny models that know the texts of the tests, so that they agree with each other now and then
although their tokens differ."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import torch

from tests.decoding.tokenizers_for_tests import ENGLISH, GERMAN


@cache
def pair_scores(tokenizer, width):
    """`[width, width]`: the logarithm of how often a token follows another in the texts."""
    counts = torch.full((width, width), 0.02, dtype=torch.float64)
    for text in (ENGLISH, GERMAN):
        ids = tokenizer(text[: len(text) // 4], add_special_tokens=False)["input_ids"]
        for pair in pairwise(ids):
            counts[pair] += 1
    return counts.log()


def well_read(one, knowledge=0.5):
    """Adds what a member's model knows of the texts to its logits; returns the member."""

    def add_knowledge(module, arguments, keywords, output):
        ids = keywords["input_ids"] if "input_ids" in keywords else arguments[0]
        scores = pair_scores(one.tokenizer, output.logits.shape[-1])
        known = scores.to(output.logits.dtype)[ids[:, -output.logits.shape[1] :]]
        output.logits = (1 - knowledge) * output.logits + 2 * knowledge * known
        return output

    one.model.register_forward_hook(add_knowledge, with_kwargs=True)
    return one
