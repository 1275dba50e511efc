"""Bad options of SAFE, each refused in one sentence."""

import inspect

import pytest

from ensemble_decoding import SAFE
from tests.decoding.members_for_tests import PROMPT, member, three_families

MEMBERS = three_families()
DRAFTER, VERIFIER = MEMBERS[:2]
BAD = [
    ({"draft_length": 0}, ValueError, "draft_length must be at least 1, got 0"),
    ({"draft_length": -3}, ValueError, "draft_length must be at least 1, got -3"),
    ({"draft_length": 2.0}, TypeError, "draft_length must be an int, got float"),
    ({"draft_length": True}, TypeError, "draft_length must be an int, got bool"),
    ({"draft_length": "5"}, TypeError, "draft_length must be an int, got str"),
    ({"draft_length": None}, TypeError, "draft_length must be an int, got NoneType"),
    ({"ensemble_when": "often"}, ValueError, "ensemble_when must be one of safe, .* got 'often'"),
    ({"ensemble_when": None}, ValueError, "ensemble_when must be one of .* got None"),
    ({"ensemble_when": True}, ValueError, "ensemble_when must be one of .* got True"),
    ({"alignment": "intersection"}, ValueError, "alignment must be one of auto, .* got 'inter"),
    ({"alignment": "identity"}, ValueError, "alignment must be union or top_k where members have"),
    ({"alignment": None}, ValueError, "alignment must be one of .* got None"),
    ({"k": 0}, ValueError, "k must be at least 1, got 0"),
    ({"k": 2.0}, TypeError, "k must be an int, got float"),
    ({"weights": [1.0]}, ValueError, "weights must have an entry for each of the 2 members, got 1"),
    ({"weights": [1, 1, 1]}, ValueError, "weights must have an entry for each .* got 3"),
    ({"weights": [1, -0.1]}, ValueError, r"weights must be finite, not negative .* \[1, -0.1\]"),
    ({"weights": [1e308, 1e308]}, ValueError, "weights must be at most 3.4.*, got"),
    ({"weights": [0, 0.0]}, ValueError, "weights must be .* not all zero, got"),
    ({"weights": [1, float("nan")]}, ValueError, "weights must be finite, .* nan"),
    ({"weights": [1, "1"]}, TypeError, r"weights\[1\] must be a number, got str"),
    ({"weights": "11"}, TypeError, "weights must be a list of numbers, got str"),
    ({"sharpen": "harmonic"}, ValueError, "sharpen must be one of prefix, geometric, .* got 'harm"),
    ({"sharpen": 0.1}, ValueError, "sharpen must be one of prefix, geometric, .* got 0.1"),
    ({"combine": "mean"}, TypeError, "combine must be callable, got str"),
    (
        {"combine": max, "sharpen": "geometric"},
        ValueError,
        "sharpen must not be 'geometric' with combine",
    ),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD, ids=str)
def test_bad_options_are_one_sentence(options, error, message):
    with pytest.raises(error, match=message) as caught:
        SAFE(DRAFTER, [VERIFIER], **options)
    assert "\n" not in str(caught.value)


def test_every_option_is_among_the_bad_ones():
    tried = {name for options, *_ in BAD for name in options}
    assert tried == set(inspect.signature(SAFE).parameters) - {"drafter", "verifiers"}


@pytest.mark.parametrize(
    ("drafter", "verifiers", "error", "message"),
    [
        ("a", [VERIFIER], TypeError, "drafter must be a Member, got str"),
        ([DRAFTER], [VERIFIER], TypeError, "drafter must be a Member, got list"),
        (DRAFTER, [], ValueError, "verifiers must hold at least one Member"),
        (DRAFTER, [VERIFIER, "b"], TypeError, r"verifiers\[1\] must be a Member, got str"),
        (DRAFTER, VERIFIER, TypeError, "verifiers must be a list of Member"),
        (DRAFTER, None, TypeError, "verifiers must be a list of Member"),
    ],
)
def test_members(drafter, verifiers, error, message):
    with pytest.raises(error, match=message):
        SAFE(drafter, verifiers)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens must be at least 1, got 0"),
        ({"eos_token_id": 3}, ValueError, "entry for each of the 2 members, .* got the one id 3 "),
        ({"draft_length": 3}, TypeError, "draft_length"),
    ],
)
def test_bad_options_of_a_run(options, error, message):
    with pytest.raises(error, match=message):
        SAFE(DRAFTER, [VERIFIER]).generate(PROMPT, **options)


def test_ends_of_text_of_its_own_take_a_member_from_identity():
    twins = [member(seed=1), member(seed=2)]
    ends = [[40], [41]]
    with pytest.raises(ValueError, match=r"union or top_k where .* end-of-text"):
        SAFE(twins[0], twins[1:], alignment="identity").stream(PROMPT, eos_token_id=ends)
    run = SAFE(twins[0], twins[1:]).stream(PROMPT, eos_token_id=ends)
    assert run.trace.options["alignment"] == "union"


def test_messages_are_rendered_for_each_member():
    messages = [{"role": "user", "content": PROMPT}]
    method = SAFE(DRAFTER, [VERIFIER])
    output = method.generate(messages=messages, max_new_tokens=5)
    assert output.text == method.generate(PROMPT, max_new_tokens=5).text


@pytest.mark.parametrize("when", ["safe", "always", "never"])
def test_all_end_of_text_ids_are_one_event(when):
    """Several ids of which none is the likeliest end the text together under the mixture; alone
    the drafter takes the likeliest id."""
    twins = [member(seed=4), member(seed=5)]
    whole = SAFE(twins[0], twins[1:], ensemble_when=when).generate(PROMPT, max_new_tokens=30)
    ends = [*{*whole.token_ids[0][8:10]}, twins[0].tokenizer.eos_token_id]
    method = SAFE(twins[0], twins[1:], ensemble_when=when)
    output = method.generate(PROMPT, max_new_tokens=30, eos_token_id=ends)
    assert output.finish_reason == "stop"
    assert set(output.token_ids[0]) & set(ends) == {output.token_ids[0][-1]}
    last = output.rounds[-1].decisions[-1]
    assert (last.chosen, last.chosen_end) == (b"", True)
