"""Members on different devices work at the same time, and timing changes nothing. Here the members
are all on the CPU and are only given workers of their own."""

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ensemble_decoding import DecodingError, Member, SpecEM
from ensemble_decoding.context import DecodingContext
from ensemble_decoding.workers import each_in_turn_or_at_once
from tests.decoding.members_for_tests import PROMPT, three_families


def with_own_workers(members, monkeypatch):
    names = {id(member.model): f"worker {j}" for j, member in enumerate(members)}
    monkeypatch.setattr(Member, "worker", property(lambda self: names[id(self.model)]))
    return members


def scores(output):
    return [
        (c.data, c.token_ids, c.log_likelihoods, c.shares, c.score)
        for r in output.rounds
        for c in r.candidates
    ]


@pytest.mark.parametrize("seed", range(3))
def test_the_result_does_not_depend_on_timing(monkeypatch, seed):
    members = three_families()
    expected = SpecEM(members, segment_length=4).generate(PROMPT, max_new_tokens=30)
    delays = random.Random(seed)
    for member in members:
        member.model.register_forward_pre_hook(
            lambda *_: time.sleep(delays.choice([0, 0, 0.001, 0.01]))
        )
    with_own_workers(members, monkeypatch)
    output = SpecEM(members, segment_length=4).generate(PROMPT, max_new_tokens=30)
    assert output.token_ids == expected.token_ids
    assert scores(output) == scores(expected)


def test_members_draft_and_verify_at_the_same_time(monkeypatch):
    members = with_own_workers(three_families()[:2], monkeypatch)
    barrier = threading.Barrier(2)
    met = {member.name: [] for member in members}

    def meeting(passes):
        def meet(module, arguments, keywords):
            # The prompt, the first drafted token and the packed passes wait for the other
            # member's. Were they to take turns, the first would wait in vain.
            count = keywords["input_ids"].shape[1]
            if count > 1 or len(passes) == 1:
                barrier.wait(timeout=20)
            passes.append(count)

        return meet

    for member in members:
        member.model.register_forward_pre_hook(meeting(met[member.name]), with_kwargs=True)
    output = SpecEM(members, segment_length=4).generate(PROMPT, max_new_tokens=4)
    for passes in met.values():
        assert passes[:2] == [passes[0], 1]
        assert sum(count > 1 for count in passes) == 1 + len(output.rounds)


def test_one_worker_starts_no_thread():
    names = set()
    for member in (members := three_families()):
        member.model.register_forward_pre_hook(
            lambda *_: names.add(threading.current_thread().name)
        )
    SpecEM(members).generate(PROMPT, max_new_tokens=12)
    assert names == {threading.main_thread().name}


class Dawdler:
    """A hook before a forward pass that the first time works on until the test goes on, or for a
    second if the test waits for it, as it should."""

    def __init__(self):
        self.begun, self.gone_on, self.finished = (threading.Event() for _ in range(3))

    def __call__(self, *_):
        if not self.begun.is_set():
            self.begun.set()
            self.gone_on.wait(1)
            self.finished.set()


def committed(run):
    return [
        (list(c.ids), c.cache.committed, c.cache.storage[..., : c.cache.committed, :].clone())
        for c in run.contexts
    ]


def assert_as_committed(run, before):
    for context, (ids, length, storage) in zip(run.contexts, before, strict=True):
        assert context.ids == ids
        assert context.cache.length == context.cache.committed == length == len(ids)
        assert (context.cache.storage[..., :length, :] == storage).all()


@pytest.mark.parametrize("error", [OSError("device lost"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("failing", range(3))
def test_all_workers_rest_before_anything_is_put_back(monkeypatch, failing, error):
    members = with_own_workers(three_families(), monkeypatch)
    method = SpecEM(members, segment_length=4)
    expected = method.generate(PROMPT, max_new_tokens=60)
    run = method.stream(PROMPT, max_new_tokens=60)
    first = next(run)
    before, dawdler = committed(run), Dawdler()
    put_back = []
    restore = DecodingContext.restore

    def noted(self, snapshot):
        put_back.append(dawdler.finished.is_set())
        restore(self, snapshot)

    def fail(*_):
        assert dawdler.begun.wait(20)
        raise error

    monkeypatch.setattr(DecodingContext, "restore", noted)
    hooks = [
        members[failing].model.register_forward_pre_hook(fail),
        members[failing - 1].model.register_forward_pre_hook(dawdler),
    ]
    with pytest.raises((DecodingError, KeyboardInterrupt)) as raised:
        next(run)
    rested = dawdler.finished.is_set()
    dawdler.gone_on.set()
    assert rested
    assert put_back == [True] * 3
    assert error in (raised.value, raised.value.__cause__)
    assert raised.value.output.text == first.text
    assert len(raised.value.output.rounds) == 1
    assert_as_committed(run, before)
    for hook in hooks:
        hook.remove()
    assert method.generate(PROMPT, max_new_tokens=60).token_ids == expected.token_ids


def interrupts(dawdler, times):
    """A hook that interrupts the main thread while that waits for the workers."""

    def interrupt(*arguments):
        if not dawdler.begun.is_set():
            for _ in range(times):
                time.sleep(0.1)
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            dawdler()

    return interrupt


def run_that_is_interrupted(times):
    """In a process of its own: an interrupt that came too late would end the test session."""
    members = with_own_workers(three_families(), pytest.MonkeyPatch())
    method = SpecEM(members, segment_length=4)
    expected = method.generate(PROMPT, max_new_tokens=60)
    run = method.stream(PROMPT, max_new_tokens=60)
    first = next(run)
    before, dawdler = committed(run), Dawdler()
    members[1].model.register_forward_pre_hook(interrupts(dawdler, times))
    with pytest.raises(KeyboardInterrupt) as raised:
        next(run)
    rested = dawdler.finished.is_set()
    dawdler.gone_on.set()
    assert rested
    assert raised.value.output.text == first.text
    assert len(raised.value.output.rounds) == 1
    assert_as_committed(run, before)
    assert method.generate(PROMPT, max_new_tokens=60).token_ids == expected.token_ids


def tasks_that_are_interrupted(times):
    dawdler, begun = Dawdler(), []
    tasks = [interrupts(dawdler, times), lambda: begun.append(1), lambda: 1 / 0]
    with pytest.raises(KeyboardInterrupt):
        each_in_turn_or_at_once(tasks, list("aab"))
    rested = dawdler.finished.is_set()
    dawdler.gone_on.set()
    assert rested
    assert not begun


def test_an_interrupt_of_the_main_thread_waits_for_the_workers():
    children = (run_that_is_interrupted, tasks_that_are_interrupted)
    calls = [f"tests.{child.__name__}({times})" for child in children for times in (1, 3)]
    # What a shell starts in the background ignores interrupts, and so do its children.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = "; ".join([heed, f"import {__name__} as tests", *calls])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_no_gradient_is_recorded_in_a_worker(monkeypatch):
    members = with_own_workers(three_families(), monkeypatch)
    run = SpecEM(members).stream(PROMPT, max_new_tokens=12)
    for _ in run:
        pass
    assert not any(context.cache.storage.requires_grad for context in run.contexts)


def test_the_first_tasks_error_is_raised_and_results_keep_their_order():
    def task(value, error=None):
        def run():
            if error is not None:
                time.sleep(0.01 * value)
                raise error
            return value

        return run

    assert each_in_turn_or_at_once([task(i) for i in range(5)], list("ababc")) == list(range(5))
    tasks = [task(1), task(5, OSError("first")), task(0, KeyError("second"))]
    with pytest.raises(OSError, match="first"):
        each_in_turn_or_at_once(tasks, list("abc"))
