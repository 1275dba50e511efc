"""A round that fails leaves everything as the last commit left it."""

import copy
import pickle

import pytest
import torch

from ensemble_decoding import DecodingError, SpecEM
from ensemble_decoding.context import DecodingContext
from ensemble_decoding.specem_run import SpecEMRun
from ensemble_decoding.text import TextEncoder
from tests.decoding.members_for_tests import PROMPT, three_families

MEMBERS = three_families()
STAGES = [
    (DecodingContext, "draft"),
    (TextEncoder, "encode"),
    (DecodingContext, "verify"),
    (SpecEMRun, "_ending"),
    (DecodingContext, "commit"),
]


def failing(monkeypatch, owner, name, at_call, error, afterwards):
    """Makes the `at_call`-th call fail, before or after it has done its work."""
    original = getattr(owner, name)
    calls = []

    def maybe_fail(*arguments, **keywords):
        calls.append(name)
        result = original(*arguments, **keywords) if afterwards else None
        if len(calls) == at_call:
            raise error
        return result if afterwards else original(*arguments, **keywords)

    monkeypatch.setattr(owner, name, maybe_fail)


@pytest.mark.parametrize("afterwards", [False, True])
@pytest.mark.parametrize(("owner", "name"), STAGES)
def test_a_failure_loses_nothing_committed(monkeypatch, owner, name, afterwards):
    members = MEMBERS
    expected = SpecEM(members, segment_length=4).generate(PROMPT, max_new_tokens=40)
    run = SpecEM(members, segment_length=4).stream(PROMPT, max_new_tokens=40)
    states = []

    def go_on():
        for _ in run:
            states.append([(list(c.ids), c.cache.storage.clone()) for c in run.contexts])

    with monkeypatch.context() as patch:
        # The middle of three members in the third round, the third round's only cut.
        at_call = 3 if name == "_ending" else 8
        failing(patch, owner, name, at_call, OSError("disk on fire"), afterwards)
        with pytest.raises(DecodingError, match=r"round \d+ failed: disk on fire") as error:
            go_on()
    output = error.value.output
    assert output.finish_reason == "error"
    assert len(output.rounds) == len(states) >= 1
    assert expected.text.startswith(output.text)
    assert output.token_ids == [
        ids[: len(o)] for ids, o in zip(expected.token_ids, output.token_ids, strict=True)
    ]
    for context, (ids, storage) in zip(run.contexts, states[-1], strict=True):
        assert context.ids == ids
        assert context.cache.length == context.cache.committed == len(ids)
        kept = slice(0, len(ids))
        assert (context.cache.storage[..., kept, :] == storage[..., kept, :]).all()
    again = SpecEM(members, segment_length=4).generate(PROMPT, max_new_tokens=40)
    assert again.token_ids == expected.token_ids


def test_an_interrupt_stays_one_and_carries_the_output(monkeypatch):
    members = three_families()
    before = [m.model.config._attn_implementation for m in members]
    failing(monkeypatch, DecodingContext, "verify", 8, KeyboardInterrupt(), True)
    with pytest.raises(KeyboardInterrupt) as error:
        SpecEM(members, segment_length=4).generate(PROMPT, max_new_tokens=80)
    assert len(error.value.output.rounds) == 2
    assert error.value.output.text
    assert [m.model.config._attn_implementation for m in members] == before


def test_a_failure_while_the_prompt_is_read_is_one_error(monkeypatch):
    failing(monkeypatch, DecodingContext, "prefill", 2, RuntimeError("out of memory"), False)
    with pytest.raises(DecodingError, match="reading the prompt failed: out of memory") as error:
        SpecEM(three_families()).generate(PROMPT)
    assert error.value.output.text == ""
    assert len(error.value.output.rounds) == 0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_the_error_of_a_run_can_be_sent_and_copied(monkeypatch, copied):
    failing(monkeypatch, DecodingContext, "verify", 8, OSError("disk on fire"), False)
    with pytest.raises(DecodingError) as error:
        SpecEM(MEMBERS, segment_length=4).generate(PROMPT)
    error.value.add_note("in the cellar")
    again = copied(error.value)
    assert (type(again), str(again)) == (DecodingError, str(error.value))
    assert again.output == error.value.output
    assert again.output is not error.value.output
    assert len(again.output.rounds) == 2
    assert again.__notes__ == ["in the cellar"]


def test_an_output_taken_during_a_run_does_not_grow():
    run = SpecEM(MEMBERS, segment_length=4).stream(PROMPT, max_new_tokens=20)
    next(run)
    early = run.output
    known = copy.deepcopy(early)
    for _ in run:
        pass
    assert early == known
    assert len(early.rounds) == 1 < len(run.output.rounds)
    assert early.rounds[0] == run.output.rounds[0]


@pytest.mark.parametrize("inside", [lambda n: n == 0, lambda n: n % 2, lambda n: n > 0])
def test_a_run_goes_in_and_out_of_inference_mode(inside):
    method = SpecEM(MEMBERS, segment_length=4)
    expected = method.generate(PROMPT, max_new_tokens=30)
    run = method.stream(PROMPT, max_new_tokens=30)
    for count in range(100):
        with torch.inference_mode(bool(inside(count))):
            if next(run, None) is None:
                break
    assert run.output.token_ids == expected.token_ids
