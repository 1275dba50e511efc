"""SAFE by chance, and up to its limit, against the slow loop."""

import pytest

from tests.decoding.test_safe_steps import MEMBERS, assert_rounds_are_those_of_the_slow_loop

SAMPLED = [
    {"seed": 5},
    {"seed": 6, "temperature": 1.7, "top_k": 30},
    {"seed": 7, "temperature": 0.7, "repetition_penalty": 1.4},
]


@pytest.mark.parametrize("ensemble_when", ["safe", "always"])
@pytest.mark.parametrize("options", SAMPLED, ids=str)
@pytest.mark.parametrize("kinds", ["pieces, bytes", "all the same", "bytes, the same, pieces"])
def test_sampling_draws_with_the_counted_numbers(kinds, options, ensemble_when):
    alignment = "identity" if kinds == "all the same" else "union"
    method = {"alignment": alignment, "ensemble_when": ensemble_when}
    rounds = 20 if ensemble_when == "always" else 10
    assert_rounds_are_those_of_the_slow_loop(MEMBERS[kinds], method, options, rounds)


def test_top_k_may_lack_what_was_drafted():
    method = {"alignment": "top_k", "k": 1, "sharpen": None}
    seen = assert_rounds_are_those_of_the_slow_loop(
        MEMBERS["bytes, pieces"], method, {"seed": 3, "temperature": 2.0}, 20
    )
    assert seen["replaced"] > 5


@pytest.mark.parametrize("limit", range(1, 21))
def test_the_limit(limit):
    options = {"limit": limit, "seed": limit, "temperature": 2.0}
    for when in ("safe", "always", "never"):
        method = {"ensemble_when": when, "draft_length": 1 + limit % 7}
        assert_rounds_are_those_of_the_slow_loop(MEMBERS["pieces, bytes"], method, options, 99)
