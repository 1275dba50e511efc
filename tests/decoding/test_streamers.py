"""`streamer=`: put and end as in transformers, committed text only, and end also on error."""

import threading

import pytest
from transformers import TextIteratorStreamer, TextStreamer
from transformers.generation.streamers import BaseStreamer

from ensemble_decoding import DecodingError, SpecEM
from ensemble_decoding.context import DecodingContext
from tests.decoding.members_for_tests import PROMPT, three_families
from tests.decoding.test_failures import failing


class Recorder(BaseStreamer):
    def __init__(self, fail_at=None):
        self.put_values, self.ends, self.fail_at = [], 0, fail_at

    def put(self, value):
        if len(self.put_values) == self.fail_at:
            raise OSError("nobody listens")
        self.put_values.append(value.tolist())

    def end(self):
        self.ends += 1


def test_a_streamer_of_ids_gets_prompt_and_committed_ids():
    members, recorder = three_families(), Recorder()
    output = SpecEM(members).generate(PROMPT, max_new_tokens=40, streamer=recorder)
    prompt, *rest = recorder.put_values
    assert prompt == [members[0].encode_prompt(PROMPT)]
    assert [token for ids in rest for token in ids] == output.token_ids[0]
    assert recorder.ends == 1


@pytest.mark.parametrize("skip_prompt", [True, False])
def test_a_text_streamer_shows_the_text_of_the_output(capsys, skip_prompt):
    members = three_families()
    streamer = TextStreamer(members[0].tokenizer, skip_prompt=skip_prompt)
    output = SpecEM(members).generate(
        PROMPT, max_new_tokens=40, stop_strings="e", streamer=streamer
    )
    assert capsys.readouterr().out == ("" if skip_prompt else PROMPT) + output.text + "\n"


def test_an_iterator_streamer_in_a_thread():
    members = three_families()
    streamer = TextIteratorStreamer(members[0].tokenizer, skip_prompt=True, timeout=60)
    options = {"max_new_tokens": 40, "streamer": streamer}
    outputs = []
    thread = threading.Thread(
        target=lambda: outputs.append(SpecEM(members).generate(PROMPT, **options))
    )
    thread.start()
    text = "".join(streamer)
    thread.join()
    assert text == outputs[0].text


def test_end_comes_also_after_an_error(monkeypatch):
    recorder = Recorder()
    failing(monkeypatch, DecodingContext, "verify", 5, OSError("disk on fire"), False)
    with pytest.raises(DecodingError, match="disk on fire"):
        SpecEM(three_families(), segment_length=4).generate(PROMPT, streamer=recorder)
    assert recorder.ends == 1


def test_a_streamer_that_fails_loses_nothing_committed():
    recorder = Recorder(fail_at=3)
    with pytest.raises(DecodingError, match="streamer failed: nobody listens") as error:
        SpecEM(three_families(), segment_length=4).generate(PROMPT, streamer=recorder)
    assert len(error.value.output.rounds) == 3
    assert recorder.ends == 1


def test_a_run_closed_early_ends_its_streamer():
    recorder = Recorder()
    run = SpecEM(three_families()).stream(PROMPT, streamer=recorder)
    next(run)
    run.close()
    assert recorder.ends == 1


def test_what_is_no_streamer_is_refused():
    with pytest.raises(TypeError, match="streamer must have put and end, got list"):
        SpecEM(three_families()).generate(PROMPT, streamer=[])


class Ending(Recorder):
    """Fails in `end`."""

    def end(self):
        super().end()
        raise OSError("the line is dead")


def test_a_streamer_that_fails_at_the_end_loses_nothing():
    streamer = Ending()
    expected = SpecEM(three_families()).generate(PROMPT, max_new_tokens=30)
    members = three_families()
    with pytest.raises(DecodingError, match="streamer failed: the line is dead") as error:
        SpecEM(members).generate(PROMPT, max_new_tokens=30, streamer=streamer)
    assert error.value.output.token_ids == expected.token_ids
    assert error.value.output.finish_reason == "error"
    assert streamer.ends == 1
    assert {one.model.config._attn_implementation for one in members} == {"sdpa"}


def test_a_streamer_that_fails_at_the_end_hides_no_other_failure(monkeypatch):
    streamer = Ending()
    failing(monkeypatch, DecodingContext, "verify", 5, OSError("disk on fire"), False)
    with pytest.raises(DecodingError, match="disk on fire") as error:
        SpecEM(three_families(), segment_length=4).generate(PROMPT, streamer=streamer)
    assert len(error.value.output.rounds) == 1
    assert streamer.ends == 1
