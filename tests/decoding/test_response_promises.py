"""What SpecEM promises of a response, over random ensembles: text, ids, caches, passes."""

import codecs
import itertools

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from ensemble_decoding import SpecEM
from ensemble_decoding.attention_switch import segment_attention_active
from tests.decoding.models_for_tests import WINDOW
from tests.decoding.specem_strategies import (
    ARCHITECTURES,
    LIMITS,
    METHODS,
    PLAIN_PROMPTS,
    TOKENIZERS,
    Case,
    Spec,
    cases,
    member_of,
    model_of,
    property_settings,
)
from tests.decoding.test_specem import assert_cache_is_a_fresh_prefill, own_greedy

TOKENIZER_NAMES = st.sampled_from(sorted(TOKENIZERS))
# Log-probabilities come in float32, of logits that are some tens at most.
STATISTICS = 2e-5


@property_settings(30)
@given(cases())
def test_after_every_commit_each_cache_is_a_fresh_prefill(case):
    run = case.stream()
    for _ in run:
        for spec, context in zip(case.specs, run.contexts, strict=True):
            if not context.retired:
                assert_cache_is_a_fresh_prefill(context, spec.tolerance)


@property_settings(50)
@given(cases())
def test_text_ids_and_end_are_what_was_asked_for(case):
    run = case.stream()
    pieces = []
    for piece in run:
        pieces.append(piece.text)
        assert_ids_spell_the_text(case, run, piece.round)
    output = run.output
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    assert "".join(pieces) == output.text == decoder.decode(run.data)
    assert output.pending == decoder.getstate()[0]
    assert b"".join(r.data for r in output.rounds) == run.data
    assert_it_ends_where_the_options_say(case, output, run.data)
    for spec, context in zip(case.specs, run.contexts, strict=True):
        beginning = TOKENIZERS[spec.tokenizer].bos_token_id
        if beginning is not None:
            assert context.ids[0] == beginning
            assert context.ids.count(beginning) == 1


def assert_ids_spell_the_text(case, run, round_):
    winner = round_.candidates[round_.winner]
    for j, (spec, context) in enumerate(zip(case.specs, run.contexts, strict=True)):
        if context.retired and j:
            continue
        ids = context.response_ids
        if run.finish_reason is None:
            assert spec.spell(ids) == run.data
            continue
        # A cut inside a token of this member: the whole tokens before it stay.
        assert run.data.startswith(spec.spell(ids))
        left = winner.token_ids[j][round_.committed_tokens[j] :][:1]
        if left and left[0] not in spec.end_ids():
            assert len(spec.spell(ids + left)) > len(run.data)


def assert_it_ends_where_the_options_say(case, output, data):
    limit, last = case.options["max_new_tokens"], output.rounds[-1]
    assert len(output.token_ids[0]) <= limit
    assert 1 <= len(output.rounds) <= limit
    stops = [stop.encode() for stop in case.options.get("stop_strings", ())]
    found = [data.find(stop) + len(stop) for stop in stops if stop in data]
    assert all(end == len(data) for end in found)
    winner = last.candidates[last.winner]
    whole = len(winner.token_ids[0]) == last.committed_tokens[0]
    if found or (winner.ended and whole):
        assert output.finish_reason == "stop"
        return
    assert output.finish_reason == "length"
    if case.one_tokenizer:
        assert len(output.token_ids[0]) == limit


@property_settings(20)
@given(cases(), st.integers(0, 100), st.integers(1, 6))
def test_a_stop_string_is_found_wherever_the_rounds_cut_it(case, place, length):
    case.options.pop("stop_strings", None)
    text = case.output().text
    stop = text[place % (len(text) or 1) :][:length]
    # Where the text shows this, its bytes are other ones.
    assume(stop and "\ufffd" not in stop)
    output = case.output(stop_strings=stop)
    assert output.text == text[: text.index(stop) + len(stop)]
    assert (output.finish_reason, output.pending) == ("stop", b"")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@property_settings(4)
@given(
    TOKENIZER_NAMES,
    st.booleans(),
    st.integers(1, 4),
    st.integers(0, 2),
    METHODS,
    st.sampled_from(PLAIN_PROMPTS),
    LIMITS,
)
def test_a_model_with_itself_is_its_own_generate(
    architecture, tokenizer, ends, twins, verifiers, method, prompt, limit
):
    one = member_of(Spec(architecture, tokenizer, ends))
    ensemble = SpecEM([one] * twins, verifiers=[one] * verifiers, **method)
    output = ensemble.generate(prompt, max_new_tokens=limit)
    expected = own_greedy(one, prompt, limit)
    assert output.token_ids == [expected] * (twins + verifiers)
    ended = expected[-1] in one.end_of_text_ids
    assert output.finish_reason == ("stop" if ended else "length")


def raw_judgement(spec, prefix, candidate):
    """Log-probabilities and logits from an ordinary pass over prefix and candidate, no cache."""
    own = model_of(spec.architecture, copy=True)
    with torch.no_grad():
        logits = own(torch.tensor([prefix + candidate]), use_cache=False).logits[0]
    # The columns behind the tokenizer's ids are padding.
    rows = logits[len(prefix) - 1 : -1, : len(TOKENIZERS[spec.tokenizer])]
    ends = spec.end_ids()
    given_logits = [
        row[ends].logsumexp(0) if token in ends else row[token]
        for row, token in zip(rows, candidate, strict=True)
    ]
    total = rows.logsumexp(1)
    return [float(g - t) for g, t in zip(given_logits, total, strict=True)], [
        float(g) for g in given_logits
    ]


@st.composite
def packs(draw, spec):
    """Candidates of text ids, some with an end of text; always one of 0, 1 and 7 tokens."""
    lengths = [0, 1, 7, *draw(st.lists(st.integers(0, 9), max_size=3))]
    ends = spec.end_ids()
    text = [i for i in range(3, len(TOKENIZERS[spec.tokenizer])) if i not in ends]
    pack = []
    for length in draw(st.permutations(lengths)):
        ids = draw(st.lists(st.sampled_from(text), min_size=length, max_size=length))
        if ids and draw(st.integers(0, 3)) == 0:
            ids[-1] = draw(st.sampled_from(ends))
        pack.append(ids)
    return pack


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@property_settings(4)
@given(
    TOKENIZER_NAMES,
    st.booleans(),
    st.sampled_from([1, 4, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW]),
    st.data(),
)
def test_a_packed_pass_is_one_pass_for_each_candidate(
    architecture, tokenizer, ends, prefix_length, data
):
    spec = Spec(architecture, tokenizer, ends)
    one = member_of(spec)
    tolerance = {"abs": max(STATISTICS, spec.tolerance), "rel": 0}
    # Fixed ids are as good as drawn ones here.
    prefix = list(itertools.islice(itertools.cycle(range(5, 390, 7)), prefix_length))
    context = one.new_context()
    with segment_attention_active(one.model):
        context.prefill(prefix)
        for _ in range(2):
            pack = data.draw(packs(spec))
            before, alone = context.snapshot(), []
            for candidate in pack:
                alone += context.verify([candidate])
                context.restore(before)
            together = context.verify(pack)
            for judged, by_itself, candidate in zip(together, alone, pack, strict=True):
                expected = raw_judgement(spec, context.ids, candidate)
                for a, b, c in zip(judged, by_itself, expected, strict=True):
                    assert a == pytest.approx(b, **tolerance)
                    assert a == pytest.approx(c, **tolerance)
            winner = data.draw(st.integers(0, len(pack) - 1))
            context.commit(winner, len(pack[winner]), pack[winner])
            assert_cache_is_a_fresh_prefill(context, spec.tolerance)


@property_settings(25)
@given(cases(min_size=2), st.data())
def test_the_order_of_the_members_only_names_them(case, data):
    order = data.draw(st.permutations(range(len(case.drafters))))
    moved = Case(
        [case.drafters[i] for i in order], case.verifiers, case.method, case.prompt, case.options
    )
    # The limit counts tokens of the member given first, so it must not bind.
    runs = [c.stream(max_new_tokens=1000) for c in (case, moved)]
    places = [*order, *range(len(order), len(case.specs))]
    for _, x, y in zip(range(5), *runs, strict=False):
        assert x.round.data == y.round.data
        assert y.round.weights == pytest.approx([x.round.weights[i] for i in places], rel=1e-9)
        drafts = [
            {(c.data, c.ended): {names[j] for j in c.drafted_by} for c in piece.round.candidates}
            for piece, names in ((x, range(len(places))), (y, places))
        ]
        assert drafts[0] == drafts[1]
    assert runs[0].finish_reason == runs[1].finish_reason
    for run in runs:
        run.close()
