"""Members made of the tiny models and tokenizers."""

from __future__ import annotations

import torch

from ensemble_decoding import Member
from tests.decoding.models_for_tests import ARCHITECTURES
from tests.decoding.tokenizers_for_tests import (
    GERMAN,
    byte_level_tokenizer,
    permuted_tokenizer,
    sentencepiece_tokenizer,
)

PROMPT = "The quick brown fox "


def member(architecture="llama", tokenizer=None, *, seed=0, name=None, **changes) -> Member:
    """A member whose model has five columns more than its tokenizer has ids."""
    tokenizer = tokenizer or byte_level_tokenizer()
    model = ARCHITECTURES[architecture](len(tokenizer) + 5, seed=seed, **changes)
    return Member(model, tokenizer, name=name or f"{architecture}-{seed}")


def three_families(dtype=torch.float64) -> list[Member]:
    """Members whose tokenizers differ in kind: byte-level, SentencePiece, other ids."""
    return [
        member("llama", byte_level_tokenizer(), seed=5, dtype=dtype),
        member("gemma3", sentencepiece_tokenizer(), seed=15, dtype=dtype),
        member("llama", permuted_tokenizer(byte_level_tokenizer(GERMAN)), seed=25, dtype=dtype),
    ]


def saved(members, folder) -> list[str]:
    """Writes each member to a folder of its name; returns these."""
    folders = []
    for one in members:
        one.model.save_pretrained(folder / one.name)
        one.tokenizer.save_pretrained(folder / one.name)
        folders.append(str(folder / one.name))
    return folders


def pass_counter(model):
    """Counts the tokens that go into a model; read `.tokens`."""

    class Counter:
        tokens = 0

    def count(module, arguments, keywords):
        ids = keywords["input_ids"] if "input_ids" in keywords else arguments[0]
        Counter.tokens += ids.numel()

    model.register_forward_pre_hook(count, with_kwargs=True)
    return Counter
