"""Tiny random models of both architectures; weights depend on the seed alone."""

from __future__ import annotations

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

WINDOW = 16


def tiny_llama(vocab_size: int, *, seed: int = 0, dtype: torch.dtype = torch.float64, **changes):
    """Three layers, two query heads for each key head."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        **_no_special_ids(),
        **changes,
    )
    return _random(LlamaForCausalLM, config, seed, dtype)


def tiny_gemma3(vocab_size: int, *, seed: int = 0, dtype: torch.dtype = torch.float64, **changes):
    """Two sliding layers with a window of `WINDOW`, then a full one; four query heads on one key
    head."""
    config = Gemma3TextConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=16,
        query_pre_attn_scalar=16,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        sliding_window=WINDOW,
        max_position_embeddings=2048,
        **_no_special_ids(),
        **changes,
    )
    return _random(Gemma3ForCausalLM, config, seed, dtype)


ARCHITECTURES = {"llama": tiny_llama, "gemma3": tiny_gemma3}


def _no_special_ids():
    return {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def _random(model_class, config, seed, dtype):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config)
        # The default initialisation is so small that all logits are nearly equal and sums of
        # rounding errors decide; larger weights give every token its own distribution.
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.data.normal_(0, 0.25)
    return model.to(dtype).eval()
