"""Bad members and requests: each message names the argument, what was expected and what came."""

import pytest

from ensemble_decoding import SpecEM
from tests.decoding.members_for_tests import member

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


def test_verifiers():
    with pytest.raises(TypeError, match=r"verifiers\[1\] must be a Member, got str"):
        SpecEM([ONE], verifiers=[ONE, "b"])


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        ({}, ValueError, "exactly one of prompt and messages must be given, got neither"),
        ({"prompt": "a", "messages": []}, ValueError, "exactly one of .* got both"),
        ({"prompt": ["a"]}, TypeError, "prompt must be a str, got list"),
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
    ],
)
def test_requests(request_, error, message):
    with pytest.raises(error, match=message):
        SpecEM([ONE]).generate(**request_)
