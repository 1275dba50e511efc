"""The ranges that profilers see: each stage of each method, in order, within its round."""

import threading
import time
from itertools import pairwise

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from ensemble_decoding import SAFE, CoSD, SpecEM, TokenEnsemble
from ensemble_kernels import profiling, token_statistics
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


@pytest.mark.parametrize("method", METHODS)
def test_a_clock_knows_what_each_stage_took(method):
    ensemble, stages = METHODS[method]
    start = time.perf_counter()
    with profiling.timed_ranges() as clock:
        output = ensemble.generate(PROMPT, max_new_tokens=6)
    whole = time.perf_counter() - start
    assert all(taken >= 0 for taken in clock.seconds.values())
    assert sum(clock.seconds.values()) <= whole
    assert {path[1] for path in clock.seconds if path[0] == "round" and path[1:]} == set(stages)
    assert clock.calls["round",] == len(output.rounds)
    # Nothing that is on the clock is left out of it: the passes are all there.
    passes = sum(n for path, n in clock.calls.items() if path[-1] == "forward")
    assert passes == sum(usage.forward_passes for usage in output.usage)
    taken = sum(s for path, s in clock.seconds.items() if "forward" in path)
    assert 0 < taken <= sum(usage.seconds for usage in output.usage)
    # Behind the block nothing is timed.
    calls = dict(clock.calls)
    ensemble.generate(PROMPT, max_new_tokens=2)
    assert clock.calls == calls


def test_seconds_of_a_range_are_without_those_inside(monkeypatch):
    # Each look at the time finds it twice as late as the one before.
    looks = iter([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0])
    monkeypatch.setattr(profiling.time, "perf_counter", lambda: next(looks))
    with profiling.timed_ranges() as clock:
        with profiling.annotate("outer"):
            for _ in range(2):
                with profiling.annotate("inner"):
                    pass
        with pytest.raises(ValueError, match="x"), profiling.annotate("outer"):
            raise ValueError("x")
    monkeypatch.undo()
    assert clock.calls == {("outer",): 2, ("outer", "inner"): 2}
    inner = (4 - 2) + (16 - 8)
    assert clock.seconds == {("outer", "inner"): inner, ("outer",): (32 - 1 - inner) + (128 - 64)}


def test_each_thread_has_ranges_of_its_own():
    def work():
        with profiling.annotate("work"):
            pass

    with profiling.timed_ranges() as clock, profiling.annotate("outer"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert set(clock.calls) == {("work",), ("outer",)}


def test_one_clock_at_a_time():
    with profiling.timed_ranges():
        with pytest.raises(RuntimeError, match="one clock at a time"), profiling.timed_ranges():
            pass
        assert profiling.annotate("a") is not profiling.annotate("b")
    assert profiling.annotate("a") is profiling.annotate("b")


def test_operators_are_on_the_clock():
    with profiling.timed_ranges() as clock, profiling.annotate("around"):
        token_statistics(torch.randn(2, 9), torch.tensor([1, 2]), vocab_size=9)
    assert clock.calls == {("around", "token_statistics"): 1, ("around",): 1}
