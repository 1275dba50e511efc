"""Models are switched while runs use them, wherever and in whatever order the runs end."""

import gc
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest

from ensemble_decoding import DecodingError, SpecEM
from ensemble_decoding.attention_switch import NAME, segment_attention_active
from tests.decoding.members_for_tests import PROMPT, member


def in_time(task):
    """Runs a task on a thread of its own, which fails rather than hangs where it waits for ever."""
    thread = threading.Thread(target=task, daemon=True)
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive(), "deadlock"


def collecting_while_switching(model, monkeypatch):
    """The garbage collector runs in the middle of each switch of the model."""
    switch = model.set_attn_implementation

    def collect_and_switch(name):
        gc.collect()
        switch(name)

    monkeypatch.setattr(model, "set_attn_implementation", collect_and_switch)


def abandon_a_run(one):
    run = SpecEM([one], segment_length=2).stream(PROMPT, max_new_tokens=40)
    next(run)
    assert one.model.config._attn_implementation == NAME
    run.itself = run  # only the garbage collector finds it
    del run


@pytest.mark.parametrize("same_model", [False, True])
def test_an_abandoned_run_that_is_collected_during_a_switch(monkeypatch, same_model):
    abandoned = member(seed=1)
    other = abandoned if same_model else member(seed=2)
    gc.collect()
    gc.disable()
    try:
        abandon_a_run(abandoned)
        collecting_while_switching(other.model, monkeypatch)
        outputs = []
        in_time(lambda: outputs.append(SpecEM([other]).generate(PROMPT, max_new_tokens=8)))
        assert len(outputs[0].token_ids[0]) == 8
        gc.collect()
    finally:
        gc.enable()
    assert abandoned.model.config._attn_implementation == "sdpa"
    assert other.model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("leave", ["break", "drop", "error"])
def test_an_abandoned_run_ends_without_the_garbage_collector(leave):
    one, ends = member(seed=1), []
    streamer = SimpleNamespace(put=lambda ids: None, end=lambda: ends.append(1))
    options = {"max_new_tokens": 40, "streamer": streamer}
    gc.collect()
    gc.disable()
    try:
        if leave == "drop":
            next(SpecEM([one], segment_length=2).stream(PROMPT, **options))
        else:
            with suppress(KeyError):
                for _ in SpecEM([one], segment_length=2).stream(PROMPT, **options):
                    assert one.model.config._attn_implementation == NAME
                    if leave == "break":
                        break
                    raise KeyError
        assert one.model.config._attn_implementation == "sdpa"
        assert ends == [1]
    finally:
        gc.enable()


def test_a_run_that_ends_while_another_thread_switches_is_settled_by_that_thread(monkeypatch):
    first, second = member(seed=1).model, member(seed=2).model
    switching, go_on = threading.Event(), threading.Event()
    switch = second.set_attn_implementation

    def slowly(name):
        switching.set()
        assert go_on.wait(60)
        switch(name)

    def use_second():
        with segment_attention_active(second):
            pass

    active = segment_attention_active(first)
    active.__enter__()
    monkeypatch.setattr(second, "set_attn_implementation", slowly)
    thread = threading.Thread(target=use_second, daemon=True)
    thread.start()
    assert switching.wait(60)
    in_time(lambda: active.__exit__(None, None, None))
    go_on.set()
    thread.join(60)
    assert not thread.is_alive()
    assert {first.config._attn_implementation, second.config._attn_implementation} == {"sdpa"}


def test_a_switch_that_fails_leaves_the_model_as_it_was(monkeypatch):
    model = member(seed=1).model

    def fail(name):
        raise OSError("no such attention")

    with monkeypatch.context() as patch:
        patch.setattr(model, "set_attn_implementation", fail)
        with pytest.raises(OSError, match="no such"), segment_attention_active(model):
            pass
    with segment_attention_active(model):
        assert model.config._attn_implementation == NAME
    assert model.config._attn_implementation == "sdpa"


def test_attention_that_is_changed_during_a_run_ends_it_and_stays():
    one, options = member(seed=1), {"max_new_tokens": 12}
    expected = SpecEM([one], segment_length=2).generate(PROMPT, **options)
    run = SpecEM([one], segment_length=2).stream(PROMPT, **options)
    begun = next(run).text
    one.model.set_attn_implementation("eager")
    with pytest.raises(DecodingError, match=r"attention .* of member 'llama-1' must stay as it is"):
        next(run)
    assert run.output.text == begun
    assert one.model.config._attn_implementation == "eager"
    again = SpecEM([one], segment_length=2).generate(PROMPT, **options)
    assert again.token_ids == expected.token_ids
    assert one.model.config._attn_implementation == "eager"


def test_a_new_run_makes_good_for_attention_that_was_changed_during_another():
    one, options = member(seed=1), {"max_new_tokens": 12}
    expected = SpecEM([one], segment_length=2).generate(PROMPT, **options)
    run = SpecEM([one], segment_length=2).stream(PROMPT, **options)
    next(run)
    one.model.set_attn_implementation("eager")
    again = SpecEM([one], segment_length=2).generate(PROMPT, **options)
    assert one.model.config._attn_implementation == NAME  # the first still uses it
    assert [again.token_ids, run.finished().token_ids] == [expected.token_ids] * 2
    assert one.model.config._attn_implementation == "eager"
