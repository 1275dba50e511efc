"""A reader whose context fills up: how much is drafted must not decide how much is written."""

import pytest

from ensemble_decoding import SAFE, CoSD, Member
from tests.decoding.members_for_tests import PROMPT, member
from tests.decoding.well_read_models import well_read

METHODS = {
    "safe": lambda drafter, reader, length: SAFE(drafter, [reader], draft_length=length),
    "cosd": lambda drafter, reader, length: CoSD(drafter, reader, draft_length=length),
}


@pytest.mark.parametrize("room", [1, 2, 9])
@pytest.mark.parametrize("method", METHODS)
def test_a_draft_is_no_longer_than_its_readers_have_room_for(method, room):
    drafter, small = well_read(member(seed=5)), member(seed=6)
    small.model.config.max_position_embeddings = len(small.encode_prompt(PROMPT)) + room
    reader = well_read(Member(small.model, small.tokenizer, name="small"))
    outputs = [
        METHODS[method](drafter, reader, length).generate(PROMPT, max_new_tokens=40)
        for length in (1, 4, 50)
    ]
    assert [output.token_ids for output in outputs] == [outputs[0].token_ids] * 3
    assert len(outputs[0].token_ids[0]) == room
    assert {(output.finish_reason, output.full_context) for output in outputs} == {
        ("length", "small")
    }
