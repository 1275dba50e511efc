"""The rule of CoSD at each place of a draft, on models that follow a script."""

import math
from itertools import product

import pytest

from ensemble_decoding import CoSD
from tests.decoding.members_for_tests import PROMPT
from tests.decoding.scripted_model import scripted
from tests.decoding.tokenizers_for_tests import (
    GERMAN,
    byte_level_tokenizer,
    permuted_tokenizer,
    sentencepiece_tokenizer,
)

BYTES = byte_level_tokenizer()
PIECES = sentencepiece_tokenizer(GERMAN, bos=False)
READERS = {
    "one table": BYTES,
    "other ids": permuted_tokenizer(BYTES),
    "pieces": PIECES,
}
# Neighbours make no token of two in any of the tokenizers.
DRAFTED, OTHER = "ZXYJ", "KVWQ"
BELOW, ABOVE = 0.3, 0.7
ALPHA, BETA = 0.5, 1.0


def one_token(tokenizer, text):
    (token,) = tokenizer(text, add_special_tokens=False)["input_ids"]
    return token


def writing(tokenizer, words):
    """A script of (text, probability) pairs."""
    return [{one_token(tokenizer, text): probability} for text, probability in words]


def decided(drafter, assistant, **method):
    """One draft of the two scripts: its decisions and the text that it committed."""
    method = {"alpha": ALPHA, "beta": BETA, **method}
    run = CoSD(drafter, assistant, **method).stream(PROMPT, max_new_tokens=50)
    piece = next(run)
    run.close()
    return piece.round.decisions, piece.text


# So small a text that each of its words becomes a token.
WORDS = (
    "The capital of France is Paris .\nThe capital of France is Lyon .\n23 + 47 = 50 .\n= 70 .\n"
    * 4
)
WORD_BYTES = byte_level_tokenizer(WORDS, 340)
WORD_READERS = {
    "one table": WORD_BYTES,
    "other ids": permuted_tokenizer(WORD_BYTES),
    "pieces": sentencepiece_tokenizer(WORDS, 340, bos=False),
}
CAPITAL = ("The capital of France is", (" Lyon", 0.60), (" Paris", 0.98))
SUM = ("23 + 47 =", (" 50", 0.70), (" 70", 0.95))


@pytest.mark.parametrize("tokenizer", WORD_READERS)
@pytest.mark.parametrize("example", [CAPITAL, SUM], ids=["capital", "sum"])
def test_the_worked_examples(example, tokenizer):
    prompt, own, theirs = example
    reader = WORD_READERS[tokenizer]
    behind = (".", 0.9)
    drafter = scripted(WORD_BYTES, writing(WORD_BYTES, [own, behind]), prompt, "draft")
    assistant = scripted(reader, writing(reader, [theirs, behind]), prompt, "assistant")
    for alpha, written in ((0.8, theirs), (0.5, own)):
        output = CoSD(drafter, assistant, alpha=alpha).generate(prompt, max_new_tokens=2)
        assert output.text == written[0] + "."
        decision = output.rounds[0].decisions[0]
        assert decision.drafted == own[0].encode()
        assert decision.chosen == written[0].encode()
        assert decision.decided_by == (1 if written is theirs else None)
        assert decision.reason == ("replaced" if written is theirs else "kept by the rule")
        assert decision.probabilities == pytest.approx([own[1], theirs[1]], abs=1e-6)
        assert decision.alternatives == [own[0].encode(), theirs[0].encode()]


OUTCOMES = list(product([False, True], [BELOW, ABOVE], [0.9, 1.1]))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_every_outcome_at_every_place(length, reader):
    """Equal or different tokens, the drafted one's probability below or above alpha, the
    assistant's below or above beta times that."""
    for place, (differs, given, factor) in product(range(length), OUTCOMES):
        own = [(text, given if i == place else 0.9) for i, text in enumerate(DRAFTED)]
        # Elsewhere the assistant says the same.
        theirs = [(text, 0.9) for text in DRAFTED]
        theirs[place] = ((OTHER if differs else DRAFTED)[place], given * factor)
        decisions, text = decided(
            scripted(BYTES, writing(BYTES, own), PROMPT, "draft"),
            scripted(READERS[reader], writing(READERS[reader], theirs), PROMPT, "assistant"),
            draft_length=length,
        )
        replaced = differs and given < ALPHA and factor > BETA
        kept = DRAFTED[:length]
        expected = ["the assistant agrees"] * length
        if replaced:
            kept = DRAFTED[:place] + OTHER[place]
            expected = [*expected[:place], "replaced"]
        elif differs:
            expected[place] = "kept by the rule"
        assert text == kept, (place, differs, given, factor)
        assert [decision.reason for decision in decisions] == expected
        assert [decision.decided_by for decision in decisions] == [
            1 if reason == "replaced" else None for reason in expected
        ]


@pytest.mark.parametrize("reader", READERS)
def test_only_the_first_of_several_is_replaced_and_the_rest_drafted_again(reader):
    """Both models go by the place alone, so that all three stand after the first is replaced."""
    own, theirs = [(text, 0.3) for text in DRAFTED], [(text, 0.9) for text in OTHER]
    drafter = scripted(BYTES, writing(BYTES, own), PROMPT, "draft")
    assistant = scripted(READERS[reader], writing(READERS[reader], theirs), PROMPT, "assistant")
    output = CoSD(drafter, assistant, draft_length=4).generate(PROMPT, max_new_tokens=4)
    assert output.text == OTHER
    assert [round_.candidates[0].data.decode() for round_ in output.rounds] == [
        DRAFTED[n:] for n in range(4)
    ]
    assert [len(round_.decisions) for round_ in output.rounds] == [1] * 4
    assert {round_.reason for round_ in output.rounds} == {"replaced"}


def test_both_bounds_are_strict():
    drafter = scripted(BYTES, writing(BYTES, [("Z", 0.375)]), PROMPT, "draft")
    assistant = scripted(BYTES, writing(BYTES, [("K", 0.75)]), PROMPT, "assistant")
    (seen,), _ = decided(drafter, assistant, draft_length=1, alpha=0.0)
    own, theirs = seen.probabilities
    for alpha, chosen in ((own, b"Z"), (math.nextafter(own, 1), b"K")):
        (decision,), _ = decided(drafter, assistant, draft_length=1, alpha=alpha, beta=0.5)
        assert decision.chosen == chosen
    # The factor at which the two sides are the same number.
    beta = theirs / own
    while beta * own > theirs:
        beta = math.nextafter(beta, 0)
    while beta * own < theirs:
        beta = math.nextafter(beta, 9)
    assert beta * own == theirs
    for factor, chosen in ((beta, b"Z"), (beta * (1 - 1e-12), b"K")):
        (decision,), _ = decided(drafter, assistant, draft_length=1, alpha=1.0, beta=factor)
        assert decision.chosen == chosen


def test_an_own_token_that_goes_on_differs_from_its_beginning():
    """The assistant reads "Incorrect" as one token, and would write "Inc" for it."""
    longer = one_token(BYTES, " answer")
    begins = one_token(BYTES, " an")
    drafter = scripted(
        PIECES,
        [{t: 0.4} for t in PIECES(" answer", add_special_tokens=False)["input_ids"]],
        PROMPT,
        "draft",
    )
    assistant = scripted(BYTES, [{begins: 0.5, longer: 0.4}], PROMPT, "assistant")
    decisions, text = decided(drafter, assistant, draft_length=9)
    assert decisions[0].chosen == text.encode() == b" an"
    assert decisions[0].reason == "replaced"


@pytest.mark.parametrize("reader", READERS)
def test_the_end_of_the_text_is_a_token_like_any_other(reader):
    tokenizer = READERS[reader]
    ends, theirs_ends = {BYTES.eos_token_id: 0.4}, {tokenizer.eos_token_id: 0.9}
    goes_on = writing(tokenizer, [("Z", 0.9), ("K", 0.9), ("V", 0.9)])
    # By the assistant.
    drafter = scripted(BYTES, writing(BYTES, [("Z", 0.9), ("X", 0.4)]), PROMPT, "draft")
    assistant = scripted(tokenizer, [goes_on[0], theirs_ends], PROMPT, "assistant")
    output = CoSD(drafter, assistant).generate(PROMPT, max_new_tokens=50)
    assert (output.text, output.finish_reason) == ("Z", "stop")
    assert [ids[-1] for ids in output.token_ids] == [BYTES.eos_token_id, tokenizer.eos_token_id]
    decision = output.rounds[-1].decisions[-1]
    assert (decision.drafted, decision.chosen, decision.chosen_end) == (b"X", b"", True)
    # By the drafter, and taken back.
    drafter = scripted(BYTES, [*writing(BYTES, [("Z", 0.9)]), ends], PROMPT, "draft")
    assistant = scripted(tokenizer, goes_on, PROMPT, "assistant")
    decisions, text = decided(drafter, assistant)
    assert text == "ZK"
    assert [decision.drafted_end for decision in decisions] == [False, True]
    assert decisions[1].reason == "replaced"
    # As the first of all.
    drafter = scripted(BYTES, [ends], PROMPT, "draft")
    decisions, text = decided(drafter, scripted(tokenizer, goes_on, PROMPT, "assistant"))
    assert text == "Z"
    assert decisions[0].probabilities == pytest.approx([0.4, 0.9], abs=1e-6)
    # By both.
    assistant = scripted(tokenizer, [goes_on[0], theirs_ends], PROMPT, "assistant")
    output = CoSD(drafter, assistant).generate(PROMPT, max_new_tokens=50)
    assert (output.text, output.finish_reason) == ("Z", "stop")
    assert output.rounds[-1].decisions[-1].reason == "the assistant agrees"


def test_a_member_without_an_end_of_text():
    endless = byte_level_tokenizer(eos=False)
    said = writing(endless, [("Z", 0.9), ("K", 0.9)])
    # An assistant without one has nothing to say of it.
    drafter = scripted(
        BYTES, [{one_token(BYTES, "Z"): 0.9}, {BYTES.eos_token_id: 0.4}], PROMPT, "d"
    )
    output = CoSD(drafter, scripted(endless, said, PROMPT, "a")).generate(PROMPT, max_new_tokens=50)
    assert (output.text, output.finish_reason) == ("Z", "stop")
    assert output.token_ids[1] == [one_token(endless, "Z")]
    assert output.rounds[0].decisions[-1].alternatives[1] is None
    # A drafter without one ends where the assistant does.
    drafter = scripted(endless, writing(endless, [("Z", 0.9), ("K", 0.3)]), PROMPT, "draft")
    assistant = scripted(
        BYTES, [{one_token(BYTES, "Z"): 0.9}, {BYTES.eos_token_id: 0.9}], PROMPT, "a"
    )
    output = CoSD(drafter, assistant).generate(PROMPT, max_new_tokens=50)
    assert (output.text, output.finish_reason) == ("Z", "stop")
    assert output.token_ids == [
        [one_token(endless, "Z")],
        [one_token(BYTES, "Z"), BYTES.eos_token_id],
    ]


def test_what_the_drafter_cannot_write_stays_as_drafted():
    holes = byte_level_tokenizer(missing_bytes=b"q")
    drafter = scripted(holes, writing(holes, [("Z", 0.3)]), PROMPT, "draft")
    assistant = scripted(BYTES, writing(BYTES, [("q", 0.9)]), PROMPT, "assistant")
    decisions, text = decided(drafter, assistant, draft_length=2)
    assert text == "ZZ"
    assert {decision.reason for decision in decisions} == {
        "the drafter cannot write the assistant's token"
    }
