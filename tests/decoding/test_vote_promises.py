"""What SpecEM promises of its rounds, over random ensembles: candidates, weights, votes, exits."""

import math
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ensemble_decoding import SpecEM
from tests.decoding.members_for_tests import PROMPT
from tests.decoding.scripted_model import saying, scripted
from tests.decoding.specem_strategies import (
    ARCHITECTURES,
    METHODS,
    TOKENIZERS,
    Case,
    Spec,
    cases,
    member_of,
    property_settings,
)
from tests.decoding.test_trace import after_exits, close, shares_of_one_judge, weights_after
from tests.decoding.tokenizers_for_tests import (
    GERMAN,
    byte_level_tokenizer,
    sentencepiece_tokenizer,
)

BYTES = byte_level_tokenizer()
BYTES_OF_GERMAN = byte_level_tokenizer(GERMAN, 300)
PIECES = sentencepiece_tokenizer(bos=False)


def drafters_of(round_):
    return {j: c for c, one in enumerate(round_.candidates) for j in one.drafted_by}


@property_settings(40)
@given(cases())
def test_the_trace_alone_gives_shares_weights_winners_and_ids(case):
    output = case.output()
    trace, members = output.rounds, range(len(case.specs))
    weights, active = [1 / len(members)] * len(members), list(members)
    ids = [[] for _ in members]
    for number, round_ in enumerate(trace, 1):
        candidates = round_.candidates
        share = [[c.shares[j] for c in candidates] for j in members]
        for j in members:
            if j not in active:
                assert share[j] == [0.0] * len(candidates)
            elif trace.options["score"] == "logprob":
                judged = [c.log_likelihoods[j] for c in candidates]
                assert share[j] == close(shares_of_one_judge(judged))
        if trace.options["feedback"] is not None:
            weights = weights_after(weights, number, round_, share, trace.options)
        assert round_.weights == close(weights)
        # The correctly rounded sum has no order, so that ties are the same ties.
        scores = [
            math.fsum(round_.weights[j] * share[j][c] for j in active)
            for c in range(len(candidates))
        ]
        assert [c.score for c in candidates] == scores
        assert round_.winner == scores.index(max(scores))
        winner = candidates[round_.winner]
        for j, count in enumerate(round_.committed_tokens):
            ids[j] += winner.token_ids[j][:count]
        weights, active = after_exits(weights, active, trace.options)
    assert ids == output.token_ids


@property_settings(25)
@given(cases(), st.data())
def test_equal_drafts_are_one_candidate_of_all_who_wrote_it(case, data):
    twin = data.draw(st.sampled_from(case.drafters))
    case.drafters.insert(data.draw(st.integers(0, len(case.drafters))), twin)
    twins = {j for j, spec in enumerate(case.drafters) if spec == twin}
    for round_ in case.output().rounds:
        assert len({(c.data, c.ended) for c in round_.candidates}) == len(round_.candidates)
        drafters = [j for c in round_.candidates for j in c.drafted_by]
        assert len(drafters) == len(set(drafters))
        firsts = [c.drafted_by[0] for c in round_.candidates]
        assert firsts == sorted(firsts)
        # Twins have one weight, so they also leave together.
        wrote = [twins & set(c.drafted_by) for c in round_.candidates]
        assert [found for found in wrote if found] in ([twins], [])


@property_settings(20)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([BYTES, BYTES, PIECES, BYTES_OF_GERMAN]),
            st.sampled_from([" the", " the answer"]),
        ),
        min_size=2,
        max_size=4,
    ),
    st.integers(1, 9),
)
def test_drafts_are_one_candidate_if_bytes_and_end_are_equal(scripts, length):
    """Tokenizers need different numbers of tokens, so that some have said the end and some not."""
    members, expected = [], {}
    for j, (kind, text) in enumerate(scripts):
        members.append(scripted(kind, saying(kind, text), PROMPT, str(j)))
        ids = kind(text, add_special_tokens=False)["input_ids"]
        spelled = "".join(kind.convert_ids_to_tokens(ids[:length]))
        data = spelled.replace("Ġ", " ").replace("▁", " ").encode()
        expected.setdefault((data, length > len(ids)), []).append(j)
    output = SpecEM(members, segment_length=length).generate(PROMPT)
    drafted = {(c.data, c.ended): c.drafted_by for c in output.rounds[0].candidates}
    assert list(drafted.items()) == list(expected.items())


@property_settings(40)
@given(cases(exit_threshold=st.none(), learning_rate=st.sampled_from([0.0, 1.0, 6.0, 1e4, 1e300])))
def test_verifiers_keep_their_weight_and_drafters_their_joint_one(case):
    count, drafters = len(case.specs), len(case.drafters)
    for round_ in case.output().rounds:
        assert round_.weights[drafters:] == [1 / count] * (count - drafters)
        assert sum(round_.weights[:drafters]) == pytest.approx(drafters / count, rel=1e-12)
        assert sum(round_.weights) == pytest.approx(1, rel=1e-12)
        assert min(round_.weights) >= 0


@property_settings(20)
@given(
    st.lists(st.tuples(st.floats(1, 9), st.floats(1e-6, 1e-3)), min_size=2, max_size=4),
    st.sampled_from(["wins", "score"]),
)
def test_logits_that_nearly_cancel_out_leave_weights(heights, kind):
    """Divided by their sum, they become shares of thousands with either sign."""
    ids = [BYTES.convert_tokens_to_ids(letter) for letter in "abcd"[: len(heights)]]
    members = []
    for mine, (height, difference) in zip(ids, heights, strict=True):
        one = scripted(BYTES, [{mine: 0.9}], PROMPT, str(mine))
        one.model.rows[0, ids] = (difference - height) / (len(ids) - 1)
        one.model.rows[0, mine] = height
        members.append(one)
    output = SpecEM(members, segment_length=1, score="logit", feedback=kind).generate(
        PROMPT, max_new_tokens=3
    )
    for round_ in output.rounds:
        assert sum(round_.weights) == pytest.approx(1, rel=1e-12)
        assert min(round_.weights) >= 0


def counting_passes(stack, members):
    """How often each member's model is called from here on, in a list that goes on counting."""
    passes = [0] * len(members)

    def counter(j):
        def count(*_):
            passes[j] += 1

        return count

    for j, one in enumerate(members):
        stack.callback(one.model.register_forward_pre_hook(counter(j)).remove)
    return passes


@property_settings(25)
@given(
    st.lists(st.sampled_from(ARCHITECTURES), min_size=2, max_size=6, unique=True),
    st.data(),
    st.integers(0, 2),
    st.sampled_from([0.3, 0.7, 1.0, 1.1]),
    st.integers(10, 40),
)
def test_who_left_computes_nothing_and_weighs_nothing(names, data, verifiers, threshold, limit):
    specs = [Spec(name, data.draw(st.sampled_from(sorted(TOKENIZERS)))) for name in names]
    drafters = max(1, len(specs) - verifiers)
    method = data.draw(METHODS) | {"exit_threshold": threshold, "learning_rate": 6.0}
    case = Case(specs[:drafters], specs[drafters:], method, PROMPT, {"max_new_tokens": limit})
    left, ids_then, active = {}, {}, list(range(len(specs)))
    with ExitStack() as stack:
        passes = counting_passes(stack, [member_of(spec) for spec in specs])
        run = case.stream()
        for piece in run:
            round_ = piece.round
            assert sum(round_.weights) == pytest.approx(1, rel=1e-12)
            for j in left:
                assert round_.weights[j] == 0.0
                assert j not in drafters_of(round_)
                assert {c.log_likelihoods[j] for c in round_.candidates} == {None}
            _, active = after_exits(round_.weights, active, run.trace.options)
            for j in set(range(len(specs))) - set(active) - set(left):
                left[j], ids_then[j] = passes[j], run.contexts[j].response_ids
    output = run.output
    assert {j: passes[j] for j in left} == left
    for j in set(left) - {0}:
        assert output.token_ids[j] == ids_then[j]
    for j in left:
        assert output.usage[j].cache_bytes > 0
    # The limit goes on counting the first member's tokens.
    assert specs[0].spell(output.token_ids[0]) == run.data
    assert len(output.token_ids[0]) <= limit


@property_settings(20)
@given(
    st.lists(st.sampled_from("abc"), min_size=2, max_size=5),
    st.sampled_from(["wins", "score", None]),
)
def test_most_votes_win_and_a_tie_goes_to_the_draft_of_the_member_given_first(letters, kind):
    """Each member holds all but its own letter for impossible, so that votes are counted."""
    members = [
        scripted(BYTES, [{BYTES.convert_tokens_to_ids(letter): 1.0}], PROMPT, letter)
        for letter in letters
    ]
    output = SpecEM(members, segment_length=1, feedback=kind).generate(PROMPT, max_new_tokens=1)
    # The first of several maxima, in the order in which they were given.
    assert output.text == max(dict.fromkeys(letters), key=letters.count)
    (round_,) = output.rounds
    votes = sorted(map(letters.count, set(letters)))
    tied = len(votes) > 1 and votes[-1] == votes[-2]
    assert ("shared" in round_.reason) == tied
