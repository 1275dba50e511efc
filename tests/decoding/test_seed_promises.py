"""What SpecEM promises of seeds: sampling depends on seed and position, not on what was drafted."""

import random

from hypothesis import given
from hypothesis import strategies as st

from ensemble_decoding import SpecEM
from tests.decoding.members_for_tests import PROMPT
from tests.decoding.scripted_model import scripted
from tests.decoding.specem_strategies import (
    LIMITS,
    METHODS,
    PROMPTS,
    SAMPLING,
    SPECS,
    Case,
    cases,
    property_settings,
)
from tests.decoding.tokenizers_for_tests import byte_level_tokenizer

BYTES = byte_level_tokenizer()


@property_settings(20)
@given(cases(), SAMPLING, st.sampled_from([None, 1.3]))
def test_the_same_seed_gives_the_same_run(case, sampling, penalty):
    first, second = (case.output(**sampling, repetition_penalty=penalty) for _ in range(2))
    assert second.token_ids == first.token_ids
    for x, y in zip(first.rounds, second.rounds, strict=True):
        assert (x.candidates, x.weights, x.winner) == (y.candidates, y.weights, y.winner)


@property_settings(10)
@given(cases())
def test_a_seed_that_was_not_given_is_noted(case):
    case.options |= {"do_sample": True, "seed": None}
    output = case.output()
    assert case.output(seed=output.rounds.options["seed"]).token_ids == output.token_ids


@property_settings(30)
@given(st.integers(2, 4), SAMPLING, st.integers(1, 9), st.integers(0, 1000))
def test_the_number_for_a_position_is_that_of_the_member_alone(count, sampling, length, seed):
    """Models that look at nothing but the position: whoever won before, a member's draft is what
    it writes at that place by itself."""
    words = [
        BYTES(f" {w}", add_special_tokens=False)["input_ids"][0] for w in ("the", "model", "a")
    ]
    chance = random.Random(seed)
    members = []
    for name in range(count):
        script = []
        for _ in range(40):
            cut = sorted((chance.uniform(0.05, 0.95), chance.uniform(0.05, 0.95)))
            parts = (cut[0], cut[1] - cut[0], 1 - cut[1])
            script.append(dict(zip(words, parts, strict=True)))
        members.append(scripted(BYTES, script, PROMPT, str(name)))
    options = {**sampling, "max_new_tokens": 30}
    alone = [SpecEM([one]).generate(PROMPT, **options).token_ids[0] for one in members]
    written = 0
    for round_ in SpecEM(members, segment_length=length).generate(PROMPT, **options).rounds:
        for candidate in round_.candidates:
            for j in candidate.drafted_by:
                draft = candidate.token_ids[j]
                assert draft == alone[j][written : written + len(draft)]
        written += round_.committed_tokens[0]
    assert written == 30


@property_settings(30)
@given(
    SPECS,
    st.integers(1, 3),
    METHODS,
    METHODS,
    st.sampled_from(PROMPTS),
    st.one_of(st.just({}), SAMPLING),
    LIMITS,
)
def test_how_a_model_with_itself_is_cut_into_rounds_changes_nothing(
    spec, twins, one, other, prompt, sampling, limit
):
    """Nor do the drafts that are cut back or thrown away: the numbers follow the position."""
    options = {**sampling, "max_new_tokens": limit}
    alone = Case([spec], [], one, prompt, options).output()
    together = Case([spec] * twins, [spec], other, prompt, options).output()
    assert together.token_ids == alone.token_ids * (twins + 1)
    assert together.text == alone.text
