"""Bad input to SpecEM: each message names the argument, what was expected and what came."""

import pytest

from ensemble_decoding import SpecEM
from tests.decoding.members_for_tests import PROMPT, member

ONE = member()


@pytest.mark.parametrize(
    ("members", "error", "message"),
    [
        ([], ValueError, "members must hold at least one Member, got an empty list"),
        (ONE, TypeError, "members must be a list of Member, got Member"),
        ("ab", TypeError, "members must be a list of Member, got str"),
        ([ONE, None], TypeError, r"members\[1\] must be a Member, got NoneType"),
    ],
)
def test_members(members, error, message):
    with pytest.raises(error, match=message):
        SpecEM(members)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"segment_length": 0}, ValueError, "segment_length must be at least 1, got 0"),
        ({"segment_length": 2.0}, TypeError, "segment_length must be an int, got float"),
        ({"learning_rate": -1}, ValueError, "learning_rate must be finite and at least 0, got -1"),
        ({"learning_rate": float("nan")}, ValueError, "learning_rate .* got nan"),
        ({"learning_rate": "1"}, TypeError, "learning_rate must be a number, got str"),
        ({"sample": True}, TypeError, "sample"),
    ],
)
def test_options(options, error, message):
    with pytest.raises(error, match=message):
        SpecEM([ONE], **options)


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        ({}, ValueError, "exactly one of prompt and messages must be given, got neither"),
        ({"prompt": "a", "messages": []}, ValueError, "exactly one of .* got both"),
        ({"prompt": ["a"]}, TypeError, "prompt must be a str, got list"),
        ({"prompt": "a", "max_new_tokens": 0}, ValueError, "max_new_tokens .* 1, got 0"),
        ({"prompt": "a", "max_new_tokens": -3}, ValueError, "max_new_tokens .* 1, got -3"),
        ({"prompt": "a", "max_new_tokens": 2.5}, TypeError, "max_new_tokens .* int, got float"),
        ({"prompt": "a", "max_new_tokens": True}, TypeError, "max_new_tokens .* int, got bool"),
        ({"prompt": "a\ud800"}, ValueError, "prompt must be text, got a lone surrogate at .* 1"),
        ({"messages": "hello"}, TypeError, "messages must be a list of .* got str"),
        ({"messages": {"role": "user"}}, TypeError, "messages must be a list of .* got dict"),
        ({"messages": []}, ValueError, "at least one message, got an empty list"),
        ({"messages": ["hi"]}, TypeError, r"messages\[0\] must be a dict, got str"),
        ({"messages": [{"content": "a"}]}, ValueError, r"messages\[0\] .*'role', got none"),
        ({"messages": [{"role": "user"}]}, ValueError, r"messages\[0\] .*'content', got none"),
        (
            {"messages": [{"role": "user", "content": [1]}]},
            ValueError,
            r"messages\[0\] must have a text 'content', got \[1\]",
        ),
        (
            {"prompt": "a", "num_beams": 4},
            ValueError,
            "num_beams is not supported, got 4: an ensemble",
        ),
    ],
)
def test_requests(request_, error, message):
    with pytest.raises(error, match=message):
        SpecEM([ONE]).generate(**request_)


def test_bad_input_is_refused_before_anything_is_decoded():
    passes = []
    one = member()
    one.model.register_forward_pre_hook(lambda *_: passes.append(1))
    with pytest.raises(ValueError, match="max_new_tokens"):
        SpecEM([one]).stream(PROMPT, max_new_tokens=0)
    assert not passes
