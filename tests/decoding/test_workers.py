"""Members on different devices work at the same time, and timing changes nothing. Here the members
are all on the CPU and are only given workers of their own."""

import random
import threading
import time

import pytest

from ensemble_decoding import DecodingError, Member, SpecEM
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


def test_all_workers_rest_before_anything_is_put_back(monkeypatch):
    members = with_own_workers(three_families(), monkeypatch)
    run = SpecEM(members, segment_length=4).stream(PROMPT, max_new_tokens=60)
    next(run)
    before = [list(context.ids) for context in run.contexts]
    active = []

    def fail(*_):
        raise OSError("device lost")

    def dawdle(*_):
        active.append(1)
        time.sleep(0.2)
        active.pop()

    members[0].model.register_forward_pre_hook(fail)
    members[2].model.register_forward_pre_hook(dawdle)
    with pytest.raises(DecodingError, match="device lost"):
        next(run)
    assert not active
    for context, ids in zip(run.contexts, before, strict=True):
        assert context.ids == ids
        assert context.cache.length == context.cache.committed == len(ids)


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
