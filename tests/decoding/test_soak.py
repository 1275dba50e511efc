"""A thousand rounds with faults at random stages: nothing committed is lost, nothing piles up."""

import gc
import random

import pytest
import torch

from ensemble_decoding import DecodingError, SpecEM
from ensemble_decoding.context import DecodingContext
from ensemble_decoding.forward_passes import ForwardPasses
from ensemble_decoding.specem_run import SpecEMRun
from ensemble_decoding.text import TextEncoder
from tests.decoding.members_for_tests import PROMPT, three_families
from tests.decoding.test_specem import assert_cache_is_a_fresh_prefill

STAGES = [
    (DecodingContext, "draft"),
    (TextEncoder, "encode"),
    (DecodingContext, "verify"),
    (SpecEMRun, "_fed_back"),
    (SpecEMRun, "_ending"),
    (DecodingContext, "commit"),
    (ForwardPasses, "decode"),
]
ROUNDS = 1000


class Faults:
    """Makes any stage fail now and then, before or after it has done its work."""

    def __init__(self, monkeypatch, chance):
        self.random, self.chance, self.count = random.Random(0), chance, 0
        for owner, name in STAGES:
            monkeypatch.setattr(owner, name, self.unreliable(getattr(owner, name)))

    def unreliable(self, original):
        def call(*arguments, **keywords):
            if self.random.random() < self.chance:
                self.count += 1
                if self.random.random() < 0.5:
                    original(*arguments, **keywords)
                raise self.random.choice([OSError("fault"), KeyboardInterrupt(), MemoryError()])
            return original(*arguments, **keywords)

        return call


def live_bytes():
    gc.collect()
    # Other tests may have left fake tensors behind, which have no memory.
    tensors = [o for o in gc.get_objects() if type(o) in (torch.Tensor, torch.nn.Parameter)]
    return sum(
        {
            t.data_ptr(): t.untyped_storage().nbytes()
            for t in tensors
            if t.device.type == "cpu" and torch._C._has_storage(t)
        }.values()
    )


@pytest.mark.slow
def test_a_thousand_rounds_with_random_faults(monkeypatch):
    members = three_families(torch.float64)
    method = SpecEM(members, segment_length=3)
    faults = Faults(monkeypatch, chance=0.005)
    rounds, memory, longest = 0, [], 0
    while rounds < ROUNDS:
        run = method.stream(PROMPT, max_new_tokens=60)
        committed = [[] for _ in members]
        try:
            for _ in run:
                rounds += 1
                committed = [list(context.ids) for context in run.contexts]
        except (DecodingError, KeyboardInterrupt) as error:
            output = error.output
            assert output.finish_reason == "error"
            assert len(output.rounds) == len(run.trace)
            if any(committed):
                assert [context.ids for context in run.contexts] == committed
                assert output.token_ids == [c.response_ids for c in run.contexts]
        for context in run.contexts:
            if not any(committed):
                continue  # the prompt was not read
            assert context.cache.length == context.cache.committed == len(context.ids)
            longest = max(longest, len(context.ids))
            # Doubling from 64: never more than twice what was ever staged.
            assert context.cache.capacity <= 2 * (len(context.ids) + 64)
        if any(committed) and rounds % 10 == 0:
            for context in run.contexts:
                assert_cache_is_a_fresh_prefill(context)
        assert {m.model.config._attn_implementation for m in members} == {"sdpa"}
        del run, context
        memory.append(live_bytes())
    assert faults.count > 20
    half = len(memory) // 2
    assert max(memory[half:]) <= 1.02 * max(memory[:half])
