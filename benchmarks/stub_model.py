"""A model that costs nothing, to measure the loop around models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from ensemble_decoding import Member
from ensemble_decoding.usage import OperatorClock

# Two drafts of ten tokens, encoded by a tokenizer that knows none of them, stay below it.
_ROWS = 128


class StubModel(LlamaForCausalLM):
    """Computes no layer: it always foretells `token`, and appends to the cache as a model does."""

    def __init__(self, vocab_size: int, token: int) -> None:
        config = LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            max_position_embeddings=1 << 20,
            bos_token_id=None,
            eos_token_id=None,
            tie_word_embeddings=True,
        )
        super().__init__(config)
        # Memory of its own for each row, as a model's logits have, written once.
        row = torch.linspace(-4, 4, vocab_size)[torch.randperm(vocab_size)]
        row[token] = 8.0
        self._logits = row.repeat(_ROWS, 1)[None]
        self._key = torch.zeros(1, 1, 1, 8)

    def forward(
        self,
        input_ids: Any = None,
        past_key_values: Any = None,
        logits_to_keep: int = 0,
        operator_clock: OperatorClock | None = None,
        **keywords: Any,
    ) -> Any:
        if operator_clock is not None:
            operator_clock.add("segment_attention", 0.0)  # its one layer, which needs none
        count = input_ids.shape[1]
        key = self._key.expand(1, 1, count, 8)
        past_key_values.update(key, key, 0)
        return SimpleNamespace(logits=self._logits[:, : logits_to_keep or count])


def stub_member(tokenizer: PreTrainedTokenizerBase, word: str, name: str) -> Member:
    """A member that writes `word` again and again."""
    token = tokenizer(word, add_special_tokens=False)["input_ids"][-1]
    return Member(StubModel(len(tokenizer), token), tokenizer, name=name)
