"""Bad options of CoSD, who takes part, how a run ends, and what a failure leaves."""

import inspect
import math

import pytest
import torch
from transformers import TextStreamer

from ensemble_decoding import CoSD, DecodingError, Member
from ensemble_decoding.cosd_run import CoSDRun
from ensemble_decoding.drafter import Drafter
from ensemble_decoding.forward_passes import ForwardPasses
from ensemble_decoding.reader import Reader
from ensemble_decoding.tree import Node, Tree
from tests.decoding.members_for_tests import PROMPT, member, saved, three_families
from tests.decoding.test_cosd import METHOD
from tests.decoding.test_failures import failing
from tests.decoding.test_specem import own_greedy
from tests.decoding.test_streamers import Recorder
from tests.decoding.test_workers import with_own_workers

MEMBERS = three_families()
DRAFT, *ASSISTANTS = MEMBERS
METHODS = [{}, {"select": "cascade", "unsure_below": 0.08}, {"second_look": True}]
BAD = [
    ({"draft_length": 0}, ValueError, "draft_length must be at least 1, got 0"),
    ({"draft_length": 2.0}, TypeError, "draft_length must be an int, got float"),
    ({"draft_length": True}, TypeError, "draft_length must be an int, got bool"),
    ({"alpha": 1.5}, ValueError, "alpha must be from 0 to 1, got 1.5"),
    ({"alpha": math.nan}, ValueError, "alpha must be from 0 to 1, got nan"),
    ({"alpha": "0.5"}, TypeError, "alpha must be a number, got str"),
    ({"alpha": True}, TypeError, "alpha must be a number, got bool"),
    ({"beta": -0.1}, ValueError, "beta must be finite and at least 0, got -0.1"),
    ({"beta": math.inf}, ValueError, "beta must be finite and at least 0, got inf"),
    ({"beta": math.nan}, ValueError, "beta must be finite and at least 0, got nan"),
    ({"beta": None}, TypeError, "beta must be a number, got NoneType"),
    ({"tree": {"nodes": []}}, TypeError, "tree must be a Tree, got dict"),
    ({"tree": "tree.json"}, TypeError, "tree must be a Tree, got str"),
    ({"select": "best"}, ValueError, "select must be one of most_confident, .* got 'best'"),
    ({"select": None}, ValueError, "select must be one of .* or callable, got None"),
    ({"select": ["cascade"]}, ValueError, r"select must be one of .* got \['cascade'\]"),
    ({"unsure_below": 2}, ValueError, "unsure_below must be from 0 to 1, got 2"),
    ({"unsure_below": "low"}, TypeError, "unsure_below must be a number, got str"),
    ({"max_entropy": -1}, ValueError, "max_entropy must be at least 0, got -1"),
    ({"max_entropy": math.nan}, ValueError, "max_entropy must be at least 0, got nan"),
    ({"max_entropy": "1"}, TypeError, "max_entropy must be a number, got str"),
    ({"second_look": 1}, TypeError, "second_look must be a bool, got int"),
    ({"temperatures": [1.0]}, ValueError, "temperatures must have an entry for each of the 3 mem"),
    ({"temperatures": []}, ValueError, "temperatures must have an entry for each of .* got 0"),
    ({"temperatures": [1, 0, 1]}, ValueError, r"temperatures\[1\] must be from 1e-37 to 1e"),
    ({"temperatures": [1, 1, math.inf]}, ValueError, r"temperatures\[2\] must be .* got inf"),
    ({"temperatures": [1, "1", 1]}, TypeError, r"temperatures\[1\] must be a number, got str"),
    ({"temperatures": [True, 1, 1]}, TypeError, r"temperatures\[0\] must be a number, got bool"),
    ({"temperatures": 1.0}, TypeError, "temperatures must be a list of numbers, got float"),
    ({"temperatures": "111"}, TypeError, "temperatures must be a list of numbers, got str"),
    ({"assistants": []}, ValueError, "assistants must hold at least one Member, got"),
    ({"assistants": "b"}, TypeError, "assistants must be a list of Member, got str"),
    ({"assistants": [DRAFT, "b"]}, TypeError, r"assistants\[1\] must be a Member, got str"),
    ({"assistants": None}, TypeError, "assistants must be a list of Member, got NoneType"),
    ({"draft": "a"}, TypeError, "draft must be a Member, got str"),
    ({"draft": [DRAFT]}, TypeError, "draft must be a Member, got list"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD, ids=[str(bad[2]) for bad in BAD])
def test_bad_options_are_one_sentence(options, error, message):
    with pytest.raises(error, match=message) as caught:
        CoSD(**{"draft": DRAFT, "assistants": ASSISTANTS, **options})
    assert "\n" not in str(caught.value)


def test_every_option_is_among_the_bad_ones():
    tried = {name for options, *_ in BAD for name in options}
    assert tried == set(inspect.signature(CoSD).parameters)


# Who takes part


@pytest.mark.parametrize(
    ("routed", "error", "message"),
    [
        ([2], ValueError, r"select must return distinct places from 0 to 1, got \[2\]"),
        ([-1], ValueError, r"select must return distinct places from 0 to 1, got \[-1\]"),
        ([0, 0], ValueError, "select must return distinct places"),
        ([True], ValueError, "select must return distinct places"),
        ([0.5], ValueError, "select must return distinct places"),
        (["a"], ValueError, "select must return distinct places"),
        (1, TypeError, "select must return a list of places, got int"),
        ("01", TypeError, "select must return a list of places, got str"),
        (None, TypeError, "select must return a list of places, got NoneType"),
    ],
)
def test_routes_that_are_none(routed, error, message):
    with pytest.raises(error, match=message):
        CoSD(DRAFT, ASSISTANTS, select=lambda prompt: routed).generate(PROMPT)


def test_who_is_not_picked_stays_unloaded(tmp_path):
    folders = saved(MEMBERS, tmp_path)
    lazy = [Member.from_pretrained(folder, lazy=True) for folder in folders]
    asked = []

    def route(prompt):
        asked.append(prompt)
        return [1]

    method = CoSD(lazy[0], lazy[1:], **METHOD, select=route, temperatures=[1.0, 9.0, 1.1])
    assert not any(one.loaded for one in lazy)
    output = method.generate(PROMPT, max_new_tokens=12)
    assert [one.loaded for one in lazy] == [True, False, True]
    assert asked == [PROMPT]
    assert output.rounds.members == [lazy[0].name, lazy[2].name]
    assert output.rounds.options["select"] == "route"
    assert output.rounds.options["temperatures"] == [1.0, 1.1]
    pair = CoSD(DRAFT, ASSISTANTS[1], **METHOD, temperatures=[1.0, 1.1])
    assert output.token_ids == pair.generate(PROMPT, max_new_tokens=12).token_ids
    messages = [{"role": "user", "content": PROMPT}]
    method.generate(messages=messages, max_new_tokens=2)
    assert asked[1] == messages


def test_nobody_picked_is_the_drafter_alone():
    method = CoSD(DRAFT, ASSISTANTS, select=lambda prompt: [])
    output = method.generate(PROMPT, max_new_tokens=20)
    assert output.token_ids == [own_greedy(DRAFT, PROMPT, 20)]


def test_a_weights_type_of_their_own_is_no_matter():
    members = [member(seed=1, dtype=torch.float32), member(seed=2, dtype=torch.bfloat16)]
    output = CoSD(*members, **METHOD).generate(PROMPT, max_new_tokens=8)
    assert len(output.token_ids[0]) == 8


def test_a_tree_is_shown_in_the_trace():
    tree = Tree([Node(3, True)])
    output = CoSD(DRAFT, ASSISTANTS[0], tree=tree).generate(PROMPT, max_new_tokens=4)
    assert output.rounds.options["tree"] == "replace (3 examples)"
    assert "alpha" not in output.rounds.options
    assert {d.reason for r in output.rounds for d in r.decisions} == {"replaced"}


# How a run ends


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_stop_strings_cut_text_ids_and_caches_alike(method):
    method = CoSD(DRAFT, ASSISTANTS, **METHOD, **method)
    whole = method.generate(PROMPT, max_new_tokens=60).text
    # Stop strings are searched in the bytes, which a replacement character stands for.
    stops = [whole[at : at + 3] for at in range(0, 60, 5) if "�" not in whole[at : at + 3]]
    for stop in stops[:4]:
        run = method.stream(PROMPT, max_new_tokens=60, stop_strings=stop)
        pieces = [piece.text for piece in run]
        output = run.output
        end = whole.index(stop) + len(stop)
        assert "".join(pieces) == output.text == whole[:end]
        assert output.finish_reason == "stop"
        for j, (context, ids) in enumerate(zip(run.contexts, output.token_ids, strict=True)):
            assert run.data.startswith(context.member.table.spell(ids))
            assert context.response_ids == ids[: len(context.response_ids)]
            assert j or context.response_ids == ids


def test_streamers_get_what_is_committed(capsys):
    recorder = Recorder()
    method = CoSD(DRAFT, ASSISTANTS, **METHOD)
    output = method.generate(PROMPT, max_new_tokens=20, streamer=recorder)
    prompt, *rest = recorder.put_values
    assert prompt == [DRAFT.encode_prompt(PROMPT)]
    assert [token for ids in rest for token in ids] == output.token_ids[0]
    assert recorder.ends == 1
    method.generate(PROMPT, max_new_tokens=20, streamer=TextStreamer(DRAFT.tokenizer, True))
    assert capsys.readouterr().out == output.text + "\n"


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_full_context_ends_a_run(place, method):
    members = three_families()
    prompt = len(members[place].encode_prompt(PROMPT))
    for room in (1, 5, 12):
        members[place].context_length = prompt + room
        run = CoSD(members[0], members[1:], **METHOD, **method).stream(PROMPT, max_new_tokens=50)
        text = "".join(piece.text for piece in run)
        output = run.output
        assert (output.finish_reason, output.full_context) == ("length", members[place].name)
        assert output.text == text
        for context in run.contexts:
            assert len(context.ids) <= (context.member.context_length or math.inf)
            assert context.cache.length == context.cache.committed == len(context.ids)
        whole = CoSD(DRAFT, ASSISTANTS, **METHOD, **method).generate(PROMPT, max_new_tokens=60)
        assert whole.text.startswith(text) or method
        assert place or len(output.token_ids[0]) >= room - 1


STAGES = [
    (Drafter, "propose", 3),
    (Reader, "encode", 7),
    (Reader, "read", 6),
    (Reader, "keep", 9),
    (CoSDRun, "_decide", 3),
    (CoSDRun, "_ending", 3),
    (Drafter, "accept", 3),
]


@pytest.mark.parametrize("afterwards", [False, True])
@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize(("owner", "name", "at_call"), STAGES, ids=str)
def test_a_failure_loses_nothing_committed(monkeypatch, owner, name, at_call, afterwards, method):
    method = CoSD(DRAFT, ASSISTANTS, **METHOD, **method)
    expected = method.generate(PROMPT, max_new_tokens=40)
    run = method.stream(PROMPT, max_new_tokens=40)
    states = [(run.output.token_ids, [])]

    def go_on():
        for _ in run:
            states.append((run.output.token_ids, list(run.contexts[0].ids)))

    with monkeypatch.context() as patch:
        failing(patch, owner, name, at_call, OSError("disk on fire"), afterwards)
        with pytest.raises(DecodingError, match=r"round \d+ failed: disk on fire") as error:
            go_on()
    output = error.value.output
    assert output.finish_reason == "error"
    assert len(output.rounds) == len(states) - 1
    assert expected.text.startswith(output.text)
    assert output.token_ids == states[-1][0]
    if len(states) > 1:
        assert run.contexts[0].ids == states[-1][1]
    for context in run.contexts:
        assert context.cache.length == context.cache.committed == len(context.ids)
    assert method.generate(PROMPT, max_new_tokens=40).token_ids == expected.token_ids


@pytest.mark.parametrize("place", [0, 1])
def test_nan_logits_name_the_member(monkeypatch, place):
    original = ForwardPasses.forward

    def forward(self, tokens, **keywords):
        logits = original(self, tokens, **keywords)
        if self.member is MEMBERS[place] and self.cache.committed - self.usage.prompt_tokens > 5:
            logits = logits * torch.nan
        return logits

    monkeypatch.setattr(ForwardPasses, "forward", forward)
    name = MEMBERS[place].name
    with pytest.raises(DecodingError, match=f"member '{name}' gave logits with NaN") as caught:
        CoSD(DRAFT, ASSISTANTS).generate(PROMPT, max_new_tokens=30)
    assert caught.value.output.text


def test_members_on_workers_of_their_own_write_the_same(monkeypatch):
    expected = CoSD(DRAFT, ASSISTANTS, **METHOD).generate(PROMPT, max_new_tokens=20)
    draft, *assistants = with_own_workers(three_families(), monkeypatch)
    output = CoSD(draft, assistants, **METHOD).generate(PROMPT, max_new_tokens=20)
    assert output.token_ids == expected.token_ids
