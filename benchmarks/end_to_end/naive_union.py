"""A per-token ensemble over the union of all vocabularies as research code runs it: each token is
appended to the text, which the helpers encode again and read without a cache, and the union is a
Python dict over whole vocabularies. Uses nothing of the packages that it is a peer of."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from tests.decoding.text_oracle import bytes_of_ids


class NaiveToken(NamedTuple):
    """A chosen token (None: the end of the text), the gap between its probability and the next
    best, and the seconds that it took."""

    data: bytes | None
    gap: float
    seconds: float


class NaiveModel:
    """A model with the bytes of its ids."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        # As transformers calls it until 5.23, and from then on.
        names = inspect.signature(model.forward).parameters
        self.keyword = "cache" if "cache" in names else "past_key_values"
        self.end = model.generation_config.eos_token_id
        self.tokens: dict[int, bytes | None] = dict(bytes_of_ids(tokenizer))
        ends = self.end if isinstance(self.end, list) else [self.end]
        for end in ends:
            self.tokens[end] = None
        self.ids_of = {token: n for n, token in sorted(self.tokens.items(), reverse=True)}

    def ids(self, prompt: str, response: bytes) -> list[int]:
        """The prompt and what was written, encoded once more."""
        written = self.tokenizer(response.decode(), add_special_tokens=False)["input_ids"]
        return [*self.tokenizer(prompt)["input_ids"], *written]


@torch.no_grad()
def naive_union(models: list[NaiveModel], prompt: str, max_new_tokens: int) -> Iterator[NaiveToken]:
    """Writes with the first model's cache, token by token; the others read everything again. A
    response that stops inside a character is read by the first alone."""
    first, cache, response = models[0], None, b""
    fed = first.tokenizer(prompt)["input_ids"]
    for _ in range(max_new_tokens):
        start = time.perf_counter()
        tokens = torch.tensor([fed])
        output = first.model(tokens, use_cache=True, logits_to_keep=1, **{first.keyword: cache})
        cache = output.past_key_values
        rows = [(first, output.logits[0, -1])]
        if _is_text(response):
            for model in models[1:]:
                ids = torch.tensor([model.ids(prompt, response)])
                output = model.model(ids, use_cache=False, logits_to_keep=1)
                rows.append((model, output.logits[0, -1]))
        union: dict[bytes | None, float] = {}
        for model, row in rows:
            probabilities = row.float().softmax(-1).tolist()
            for number, token in model.tokens.items():
                union[token] = union.get(token, 0.0) + probabilities[number] / len(rows)
        chosen = max(union, key=lambda token: union[token])
        second = max(value for token, value in union.items() if token != chosen)
        yield NaiveToken(chosen, union[chosen] - second, time.perf_counter() - start)
        if chosen is None:
            return
        response += chosen
        fed = (
            [first.ids_of[chosen]]
            if chosen in first.ids_of
            else first.tokenizer(chosen.decode(), add_special_tokens=False)["input_ids"]
        )


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
