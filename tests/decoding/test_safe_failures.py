"""What a failure in the middle of one of SAFE's rounds leaves, and what ends a run."""

import pytest
import torch
from transformers import TextStreamer

from ensemble_decoding import SAFE, DecodingError
from ensemble_decoding.context import DecodingContext
from ensemble_decoding.drafted_run import DraftedRun
from ensemble_decoding.drafter import Drafter
from ensemble_decoding.forward_passes import ForwardPasses
from ensemble_decoding.reader import Reader
from ensemble_decoding.safe_vote import SafeVote
from ensemble_decoding.text_follower import TextFollower
from tests.decoding.members_for_tests import PROMPT
from tests.decoding.test_failures import failing
from tests.decoding.test_safe_steps import KINDS, ensemble
from tests.decoding.test_specem import assert_cache_is_a_fresh_prefill
from tests.decoding.test_streamers import Recorder
from tests.decoding.test_workers import with_own_workers

NAMES = KINDS["bytes, pieces, German, the same"]
MEMBERS = ensemble(NAMES)
DRAFTER, *VERIFIERS = MEMBERS
OPTIONS = {"max_new_tokens": 30, "do_sample": True, "seed": 3, "temperature": 1.5}
STAGES = {
    "safe": [
        (ForwardPasses, "decode", 12),
        (DecodingContext, "read", 7),
        (Drafter, "accept", 3),
        (TextFollower, "encode", 9),
        (Reader, "keep", 14),
        (SafeVote, "mix", 4),
        (DraftedRun, "_ending", 3),
    ],
    "always": [
        (DecodingContext, "append", 9),
        (Drafter, "accept", 3),
        (Reader, "last", 8),
        (TextFollower, "encode", 9),
        (SafeVote, "mix", 4),
    ],
}


def everything(run):
    return [
        (list(c.ids), c.cache.storage[..., : len(c.ids), :].clone(), run.output.token_ids[j])
        for j, c in enumerate(run.contexts)
    ]


@pytest.mark.parametrize("afterwards", [False, True])
@pytest.mark.parametrize(
    ("when", "stage"), [(when, stage) for when in STAGES for stage in STAGES[when]], ids=str
)
def test_a_failure_loses_nothing_committed(monkeypatch, when, stage, afterwards):
    """What a reader had read of text that is no more is not read again by itself, so that its
    context may be shorter than it was."""
    method = SAFE(DRAFTER, VERIFIERS, ensemble_when=when)
    expected = method.generate(PROMPT, **OPTIONS)
    run = method.stream(PROMPT, **OPTIONS)
    states = []

    def go_on():
        for _ in run:
            states.append(everything(run))

    owner, name, at_call = stage
    with monkeypatch.context() as patch:
        failing(patch, owner, name, at_call, OSError("disk on fire"), afterwards)
        with pytest.raises(DecodingError, match=r"round \d+ failed: disk on fire") as error:
            go_on()
    output = error.value.output
    assert output.finish_reason == "error"
    assert len(output.rounds) == len(states) >= 1
    assert expected.text.startswith(output.text)
    for j, (context, (ids, storage, written)) in enumerate(
        zip(run.contexts, states[-1], strict=True)
    ):
        left = len(context.ids)
        assert context.ids == ids[:left]
        assert j or left == len(ids)
        assert context.cache.length == context.cache.committed == left
        assert (context.cache.storage[..., :left, :] == storage[..., :left, :]).all()
        assert_cache_is_a_fresh_prefill(context)
        assert output.token_ids[j] == written
    assert method.generate(PROMPT, **OPTIONS).token_ids == expected.token_ids


@pytest.mark.parametrize("when", ["safe", "always"])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_nan_logits_name_the_member(when, place):
    members = ensemble(NAMES)
    passes = []

    def spoil(module, arguments, keywords, output):
        passes.append(1)
        if len(passes) > 6:
            output.logits[:, -1] = torch.nan
        return output

    members[place].model.register_forward_hook(spoil, with_kwargs=True)
    method = SAFE(members[0], members[1:], ensemble_when=when)
    with pytest.raises(DecodingError, match=f"member '{members[place].name}' gave .*NaN") as error:
        method.generate(PROMPT, max_new_tokens=100)
    assert error.value.output.text


def test_a_member_that_gives_nothing_any_probability():
    members = ensemble(NAMES[:2])

    def spoil(module, arguments, keywords, output):
        output.logits[:] = -torch.inf
        return output

    members[1].model.register_forward_hook(spoil, with_kwargs=True)
    with pytest.raises(DecodingError, match=f"member '{members[1].name}' gave"):
        SAFE(members[0], members[1:]).generate(PROMPT, max_new_tokens=10)


@pytest.mark.parametrize("when", ["safe", "always"])
def test_members_on_workers_of_their_own_write_the_same(monkeypatch, when):
    expected = SAFE(DRAFTER, VERIFIERS, ensemble_when=when).generate(PROMPT, **OPTIONS)
    drafter, *verifiers = with_own_workers(ensemble(NAMES), monkeypatch)
    output = SAFE(drafter, verifiers, ensemble_when=when).generate(PROMPT, **OPTIONS)
    assert output.token_ids == expected.token_ids
    for got, known in zip(output.rounds, expected.rounds, strict=True):
        assert got.decisions == known.decisions


def test_runs_that_overlap_do_not_meet():
    method = SAFE(DRAFTER, VERIFIERS)
    expected = [method.generate(p, max_new_tokens=25).token_ids for p in (PROMPT, "A model ")]
    runs = [method.stream(p, max_new_tokens=25) for p in (PROMPT, "A model ")]
    while any([next(run, None) is not None for run in runs]):
        pass
    assert [run.output.token_ids for run in runs] == expected


@pytest.mark.parametrize("when", ["safe", "always", "never"])
def test_streamers_get_what_is_committed(capsys, when):
    recorder = Recorder()
    method = SAFE(DRAFTER, VERIFIERS, ensemble_when=when)
    output = method.generate(PROMPT, max_new_tokens=20, streamer=recorder)
    prompt, *rest = recorder.put_values
    assert prompt == [DRAFTER.encode_prompt(PROMPT)]
    assert [token for ids in rest for token in ids] == output.token_ids[0]
    assert recorder.ends == 1
    streamer = TextStreamer(DRAFTER.tokenizer, skip_prompt=True)
    method.generate(PROMPT, max_new_tokens=20, streamer=streamer)
    assert capsys.readouterr().out == output.text + "\n"


@pytest.mark.parametrize("when", ["safe", "always", "never"])
def test_stop_strings_cut_text_ids_and_caches_alike(when):
    method = SAFE(DRAFTER, VERIFIERS, ensemble_when=when)
    whole = method.generate(PROMPT, max_new_tokens=50).text
    for stop in {whole[10:12], whole[20:21], whole[7:11]}:
        run = method.stream(PROMPT, max_new_tokens=50, stop_strings=stop)
        pieces = [piece.text for piece in run]
        output = run.output
        end = whole.index(stop) + len(stop)
        assert "".join(pieces) == output.text == whole[:end]
        assert output.finish_reason == "stop"
        for context, ids in zip(run.contexts, output.token_ids, strict=True):
            assert run.data.startswith(context.member.table.spell(ids))
            assert context.cache.length <= len(context.ids)


@pytest.mark.parametrize("when", ["safe", "always", "never"])
@pytest.mark.parametrize("full", [0, 1, 3])
@pytest.mark.parametrize("room", [1, 2, 9])
def test_a_full_context_ends_a_run_and_is_named(when, full, room):
    members = ensemble(NAMES)
    one = members[full]
    one.context_length = len(one.encode_prompt(PROMPT)) + room
    run = SAFE(members[0], members[1:], ensemble_when=when).stream(PROMPT, max_new_tokens=60)
    for _ in run:
        for context in run.contexts:
            assert len(context.ids) <= (context.member.context_length or 1000)
    output = run.output
    free = SAFE(*_free(members), ensemble_when=when).generate(PROMPT, max_new_tokens=60)
    if when == "never" and full:
        assert output.full_context is None
        assert output.token_ids == free.token_ids
        return
    assert (output.finish_reason, output.full_context) == ("length", one.name)
    assert free.text.startswith(output.text)
    if full == 0:
        assert room - 3 <= len(output.token_ids[0]) <= room + 1


def _free(members):
    for one in members:
        one.context_length = None
    return members[0], members[1:]


def test_criteria_and_end_of_text_lists_end_a_run():
    method = SAFE(DRAFTER, VERIFIERS)
    whole = method.generate(PROMPT, max_new_tokens=30)
    prompt = len(DRAFTER.encode_prompt(PROMPT))
    criteria = [lambda ids, scores: ids.shape[1] == prompt + 9]
    stopped = method.generate(PROMPT, stopping_criteria=criteria)
    assert (stopped.token_ids[0], stopped.finish_reason) == (whole.token_ids[0][:9], "stop")
    ends = [[whole.token_ids[0][12]], *([one.tokenizer.eos_token_id] for one in VERIFIERS)]
    ended = method.generate(PROMPT, eos_token_id=ends, max_new_tokens=30)
    assert ended.finish_reason == "stop"
    for ids, mine in zip(ended.token_ids, ends, strict=True):
        assert not set(ids[:-1]) & set(mine)
