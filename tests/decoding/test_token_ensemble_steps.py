"""Token-level ensembles against the slow loop, step by step."""

import pytest

from ensemble_decoding import Member, TokenEnsemble
from tests.decoding.members_for_tests import PROMPT, member
from tests.decoding.models_for_tests import ARCHITECTURES
from tests.decoding.token_ensemble_oracle import END, SlowEnsemble, SlowMember
from tests.decoding.tokenizers_for_tests import (
    GERMAN,
    byte_level_tokenizer,
    permuted_tokenizer,
    sentencepiece_tokenizer,
)

STEPS = 60
# All spell every byte, and byte tokens that are parts of a character are in some of them only.
PAIRS = {
    "bytes and pieces": (byte_level_tokenizer(), sentencepiece_tokenizer()),
    "pieces and bytes": (sentencepiece_tokenizer(), byte_level_tokenizer(GERMAN)),
    "two of bytes": (byte_level_tokenizer(), permuted_tokenizer(byte_level_tokenizer(GERMAN))),
}
METHODS = [
    {"alignment": "union"},
    {"alignment": "union", "weights": [0.3, 1.2]},
    {"alignment": "union", "mean": "geometric"},
    {"alignment": "union", "mean": "geometric", "weights": [2.0, 1.0]},
    {"alignment": "union", "threshold": 0.01},
    {"alignment": "top_k"},
    {"alignment": "top_k", "k": 3, "weights": [1.0, 3.0]},
    {"alignment": "top_k", "mean": "geometric"},
    {"alignment": "top_k", "threshold": 0.01},
]
RUNS = [
    {"do_sample": True, "seed": 5},
    {"do_sample": True, "seed": 6, "temperature": 1.7, "top_k": 30},
    {"do_sample": True, "seed": 7, "temperature": 0.7, "repetition_penalty": 1.4},
    {"repetition_penalty": 1.5},
]


def pair(tokenizers):
    return [
        member(architecture, tokenizer, seed=seed)
        for architecture, tokenizer, seed in zip(
            ("llama", "gemma3"), tokenizers, (5, 15), strict=True
        )
    ]


def assert_steps_are_those_of_the_slow_loop(members, method, options):
    slow = SlowEnsemble(
        [SlowMember(one.model, one.tokenizer, PROMPT) for one in members],
        **{"weights": [1.0] * len(members), **method},
    )
    plain = {name: value for name, value in options.items() if name not in ("seed", "do_sample")}
    run = TokenEnsemble(members, **method).stream(PROMPT, max_new_tokens=10 * STEPS, **options)
    seen = {"waited": 0, "alone": 0}
    for count, piece in enumerate(run, 1):
        tolerance = {"rel": 1e-5, "abs": 1e-7}
        if plain:
            tolerance["rel"] = 1e-4  # the processors of transformers work in float32
        token, probability, shares, ensembled = slow.step(options.get("seed"), **plain)
        round_ = piece.round
        (chosen,) = round_.candidates
        assert (chosen.data, chosen.ended) == (token or b"", token is END)
        assert [context.ids for context in run.contexts] == [m.ids for m in slow.members]
        assert run.waiting == [m.waiting for m in slow.members]
        assert (round_.voters, round_.ensembled) == (sorted(shares), ensembled)
        assert chosen.score == pytest.approx(probability, **tolerance)
        for j in range(len(members)):
            assert chosen.shares[j] == pytest.approx(shares.get(j, 0.0), **tolerance)
        seen["waited"] += any(run.waiting)
        seen["alone"] += not ensembled
        if count == STEPS:
            break
    assert count == STEPS or run.output.finish_reason == "stop"
    run.close()
    return seen


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("tokenizers", PAIRS)
def test_each_step_is_that_of_the_slow_loop(tokenizers, method):
    seen = assert_steps_are_those_of_the_slow_loop(pair(PAIRS[tokenizers]), method, {})
    assert bool(seen["alone"]) == ("threshold" in method)


@pytest.mark.parametrize("options", RUNS, ids=str)
@pytest.mark.parametrize("alignment", ["union", "top_k"])
def test_options_shape_each_member_before_mixing(alignment, options):
    members = pair(PAIRS["bytes and pieces"])
    assert_steps_are_those_of_the_slow_loop(members, {"alignment": alignment}, options)


@pytest.mark.parametrize("alignment", ["union", "top_k"])
def test_without_a_common_token_the_geometric_mean_is_the_arithmetic_one(alignment):
    """Each member keeps two tokens, which they seldom have in common."""
    members, method = pair(PAIRS["bytes and pieces"]), {"alignment": alignment, "mean": "geometric"}
    options = {"do_sample": True, "seed": 8, "top_k": 2}
    assert_steps_are_those_of_the_slow_loop(members, method, options)
    rounds = TokenEnsemble(members, **method).generate(PROMPT, max_new_tokens=9, **options).rounds
    assert any("arithmetic" in round_.reason for round_ in rounds)


def test_members_wait_for_the_rest_of_a_character_in_these_runs():
    waited = 0
    for seed in (0, 1, 2):
        options = {"do_sample": True, "seed": seed, "temperature": 2.0}
        seen = assert_steps_are_those_of_the_slow_loop(
            pair(PAIRS["bytes and pieces"]), {"alignment": "union"}, options
        )
        waited += seen["waited"]
    assert waited > 5


def test_three_members_of_which_one_has_no_say():
    tokenizers = [byte_level_tokenizer(), sentencepiece_tokenizer(), byte_level_tokenizer(GERMAN)]
    members = [member(tokenizer=t, seed=seed) for seed, t in enumerate(tokenizers)]
    method = {"alignment": "top_k", "weights": [1.0, 0.0, 2.0]}
    assert_steps_are_those_of_the_slow_loop(members, method, {})


@pytest.mark.parametrize("alignment", ["auto", "union", "identity"])
@pytest.mark.parametrize("mean", ["arithmetic", "geometric"])
def test_equal_tables_are_mixed_id_by_id_whatever_the_padding(alignment, mean):
    """Byte-level tokens are distinct, so the union is the same mixture under other columns."""
    tokenizer = byte_level_tokenizer()
    models = [
        ARCHITECTURES["llama"](len(tokenizer) + padding, seed=seed)
        for seed, padding in ((1, 0), (2, 13))
    ]

    def raise_padding(module, arguments, output):
        output[..., len(tokenizer) :] += 50
        return output

    models[1].lm_head.register_forward_hook(raise_padding)
    members = [Member(model, tokenizer) for model in models]
    method = {"alignment": alignment, "mean": mean, "weights": [1.0, 2.0]}
    assert_steps_are_those_of_the_slow_loop(members, method, {})
    chosen = TokenEnsemble(members, **method).generate(PROMPT, max_new_tokens=3)
    shown = "union" if alignment == "union" else "identity"
    assert chosen.rounds.options["alignment"] == shown
