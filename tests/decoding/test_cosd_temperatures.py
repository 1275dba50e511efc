"""CoSD at temperatures at which rounding is all that is left of the logits."""

import pytest

from ensemble_decoding import CoSD
from tests.decoding.members_for_tests import PROMPT, member
from tests.decoding.tokenizers_for_tests import byte_level_tokenizer, sentencepiece_tokenizer
from tests.decoding.well_read_models import well_read

DRAFT = well_read(member("llama", byte_level_tokenizer(), seed=5))
ASSISTANT = well_read(member("gemma3", sentencepiece_tokenizer(), seed=15))


@pytest.mark.parametrize("temperature", [1e-37, 1e-3, 1e37])
@pytest.mark.parametrize("first", [100, 150, 300, 450])
def test_the_ends_of_the_text_have_no_more_than_all_of_the_probability(temperature, first):
    method = CoSD(DRAFT, ASSISTANT, alpha=0.0, temperatures=[temperature] * 2)
    ends = [list(range(first - 100, first)), [70, 80]]
    output = method.generate(PROMPT, max_new_tokens=30, eos_token_id=ends)
    decisions = [decision for round_ in output.rounds for decision in round_.decisions]
    assert any(decision.chosen_end for decision in decisions)
    assert all(p is None or 0 <= p <= 1 for d in decisions for p in d.probabilities)
