"""Tiny models as the end-to-end benchmarks load them."""

import torch

from benchmarks.end_to_end.models import LoadedModel
from tests.decoding.members_for_tests import member
from tests.decoding.tokenizers_for_tests import byte_level_tokenizer, sentencepiece_tokenizer
from tests.decoding.well_read_models import well_read


def tiny_models():
    """As `load` gives them: two families, and the first once more."""
    members = [
        member("llama", byte_level_tokenizer(), seed=5, dtype=torch.float32),
        member("gemma3", sentencepiece_tokenizer(), seed=15, dtype=torch.float32),
        member("llama", byte_level_tokenizer(), seed=6, dtype=torch.float32),
    ]
    for one in members:
        one.model.generation_config.eos_token_id = one.end_of_text_ids[0]
        one.model.generation_config.pad_token_id = one.end_of_text_ids[0]
        well_read(one, 0.9)  # else they write what is no text, which naive peers do not take
    return [LoadedModel(m.name, m.model, m.tokenizer, m) for m in members]
