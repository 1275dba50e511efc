"""What SpecEM promises of how a run ends, over random ensembles of models that follow a script."""

from hypothesis import given
from hypothesis import strategies as st

from ensemble_decoding import SpecEM
from tests.decoding.members_for_tests import PROMPT
from tests.decoding.scripted_model import saying, scripted
from tests.decoding.specem_strategies import LIMITS, METHODS, property_settings
from tests.decoding.tokenizers_for_tests import byte_level_tokenizer, sentencepiece_tokenizer

BYTES = byte_level_tokenizer()
# More often than not members share a tokenizer.
KINDS = [BYTES, BYTES, sentencepiece_tokenizer(bos=False)]
# More tokens than any text here has.
AMPLE = 200


@property_settings(15)
@given(
    st.lists(st.sampled_from(range(len(KINDS))), min_size=1, max_size=4),
    st.sampled_from(["", " the", " quick brown 😀"]),
    METHODS,
)
def test_when_all_end_at_once_the_run_stops_and_no_pass_follows(kinds, text, method):
    members = [
        scripted(KINDS[kind], saying(KINDS[kind], text), PROMPT, str(j))
        for j, kind in enumerate(kinds)
    ]
    run = SpecEM(members, **method).stream(PROMPT, max_new_tokens=AMPLE)
    for _ in run:
        fed = [len(one.model.fed) for one in members]
    assert next(run, None) is None
    assert [len(one.model.fed) for one in members] == fed
    assert (run.output.text, run.output.finish_reason) == (text, "stop")
    if not text:
        assert len(run.output.rounds) == 1
        # Behind the prompt one packed pass over the end of text.
        ends = [[KINDS[kind].eos_token_id] for kind in kinds]
        assert [one.model.fed[-1] for one in members] == ends
        assert [usage.forward_passes for usage in run.output.usage] == [2] * len(members)


@property_settings(20)
@given(
    st.lists(st.sampled_from(range(len(KINDS))), min_size=1, max_size=4),
    st.data(),
    st.integers(1, 9),
    st.one_of(st.just(AMPLE), LIMITS),
)
def test_a_member_that_always_ends_first_keeps_no_run_from_its_end(kinds, data, length, limit):
    text = " the quick brown fox jumps over the lazy dog"
    members = [
        scripted(KINDS[kind], saying(KINDS[kind], text, 0.95), PROMPT, str(j))
        for j, kind in enumerate(kinds)
    ]
    place = data.draw(st.integers(0, len(members)))
    kind = data.draw(st.sampled_from(KINDS))
    members.insert(place, scripted(kind, [{kind.eos_token_id: 0.9}], PROMPT, "quitter"))
    output = SpecEM(members, segment_length=length).generate(PROMPT, max_new_tokens=limit)
    assert len(output.rounds) <= limit
    assert text.startswith(output.text)
    if len(members) > 2 and limit == AMPLE:
        # Outvoted in each round, it costs the others nothing of their text.
        assert (output.text, output.finish_reason) == (text, "stop")
    # Its draft is one end of text, for which it needs no decoding step.
    assert output.usage[place].drafted_tokens == 0


@property_settings(10)
@given(st.integers(1, 20), st.integers(1, 9))
def test_a_first_member_without_a_token_for_the_text_counts_its_rounds(limit, length):
    """Its ids never grow, so that they alone would let the run go on for ever."""
    holes = byte_level_tokenizer(missing_bytes=b"q")
    letters = [{BYTES.convert_tokens_to_ids("q"): 0.99}]
    members = [
        scripted(holes, [{holes.convert_tokens_to_ids("a"): 0.99}], PROMPT, "first"),
        *(scripted(BYTES, letters, PROMPT, name) for name in ("second", "third")),
    ]
    run = SpecEM(members, segment_length=length).stream(PROMPT, max_new_tokens=limit)
    rounds = list(zip(range(limit + 1), run, strict=False))
    assert len(rounds) == limit
    output = run.output
    assert (output.text, output.finish_reason) == ("q" * length * limit, "length")
    assert output.token_ids[0] == []
    assert output.unspelled[0] == output.text.encode()
