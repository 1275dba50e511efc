"""Runs of two real models together, with everything that their models were fed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ensemble_decoding import Member, SpecEM

BEYOND_THE_WINDOW = "".join(
    f"{n}. In {1900 + n} the town of Saint-{name} had {37 * n} houses and {n % 7} wells.\n"
    for n, name in enumerate(("Martin", "Cyr", "Lô", "Véran", "Omer") * 4, 1)
)
PROMPTS = {
    "english": "The capital of France is Paris. The capital of Italy is",
    "code": 'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "accents": "Le café où naquit Zoë était fermé. À côté, une pâtisserie",
    "emoji": "Party list: 🎉🎊🥳🎂🎈🎁🎉🎊🥳🎂🎈🎁🎉🎊🥳🎂",
    "cjk": "日本の首都は東京です。中国的首都是",
    "digits": "12 + 30 = 42\n17 + 25 = 42\n31 + 48 =",
    "indented": "items:\n    - name: a\n\n        value:\t1\n    - name: b\n\n",
    "inside_a_word": "My favourite dish is a plate of spagh",
    "messages": [
        {"role": "user", "content": "Name three fruits."},
        {"role": "assistant", "content": "Apple, pear, plum."},
        {"role": "user", "content": "And three colours?"},
    ],
    "beyond_the_window": BEYOND_THE_WINDOW,
}


class Passes(NamedTuple):
    """A model's forward passes: the ids fed, and the shape and dtype of the head's output."""

    fed: list[list[int]]
    logits: list[tuple[torch.Size, torch.dtype]]


@contextmanager
def watched(model: Any) -> Iterator[Passes]:
    passes = Passes([], [])
    head = model.get_output_embeddings()
    hooks = [
        model.register_forward_pre_hook(
            lambda _, __, keywords: passes.fed.append(keywords["input_ids"][0].tolist()),
            with_kwargs=True,
        ),
        head.register_forward_hook(lambda _, __, out: passes.logits.append((out.shape, out.dtype))),
    ]
    try:
        yield passes
    finally:
        for hook in hooks:
            hook.remove()


class Recording(NamedTuple):
    """A finished run with what its models were fed."""

    run: Any
    pieces: list[str]
    passes: list[Passes]
    limit: int
    length: int


def request(prompt: str | list[dict[str, str]]) -> dict[str, Any]:
    """The argument by which a method takes a prompt."""
    return {"prompt" if isinstance(prompt, str) else "messages": prompt}


def record(ensemble: Sequence[Member], prompt: Any, limit: int, length: int = 10) -> Recording:
    method = SpecEM(ensemble, segment_length=length)
    with watched(ensemble[0].model) as first, watched(ensemble[1].model) as second:
        run = method.stream(**request(prompt), max_new_tokens=limit)
        pieces = [piece.text for piece in run]
    return Recording(run, pieces, [first, second], limit, length)
