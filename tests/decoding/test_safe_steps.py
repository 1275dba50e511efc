"""SAFE against the slow loop, round by round."""

from collections import Counter

import pytest

from ensemble_decoding import SAFE
from tests.decoding.members_for_tests import PROMPT, member
from tests.decoding.safe_oracle import END, SlowSafe
from tests.decoding.tokenizers_for_tests import (
    GERMAN,
    byte_level_tokenizer,
    permuted_tokenizer,
    sentencepiece_tokenizer,
)
from tests.decoding.well_read_models import well_read

BYTES = byte_level_tokenizer()
PIECES = sentencepiece_tokenizer()
# All spell every byte, and byte tokens that are parts of a character are in some of them only.
KINDS = {
    "bytes, pieces": (BYTES, PIECES),
    "pieces, bytes": (PIECES, byte_level_tokenizer(GERMAN)),
    "bytes, German bytes": (BYTES, permuted_tokenizer(byte_level_tokenizer(GERMAN))),
    "bytes, permuted": (BYTES, permuted_tokenizer(BYTES)),
    "bytes, the same, pieces": (BYTES, BYTES, PIECES),
    "bytes, pieces, German, the same": (BYTES, PIECES, byte_level_tokenizer(GERMAN), BYTES),
    "all the same": (BYTES, BYTES, BYTES),
}
WHYS = {
    "drafted": {"drafter"},
    "no boundary for a verifier": {"boundary"},
    "all verifiers agree": {"agree"},
    "mean probability above one half": {"sure"},
    "ensembled": {"kept", "replaced"},
}
METHODS = [
    {},
    {"sharpen": "geometric"},
    {"sharpen": None, "draft_length": 3},
    {"alignment": "top_k", "draft_length": 7},
    {"alignment": "top_k", "k": 3, "sharpen": "geometric", "draft_length": 2},
]
ROUNDS = 10


def ensemble(kinds, **changes):
    """A llama that drafts, then verifiers of which every other is a gemma3 with a window."""
    return [
        well_read(member(("llama", "gemma3")[j % 2], tokenizer, seed=5 + 10 * j, **changes))
        for j, tokenizer in enumerate(kinds)
    ]


def assert_decision(got, expected, tolerance):
    assert (got.drafted, got.drafted_end) == (expected.drafted or b"", expected.drafted is END)
    assert (got.chosen, got.chosen_end) == (expected.chosen or b"", expected.chosen is END)
    assert expected.why in WHYS[got.reason]
    assert got.same_bytes == expected.same_bytes
    assert got.mixture == pytest.approx(expected.mixture, **tolerance)
    for value, slow in zip(
        [got.mean, *got.probabilities], [expected.mean, *expected.probabilities], strict=True
    ):
        assert value == (None if slow is None else pytest.approx(slow, **tolerance))


def assert_rounds_are_those_of_the_slow_loop(members, method, options=None, rounds=ROUNDS):
    """Returns how often each thing happened."""
    options = dict(options or {})
    pairs = [(one.model, one.tokenizer) for one in members]
    slow = SlowSafe(pairs, PROMPT, **method, **options)
    limit = options.pop("limit", 1000)
    if "seed" in options:
        options["do_sample"] = True
    run = SAFE(members[0], members[1:], **method).stream(PROMPT, max_new_tokens=limit, **options)
    # The processors of transformers work in float32.
    tolerance = {"rel": 1e-4 if options else 1e-5, "abs": 1e-7}
    seen = Counter()
    for count, piece in enumerate(run, 1):
        expected = slow.round()
        decisions = piece.round.decisions
        assert len(decisions) == len(expected)
        for got, decision in zip(decisions, expected, strict=True):
            assert_decision(got, decision, tolerance)
            seen[decision.why] += 1
            if decision.same_bytes and "seed" not in options and "k" not in method:
                # The mixture that was not made would have changed nothing.
                assert decision.argmax == decision.drafted
            seen["overtaken"] += decision.argmax not in (decision.chosen, None)
        assert run.data == slow.response
        assert_ids(run, slow)
        seen["inside a character"] += bool(run.pending)
        if count == rounds:
            break
    if count < rounds:
        assert run.output.finish_reason == ("stop" if slow.ended else "length")
        assert slow.over or slow.ended
    run.close()
    return seen


def assert_ids(run, slow):
    """The drafter's are append-only; a verifier's are the encoding of the whole text, of which its
    context has what it has read."""
    assert run.contexts[0].response_ids == slow.ids
    for j, one in enumerate(slow.members[1:], 1):
        ids = run.contexts[j].response_ids
        text = [number for number in slow.ids if number != slow.drafter.end]
        expected = text if slow.same[j] else one.encoded(slow.response)
        assert ids == (expected[: len(ids)] if slow.weights[j] else [])
        assert run.output.token_ids[j][: len(expected)] == expected
        ends = [one.end] if slow.ended and one.end is not None else []
        assert run.output.token_ids[j][len(expected) :] == ends


MEMBERS = {name: ensemble(kinds) for name, kinds in KINDS.items()}
SEEN = Counter()


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("kinds", KINDS)
def test_each_round_is_that_of_the_slow_loop(kinds, method):
    alignment = "identity" if kinds == "all the same" else "union"
    method = {"alignment": alignment, **method}
    SEEN.update(assert_rounds_are_those_of_the_slow_loop(MEMBERS[kinds], method))


def test_everything_that_can_happen_happened_in_these_rounds():
    for why in ("boundary", "agree", "kept", "replaced", "overtaken", "inside a character"):
        assert SEEN[why] > 10, (why, SEEN)


@pytest.mark.parametrize("draft_length", range(1, 8))
def test_any_draft_length(draft_length):
    method = {"draft_length": draft_length}
    for kinds in ("pieces, bytes", "bytes, the same, pieces"):
        assert_rounds_are_those_of_the_slow_loop(MEMBERS[kinds], method, rounds=8)


@pytest.mark.parametrize("alignment", ["union", "top_k"])
@pytest.mark.parametrize("weights", [[6.0, 1.0, 0.5], [1.0, 0.0, 2.0], [0.0, 3.0, 1.0]])
def test_weights(alignment, weights):
    method = {"weights": weights, "alignment": alignment}
    members = MEMBERS["bytes, the same, pieces"]
    seen = assert_rounds_are_those_of_the_slow_loop(members, method)
    assert seen["sure"] or weights[0] < 6 or alignment == "top_k"


@pytest.mark.parametrize("sharpen", ["prefix", "geometric", None])
@pytest.mark.parametrize("kinds", ["pieces, bytes", "bytes, pieces, German, the same"])
def test_an_ensemble_at_every_token(kinds, sharpen):
    for alignment in ("union", "top_k"):
        method = {"ensemble_when": "always", "alignment": alignment, "sharpen": sharpen}
        assert_rounds_are_those_of_the_slow_loop(MEMBERS[kinds], method, rounds=20)


def test_the_drafter_alone():
    for method in ({"ensemble_when": "never"}, {"weights": [1.0, 0.0], "draft_length": 3}):
        assert_rounds_are_those_of_the_slow_loop(MEMBERS["bytes, pieces"], method)
