"""How a run of SAFE ends, over random ensembles of models that follow a script."""

from hypothesis import given
from hypothesis import strategies as st

from ensemble_decoding import SAFE
from tests.decoding.members_for_tests import PROMPT
from tests.decoding.scripted_model import saying, scripted
from tests.decoding.specem_strategies import LIMITS, property_settings
from tests.decoding.tokenizers_for_tests import byte_level_tokenizer, sentencepiece_tokenizer

BYTES = byte_level_tokenizer()
# More often than not members share a tokenizer.
KINDS = [BYTES, BYTES, sentencepiece_tokenizer(bos=False)]
TEXT = " the quick brown 😀 fox jumps over the lazy dog"
# More tokens than any text here has.
AMPLE = 200
METHODS = st.fixed_dictionaries(
    {
        "ensemble_when": st.sampled_from(["safe", "always", "never"]),
        "draft_length": st.integers(1, 9),
        "sharpen": st.sampled_from(["prefix", "geometric", None]),
        "alignment": st.sampled_from(["auto", "union", "top_k"]),
    }
)


def sayers(kinds, text, probability=0.9):
    return [
        scripted(KINDS[kind], saying(KINDS[kind], text, probability), PROMPT, str(j))
        for j, kind in enumerate(kinds)
    ]


@property_settings(15)
@given(
    st.lists(st.sampled_from(range(len(KINDS))), min_size=2, max_size=4),
    st.sampled_from(["", " the", TEXT]),
    METHODS,
)
def test_when_all_end_at_once_the_run_stops_and_no_pass_follows(kinds, text, method):
    members = sayers(kinds, text)
    run = SAFE(members[0], members[1:], **method).stream(PROMPT, max_new_tokens=AMPLE)
    for _ in run:
        fed = [len(one.model.fed) for one in members]
    assert next(run, None) is None
    assert [len(one.model.fed) for one in members] == fed
    assert (run.output.text, run.output.finish_reason) == (text, "stop")
    for one, ids in zip(members, run.output.token_ids, strict=True):
        assert one.table.spell(ids[:-1]) == text.encode()
        assert one.is_end_of_text(ids[-1])
        # What ends the text is not fed.
        assert not any(set(tokens) & set(one.end_of_text_ids) for tokens in one.model.fed)


@property_settings(15)
@given(
    st.integers(2, 4),
    st.sampled_from(range(len(KINDS))),
    st.sampled_from(range(len(KINDS))),
    METHODS,
    st.one_of(st.just(AMPLE), LIMITS),
)
def test_a_verifier_that_always_ends_keeps_no_run_from_its_end(count, shared, kind, method, limit):
    quitter = scripted(KINDS[kind], [{KINDS[kind].eos_token_id: 0.9}], PROMPT, "quitter")
    members = [*sayers([shared] * count, TEXT, 0.95), quitter]
    output = SAFE(members[0], members[1:], **method).generate(PROMPT, max_new_tokens=limit)
    assert TEXT.startswith(output.text)
    assert len(output.token_ids[0]) <= limit
    if limit == AMPLE:
        # Outvoted at each token, it costs the others nothing of their text.
        assert (output.text, output.finish_reason) == (TEXT, "stop")


@property_settings(10)
@given(st.integers(1, 3), METHODS, st.integers(1, 9))
def test_a_drafter_that_always_ends_is_outvoted_or_ends(count, method, limit):
    quitter = scripted(BYTES, [{BYTES.eos_token_id: 0.55}], PROMPT, "quitter")
    members = [quitter, *sayers([0] * count, TEXT, 0.95)]
    output = SAFE(members[0], members[1:], **method).generate(PROMPT, max_new_tokens=limit)
    assert len(output.rounds) <= limit
    assert TEXT.startswith(output.text)
    if method["ensemble_when"] == "never":
        assert (output.text, output.finish_reason) == ("", "stop")
