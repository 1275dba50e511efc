"""Shares, feedback and vote against tables worked out by hand, and their laws."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ensemble_decoding.drafts import Draft
from ensemble_decoding.specem_run import distinct_candidates
from ensemble_decoding.specem_vote import feedback, vote, vote_shares


def rounds(shares_by_round, weights=None, learning_rate=1.0):
    count = len(shares_by_round[0])
    weights = weights or [1 / count] * count
    for t, shares in enumerate(shares_by_round, 1):
        step = learning_rate * math.sqrt(1 / count) / t
        weights = feedback(weights, shares, list(range(count)), step)
        yield weights


def test_two_members_three_rounds():
    # One judge each: member i wins if the other one gives i's draft at least its own's share.
    table = [
        [[0.7, 0.3], [0.6, 0.4]],  # judge 1 prefers draft 0, judge 0 prefers draft 0: wins 1, 0
        [[0.2, 0.8], [0.9, 0.1]],  # judge 1: 0.9 for draft 0; judge 0: 0.8 for draft 1: wins 1, 1
        [[0.1, 0.9], [0.3, 0.7]],  # judge 1 prefers its own; judge 0 prefers draft 1: wins 0, 1
    ]
    # j != i and k != i leave one comparison, the judge's own draft: gains are 0 or 1.
    a = math.exp(math.sqrt(1 / 2))
    b = math.exp(math.sqrt(1 / 2) / 3)
    expected = [
        [a / (a + 1), 1 / (a + 1)],
        [a / (a + 1), 1 / (a + 1)],
        [a / (a + b), b / (a + b)],
    ]
    for got, wanted in zip(rounds(table), expected, strict=True):
        assert got == pytest.approx(wanted, rel=1e-12)
    assert expected[0] == pytest.approx([0.66976155, 0.33023845], abs=1e-8)
    assert expected[2] == pytest.approx([0.6157161, 0.3842839], abs=1e-7)


def test_three_members_three_rounds():
    # wins_i counts judges j != i and rivals k != i with s_ji >= s_jk, out of 4.
    table = [
        # 0: judge 1 has 0.5 >= 0.2, 0.3; judge 2 has 0.4 >= 0.4, 0.2            -> 4 of 4
        # 1: judge 0 has 0.3 against 0.6, 0.1 -> 1; judge 2 has 0.4 >= 0.4, 0.2  -> 3 of 4
        # 2: judge 0 has 0.1 -> 0; judge 1 has 0.3 >= 0.2 only                   -> 1 of 4
        [[0.6, 0.3, 0.1], [0.5, 0.2, 0.3], [0.4, 0.4, 0.2]],
        # 0: judge 1: 0.1 -> 0; judge 2: 0.3 >= 0.3 only                         -> 1 of 4
        # 1: judge 0: 0.5 -> 2; judge 2: 0.3 >= 0.3 only                         -> 3 of 4
        # 2: judge 0: 0.3 >= 0.2 -> 1; judge 1: 0.2 >= 0.1 -> 1                  -> 2 of 4
        [[0.2, 0.5, 0.3], [0.1, 0.7, 0.2], [0.3, 0.3, 0.4]],
        # 0: both judges lowest -> 0; 1: judge 0: 0.4 -> 2; judge 2: 0.6 -> 2      -> 4 of 4
        # 2: judge 0: 0.4 >= 0.2 and 0.4 -> 2; judge 1: 0.8 -> 2                 -> 4 of 4
        [[0.2, 0.4, 0.4], [0.05, 0.15, 0.8], [0.1, 0.6, 0.3]],
    ]
    gains = [(4, 3, 1), (1, 3, 2), (0, 4, 4)]
    exponents = [0.0, 0.0, 0.0]
    for t, (got, wins) in enumerate(zip(rounds(table), gains, strict=True), 1):
        exponents = [e + w / 4 / math.sqrt(3) / t for e, w in zip(exponents, wins, strict=True)]
        total = sum(map(math.exp, exponents))
        assert got == pytest.approx([math.exp(e) / total for e in exponents], rel=1e-12)


def test_five_members_three_rounds():
    # Judge j gives draft c the share of a fixed order: the order of the drafts is all that counts.
    # wins_i = sum over the four other judges of the rivals (itself left out) that i is at least
    # level with. With one order 0 > 1 > 2 > 3 > 4 for all judges: rival k beats i iff k < i, and
    # for judge j the rivals are the four others, so wins_i = 4 * (4 - i) out of 16.
    order = [0.4, 0.25, 0.2, 0.1, 0.05]
    table = [[order] * 5, [order[::-1]] * 5, [[0.2] * 5] * 5]
    exponents = [0.0] * 5
    for t, got in enumerate(rounds(table), 1):
        gain = [
            [(4 - i) / 4 for i in range(5)],
            [i / 4 for i in range(5)],
            [1.0] * 5,
        ][t - 1]
        exponents = [e + g / math.sqrt(5) / t for e, g in zip(exponents, gain, strict=True)]
        total = sum(map(math.exp, exponents))
        assert got == pytest.approx([math.exp(e) / total for e in exponents], rel=1e-12)


def test_one_distinct_candidate_moves_no_weight():
    assert feedback([0.7, 0.2, 0.1], [[1.0]] * 3, [0, 0, 0], 0.5) == pytest.approx([0.7, 0.2, 0.1])


def test_one_member_keeps_its_weight():
    assert feedback([1.0], [[1.0]], [0], 1.0) == [1.0]


def test_learning_rate_zero_keeps_the_weights_equal():
    table = [[[0.7, 0.3], [0.6, 0.4]]] * 3
    assert list(rounds(table, learning_rate=0.0))[-1] == [0.5, 0.5]


def test_members_with_the_same_draft_share_their_wins():
    # Members 0 and 1 drafted candidate 0, member 2 candidate 1. Judge 2 prefers candidate 1.
    shares = [[0.6, 0.4], [0.7, 0.3], [0.2, 0.8]]
    # 0: judge 1: level with 1, above 2; judge 2: level with 1, below 2 -> 3 of 4; likewise 1.
    # 2: judges 0 and 1 prefer candidate 0 against both rivals -> 0 of 4.
    got = feedback([1 / 3] * 3, shares, [0, 0, 1], 1.0)
    a = math.exp(3 / 4)
    assert got == pytest.approx([a / (2 * a + 1), a / (2 * a + 1), 1 / (2 * a + 1)], rel=1e-12)


def test_shares_follow_the_mean_log_probability():
    assert vote_shares([-1.0, -2.0]) == pytest.approx([0.731058579, 0.268941421], abs=1e-9)
    # Negative numbers divided by their sum would rank these the other way round.
    assert vote_shares([-0.5, -3.0])[0] > vote_shares([-0.5, -3.0])[1]


@pytest.mark.parametrize(
    ("log_likelihoods", "expected"),
    [
        ([None, None], [0.5, 0.5]),
        ([None, -2.0], [0.0, 1.0]),
        ([-1e4, -1e4 - 1], [0.731058579, 0.268941421]),
    ],
)
def test_candidates_that_cannot_be_judged_get_nothing(log_likelihoods, expected):
    assert vote_shares(log_likelihoods) == pytest.approx(expected, abs=1e-9)


def drafts(*texts):
    return {i: Draft([i], text.rstrip(b"$"), text.endswith(b"$")) for i, text in enumerate(texts)}


def test_candidates_are_distinct_as_bytes_and_ending():
    candidates = distinct_candidates(drafts(b"a", b"a$", b"a", b"b", b"$"), 5)
    assert [(c.data, c.ended, c.drafted_by) for c in candidates] == [
        (b"a", False, [0, 2]),
        (b"a", True, [1]),
        (b"b", False, [3]),
        (b"", True, [4]),
    ]
    assert candidates[0].token_ids == [[0], [], [2], [], []]


def test_the_vote_is_weighted_and_ties_go_to_the_member_given_first():
    candidates = distinct_candidates(drafts(b"a", b"b"), 2)
    assert vote([0.5, 0.5], {0: [0.8, 0.2], 1: [0.1, 0.9]}, candidates)[0] == 1
    assert [c.score for c in candidates] == pytest.approx([0.45, 0.55])
    assert vote([0.9, 0.1], {0: [0.8, 0.2], 1: [0.1, 0.9]}, candidates)[0] == 0
    winner, reason = vote([0.5, 0.5], {0: [0.7, 0.3], 1: [0.3, 0.7]}, candidates)
    assert (winner, reason) == (0, "highest score, shared: the member given first")


@given(
    st.integers(2, 6).flatmap(
        lambda k: st.tuples(
            st.lists(st.floats(0.01, 1), min_size=k, max_size=k),
            st.lists(st.lists(st.floats(-50, 0), min_size=k, max_size=k), min_size=k, max_size=k),
            st.permutations(range(k)),
        )
    )
)
def test_the_order_of_the_members_changes_nothing(drawn):
    raw, log_likelihoods, order = drawn
    weights = [w / sum(raw) for w in raw]
    shares = [vote_shares(row) for row in log_likelihoods]
    got = feedback(weights, shares, list(range(len(raw))), 0.3)
    moved = feedback(
        [weights[i] for i in order],
        [[shares[j][c] for c in order] for j in order],
        list(range(len(raw))),
        0.3,
    )
    assert moved == pytest.approx([got[i] for i in order], rel=1e-12)
    assert sum(got) == pytest.approx(1, rel=1e-12)
    assert all(w > 0 for w in got)
