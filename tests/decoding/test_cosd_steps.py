"""CoSD against the slow loop, round by round, with all that the trace says."""

import pytest
import torch

from ensemble_decoding import CoSD
from ensemble_decoding.tree import Node, Tree
from tests.decoding.cosd_oracle import END, SlowCoSD, rule
from tests.decoding.members_for_tests import PROMPT, member
from tests.decoding.tokenizers_for_tests import (
    GERMAN,
    byte_level_tokenizer,
    permuted_tokenizer,
    sentencepiece_tokenizer,
)

TOKENS = 16
BYTES, PIECES = byte_level_tokenizer(), sentencepiece_tokenizer()
GERMAN_BYTES = byte_level_tokenizer(GERMAN)
PAIRS = {
    "one table": (BYTES, BYTES),
    "bytes and pieces": (BYTES, PIECES),
    "pieces and bytes": (PIECES, GERMAN_BYTES),
    "other ids": (GERMAN_BYTES, permuted_tokenizer(BYTES)),
}
ARCHITECTURES = [("llama", "gemma3"), ("gemma3", "llama"), ("llama", "llama")]
# The members are unsure of everything: without such numbers nothing, or all, would be replaced.
RULES = [{"alpha": 0.08, "beta": 0.9}, {"alpha": 0.5, "beta": 2.0}, {"alpha": 1.0, "beta": 0.0}]
TREE = Tree(
    [
        Node(9, None, "draft_probability", 0.06, 1, 4),
        Node(5, None, "assistant_probability", 0.055, 2, 3),
        Node(2, False),
        Node(3, True),
        Node(4, False),
    ]
)


def by_the_tree(draft, assistant):
    return draft <= 0.06 and assistant > 0.055


def made(tokenizers, architectures=("llama", "gemma3", "llama"), **changes):
    return [
        member(architecture, tokenizer, seed=5 + 10 * j, **changes)
        for j, (architecture, tokenizer) in enumerate(zip(architectures, tokenizers, strict=False))
    ]


def compared(members, method, *, limit=TOKENS, tolerance=1e-5, **options):
    """Runs both; the reasons that the run gave."""
    drafter, *assistants = members
    slow_method = {k: v for k, v in method.items() if k not in ("alpha", "beta", "tree")}
    tree = method.get("tree")
    verdict = rule(method.get("alpha", 0.5), method.get("beta", 0.5))
    plain = {name: value for name, value in options.items() if name != "do_sample"}
    slow = SlowCoSD(
        [(one.model, one.tokenizer) for one in members],
        PROMPT,
        verdict=by_the_tree if tree else verdict,
        limit=limit,
        **slow_method,
        **plain,
    )
    run = CoSD(drafter, assistants, **method).stream(PROMPT, max_new_tokens=limit, **options)
    reasons = []
    for piece in run:
        expected = slow.round()
        assert len(piece.round.decisions) == len(expected)
        for got, wanted in zip(piece.round.decisions, expected, strict=True):
            assert_decision(got, wanted, len(members), tolerance)
            reasons.append(got.reason)
        assert run.data == slow.response
        assert run.contexts[0].response_ids == slow.ids
        for j, context in enumerate(run.contexts[1:], 1):
            written = slow.ids
            if not slow.same[j]:
                written = slow.members[j].encoded(slow.response)
            elif slow.ended:
                written = slow.ids[:-1]
            assert context.response_ids == written[: len(context.response_ids)]
            ids = run.output.token_ids[j]
            ends = [slow.members[j].end] if slow.ended and slow.members[j].end is not None else []
            assert ids == [*written, *ends]
        assert (run.finish_reason == "stop") == slow.ended
        assert (run.finish_reason == "length") == (slow.over and not slow.ended)
    assert slow.ended or slow.over
    return reasons


def assert_decision(got, wanted, members, tolerance):
    assert (got.drafted, got.drafted_end) == (wanted.drafted or b"", wanted.drafted is END)
    assert (got.chosen, got.chosen_end) == (wanted.chosen or b"", wanted.chosen is END)
    assert got.decided_by == wanted.decided_by
    assert (got.reason == "replaced") == (wanted.decided_by is not None)
    assert (got.reason == "kept after a second look") == wanted.looked_again
    given = [wanted.opinions.get(j) for j in range(1, members)]
    assert (got.reason == "no token of an assistant begins here") == (not any(given))
    alternatives = [None if one is None else one.token or b"" for one in given]
    assert got.alternatives == [wanted.drafted or b"", *alternatives]
    probabilities = [wanted.probability, *(one and one.probability for one in given)]
    for value, expected in zip(got.probabilities, probabilities, strict=True):
        assert value == (expected and pytest.approx(expected, rel=tolerance))
    if members == 2 and given[0] is not None and given[0].agrees:
        assert got.reason == "the assistant agrees"


@pytest.mark.parametrize("pair", PAIRS)
def test_each_round_is_that_of_the_slow_loop(pair):
    reasons = []
    for length in range(1, 7):
        members = made(PAIRS[pair], ARCHITECTURES[length % 3])
        reasons += compared(members, {**RULES[length // 2 % 3], "draft_length": length})
    # Seldom replaced, the text goes on where one ends a token and the other does not.
    seldom = {"alpha": 0.003, "beta": 1.0}
    reasons += compared(made(PAIRS[pair]), seldom, limit=40, do_sample=True, seed=0)
    seen = {"replaced", "kept by the rule"}
    if pair != "one table":
        seen.add("no token of an assistant begins here")
    assert seen <= set(reasons)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_models_of_one_origin_agree_now_and_then(architecture):
    members = made(PAIRS["one table"], [architecture] * 2)
    weights = zip(*(one.model.parameters() for one in members), strict=True)
    torch.manual_seed(0)
    for original, changed in weights:
        changed.data.copy_(original * (1 + 0.03 * torch.randn_like(original)))
    reasons = compared(members, {"alpha": 0.08, "beta": 0.99, "draft_length": 4}, limit=60)
    assert {"the assistant agrees", "replaced", "kept by the rule"} <= set(reasons)


@pytest.mark.parametrize("pair", PAIRS)
def test_a_tree_decides_in_the_place_of_the_rule(pair):
    reasons = compared(made(PAIRS[pair]), {"tree": TREE, "draft_length": 3})
    assert {"replaced", "kept by the tree"} <= set(reasons)


METHODS = [
    {"alpha": 0.08, "beta": 0.9, "temperatures": [0.7, 1.6]},
    {"alpha": 0.3, "beta": 0.2, "temperatures": [3.0, 0.4]},
    {"alpha": 0.5, "beta": 0.5, "max_entropy": 5.0},
    {"alpha": 1.0, "beta": 0.1, "max_entropy": 4.6, "temperatures": [1.0, 0.9]},
]


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("pair", ["one table", "bytes and pieces"])
def test_temperatures_and_the_gate(pair, method):
    reasons = compared(made(PAIRS[pair]), method)
    gated = "the assistant's entropy is too high" in reasons
    assert gated == ("max_entropy" in method)


THREE = {
    "one table": (BYTES, BYTES, BYTES),
    "mixed": (BYTES, PIECES, GERMAN_BYTES),
    "the last as the first": (PIECES, GERMAN_BYTES, PIECES),
}


@pytest.mark.parametrize("select", ["most_confident", "cascade"])
@pytest.mark.parametrize("tokenizers", THREE)
def test_several_assistants(tokenizers, select):
    method = {"alpha": 0.09, "beta": 0.7, "select": select, "draft_length": 4}
    # Neither assistant is always the surer one.
    method["temperatures"] = [1.0, 1.2, 1.0]
    members = made(THREE[tokenizers])
    deciders = set()
    for unsure_below in (0.5, 0.06):
        reasons = compared(members, {**method, "unsure_below": unsure_below})
        assert "replaced" in reasons
        drafter, *others = members
        output = CoSD(drafter, others, unsure_below=unsure_below, **method).generate(
            PROMPT, max_new_tokens=TOKENS
        )
        deciders |= {d.decided_by for round_ in output.rounds for d in round_.decisions}
    assert deciders == {None, 1, 2}


@pytest.mark.parametrize("pair", PAIRS)
def test_a_second_look(pair):
    reasons = []
    for length in (1, 2, 5):
        method = {"alpha": 1.0, "beta": 0.1, "second_look": True, "draft_length": length}
        reasons += compared(made(PAIRS[pair]), method)
    assert {"replaced", "kept after a second look"} <= set(reasons)


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True, "seed": 5},
        {"do_sample": True, "seed": 6, "temperature": 1.7, "top_k": 30},
        {"repetition_penalty": 1.5},
    ],
    ids=str,
)
@pytest.mark.parametrize("pair", PAIRS)
def test_drafts_are_drawn_and_judged_by_the_plain_probabilities(pair, options):
    method = {"alpha": 0.05, "beta": 1.2, "draft_length": 3}
    reasons = compared(made(PAIRS[pair]), method, **options)
    assert {"replaced", "kept by the rule"} & set(reasons)


@pytest.mark.parametrize("limit", range(1, 21))
def test_limits_are_exact(limit):
    method = {"alpha": 0.08, "beta": 0.9, "draft_length": 1 + limit % 6}
    compared(made(PAIRS["one table"]), method, limit=limit)
    compared(made(PAIRS["bytes and pieces"]), method, limit=limit, do_sample=True, seed=limit)


@pytest.mark.parametrize("pair", ["bytes and pieces", "pieces and bytes"])
def test_characters_of_several_tokens_in_hot_drafts(pair):
    inside = 0
    for seed in range(3):
        options = {"do_sample": True, "seed": seed, "temperature": 2.0}
        method = {"alpha": 0.01, "beta": 3.0, "draft_length": 2}
        compared(made(PAIRS[pair]), method, **options)
        drafter, *others = made(PAIRS[pair])
        for piece in CoSD(drafter, others, **method).stream(PROMPT, max_new_tokens=30, **options):
            inside += any(len(d.drafted) and d.drafted[0] > 127 for d in piece.round.decisions)
    assert inside
