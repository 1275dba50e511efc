"""A model that says what it is told to, to put a run into a chosen situation."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ensemble_decoding import Member


class ScriptedModel(LlamaForCausalLM):
    """After `start + i` tokens it gives `script[i]`: a dict from ids to probabilities; what is left
    goes to all other ids alike. Behind the script it repeats its last entry."""

    def __init__(self, vocab_size, script, start):
        super().__init__(
            LlamaConfig(
                vocab_size=vocab_size,
                hidden_size=8,
                intermediate_size=8,
                num_hidden_layers=1,
                num_attention_heads=1,
                max_position_embeddings=4096,
                bos_token_id=None,
                eos_token_id=None,
            )
        )
        rows = []
        for entry in script:
            rest = (1 - sum(entry.values())) / (vocab_size - len(entry))
            row = torch.full((vocab_size,), rest, dtype=torch.float64)
            for token, probability in entry.items():
                row[token] = probability
            rows.append(row.log())
        self.rows, self.start = torch.stack(rows), start
        self.fed = []

    def forward(
        self,
        input_ids=None,
        past_key_values=None,
        position_ids=None,
        logits_to_keep=0,
        operator_clock=None,
        **_,
    ):
        if operator_clock is not None:
            operator_clock.add("segment_attention", 0.0)  # its one layer, which needs none
        count = input_ids.shape[1]
        self.fed.append(input_ids[0].tolist())
        if past_key_values is not None:
            keys = torch.zeros(1, 1, count, 8)
            past_key_values.update(keys, keys, 0)
        positions = torch.arange(count) if position_ids is None else position_ids[0]
        entries = (positions + 1 - self.start).clamp(0, len(self.rows) - 1)
        return SimpleNamespace(logits=self.rows[entries][None, -logits_to_keep:])


def scripted(tokenizer, script, prompt, name):
    """A member that follows the script after the prompt."""
    model = ScriptedModel(len(tokenizer), script, len(tokenizer(prompt)["input_ids"]))
    return Member(model, tokenizer, name=name)


def saying(tokenizer, text, probability=0.9):
    """The script that writes a text in the tokenizer's own ids, then ends it."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return [{token: probability} for token in (*ids, tokenizer.eos_token_id)]
