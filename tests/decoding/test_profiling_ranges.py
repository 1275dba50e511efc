"""The ranges that profilers see: each stage of each method, in order, within its round."""

from itertools import pairwise

import pytest
from torch.profiler import ProfilerActivity, profile

from ensemble_decoding import SAFE, CoSD, SpecEM, TokenEnsemble
from ensemble_kernels import profiling
from tests.decoding.members_for_tests import PROMPT, member, three_families

MEMBERS = three_families()[:2]
METHODS = {
    "specem": (SpecEM(MEMBERS), ["draft", "encode", "verify", "commit"]),
    "cosd": (CoSD(MEMBERS[0], MEMBERS[1]), ["draft", "verify", "decide", "commit"]),
    "safe": (SAFE(MEMBERS[0], MEMBERS[1:]), ["draft", "verify", "mix", "commit"]),
    "always": (
        SAFE(MEMBERS[0], MEMBERS[1:], ensemble_when="always"),
        ["verify", "mix", "commit"],
    ),
    "union": (TokenEnsemble(MEMBERS, alignment="union"), ["mix", "encode", "commit"]),
}
STAGES = {stage for _, stages in METHODS.values() for stage in stages}


def ranges(profiled):
    """(name, begin, end) of all ranges and operators, in the order in which they begin."""
    events = [(e.name, e.time_range.start, e.time_range.end) for e in profiled.events()]
    return sorted(events, key=lambda event: (event[1], -event[2]))


@pytest.mark.parametrize("method", METHODS)
def test_a_round_shows_its_stages_in_order(method):
    ensemble, stages = METHODS[method]
    run = ensemble.stream(PROMPT, max_new_tokens=20)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        next(run)
    run.close()
    seen = ranges(profiled)
    names = [name for name, _, _ in seen]
    assert names.count("prefill") == names.count("round") == 1
    assert names.index("prefill") < names.index("round")
    _, begin, end = seen[names.index("round")]
    within = [event for event in seen if event[0] in STAGES]
    assert [name for name, _, _ in within] == stages
    assert all(begin <= first and last <= end for _, first, last in within)
    # One begins when the one before is over.
    assert all(a[2] <= b[1] for a, b in pairwise(within))


@pytest.mark.parametrize(
    ("method", "stage", "operator"),
    [
        ("specem", "verify", "segment_attention"),
        ("specem", "verify", "token_statistics"),
        ("cosd", "verify", "token_statistics"),
        ("safe", "verify", "segment_attention"),
        ("union", "mix", "mix_distributions"),
    ],
)
def test_operators_show_within_their_stage(method, stage, operator):
    run = METHODS[method][0].stream(PROMPT, max_new_tokens=20)
    next(run)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        next(run)
    run.close()
    seen = ranges(profiled)
    begin, end = next((first, last) for name, first, last in seen if name == stage)
    calls = [first for name, first, _ in seen if name == f"ensemble_kernels::{operator}"]
    assert any(begin <= first <= end for first in calls)


def test_a_failing_round_closes_its_ranges(monkeypatch):
    one = member()
    run = SpecEM([one, one]).stream(PROMPT, max_new_tokens=20)
    next(run)
    monkeypatch.setattr(run, "_verify", lambda candidates: 1 / 0)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        with pytest.raises(RuntimeError, match="division by zero"):
            next(run)
        with profiling.annotate("behind"):
            pass
    seen = ranges(profiled)
    ends = {name: last for name, _, last in seen}
    behind = next(first for name, first, _ in seen if name == "behind")
    assert ends["round"] <= behind
    assert ends["verify"] <= behind


def test_without_a_profiler_there_is_nothing():
    assert profiling.annotate("a") is profiling.annotate("b")
