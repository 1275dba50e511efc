"""Bad options of token-level ensembles, how a run ends, and what a failure leaves."""

import inspect

import pytest
import torch
from transformers import TextStreamer

from ensemble_decoding import DecodingError, TokenEnsemble, aligned_mixture
from ensemble_decoding.context import DecodingContext
from ensemble_decoding.forward_passes import ForwardPasses
from ensemble_decoding.text import TextEncoder
from ensemble_decoding.token_ensemble_run import TokenEnsembleRun
from tests.decoding.members_for_tests import PROMPT, member, three_families
from tests.decoding.test_failures import failing
from tests.decoding.test_streamers import Recorder
from tests.decoding.test_workers import with_own_workers
from tests.decoding.tokenizers_for_tests import sentencepiece_tokenizer

MEMBERS = three_families()
ONE = MEMBERS[0]
TWO = MEMBERS[:2]
BAD = [
    ({"alignment": "intersection"}, ValueError, "alignment must be one of auto, .* got 'inter"),
    ({"alignment": None}, ValueError, "alignment must be one of .* got None"),
    ({"alignment": "identity"}, ValueError, "alignment must be union or top_k where members have"),
    ({"k": 0}, ValueError, "k must be at least 1, got 0"),
    ({"k": 2.0}, TypeError, "k must be an int, got float"),
    ({"k": True}, TypeError, "k must be an int, got bool"),
    ({"weights": [1.0]}, ValueError, "weights must have an entry for each of the 2 members, got 1"),
    ({"weights": [1, 1, 1]}, ValueError, "weights must have an entry for each .* got 3"),
    ({"weights": [1, -0.1]}, ValueError, r"weights must be finite, not negative .* \[1, -0.1\]"),
    ({"weights": [1e308, 1e308]}, ValueError, "weights must be at most 3.4.*, got"),
    ({"weights": [0, 0.0]}, ValueError, "weights must be .* not all zero, got"),
    ({"weights": [1, float("nan")]}, ValueError, "weights must be finite, .* nan"),
    ({"weights": [1, float("inf")]}, ValueError, "weights must be finite, .* inf"),
    ({"weights": [1, "1"]}, TypeError, r"weights\[1\] must be a number, got str"),
    ({"weights": [True, 1]}, TypeError, r"weights\[0\] must be a number, got bool"),
    ({"weights": "11"}, TypeError, "weights must be a list of numbers, got str"),
    ({"weights": 0.5}, TypeError, "weights must be a list of numbers, got float"),
    ({"mean": "harmonic"}, ValueError, "mean must be one of arithmetic, geometric, got 'harm"),
    ({"threshold": 1.5}, ValueError, "threshold must be from 0 to 1, got 1.5"),
    ({"threshold": float("nan")}, ValueError, "threshold must be from 0 to 1, got nan"),
    ({"threshold": "0.5"}, TypeError, "threshold must be a number, got str"),
    ({"combine": "mean"}, TypeError, "combine must be callable, got str"),
    ({"combine": max, "mean": "geometric"}, ValueError, "mean must not be given with combine"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD, ids=str)
def test_bad_options_are_one_sentence(options, error, message):
    with pytest.raises(error, match=message) as caught:
        TokenEnsemble(TWO, **options)
    assert "\n" not in str(caught.value)


def test_every_option_is_among_the_bad_ones():
    tried = {name for options, *_ in BAD for name in options}
    assert tried == set(inspect.signature(TokenEnsemble).parameters) - {"members"}


@pytest.mark.parametrize(
    ("members", "error", "message"),
    [
        ([], ValueError, "members must hold at least one Member"),
        ([ONE], ValueError, "members must hold at least two Member, got 1"),
        ([ONE, "b"], TypeError, r"members\[1\] must be a Member, got str"),
        (ONE, TypeError, "members must be a list of Member"),
    ],
)
def test_members(members, error, message):
    with pytest.raises(error, match=message):
        TokenEnsemble(members)


def test_ends_of_text_of_its_own_take_a_member_from_identity():
    twins = [member(seed=1), member(seed=2)]
    ends = [[40], [41]]
    with pytest.raises(ValueError, match=r"union or top_k where .* end-of-text"):
        TokenEnsemble(twins, alignment="identity").stream(PROMPT, eos_token_id=ends)
    run = TokenEnsemble(twins).stream(PROMPT, eos_token_id=ends)
    assert run.trace.options["alignment"] == "union"


STAGES = [
    (TextEncoder, "encode", 2),
    (TokenEnsembleRun, "_ending", 4),
    (DecodingContext, "append", 8),
    (aligned_mixture.UnionMixture, "mix", 3),
]


@pytest.mark.parametrize("afterwards", [False, True])
@pytest.mark.parametrize(("owner", "name", "at_call"), STAGES, ids=str)
def test_a_failure_loses_nothing_committed(monkeypatch, owner, name, at_call, afterwards):
    method = TokenEnsemble(MEMBERS)
    options = {"max_new_tokens": 40, "do_sample": True, "seed": 3, "temperature": 2.0}
    expected = method.generate(PROMPT, **options)
    run = method.stream(PROMPT, **options)
    states = [[([], None, b"")] * 3]

    def go_on():
        for _ in run:
            storages = [context.cache.storage.clone() for context in run.contexts]
            ids = [list(context.ids) for context in run.contexts]
            states.append(list(zip(ids, storages, run.waiting, strict=True)))

    with monkeypatch.context() as patch:
        failing(patch, owner, name, at_call, OSError("disk on fire"), afterwards)
        with pytest.raises(DecodingError, match=r"round \d+ failed: disk on fire") as error:
            go_on()
    output = error.value.output
    assert output.finish_reason == "error"
    assert len(output.rounds) == len(states) - 1 >= 1
    assert expected.text.startswith(output.text)
    for j, (context, (ids, storage, waiting)) in enumerate(
        zip(run.contexts, states[-1], strict=True)
    ):
        assert context.ids == ids
        assert run.waiting[j] == waiting
        assert context.cache.length == context.cache.committed == len(ids)
        kept = slice(0, len(ids))
        assert (context.cache.storage[..., kept, :] == storage[..., kept, :]).all()
    assert method.generate(PROMPT, **options).token_ids == expected.token_ids


def test_members_on_workers_of_their_own_write_the_same(monkeypatch):
    options = {"max_new_tokens": 20}
    expected = TokenEnsemble(MEMBERS, alignment="top_k").generate(PROMPT, **options)
    members = with_own_workers(three_families(), monkeypatch)
    output = TokenEnsemble(members, alignment="top_k").generate(PROMPT, **options)
    assert output.token_ids == expected.token_ids


def test_nan_logits_name_the_member(monkeypatch):
    original = ForwardPasses.forward

    def forward(self, tokens, **keywords):
        logits = original(self, tokens, **keywords)
        if self.member is TWO[1] and self.cache.committed - self.usage.prompt_tokens == 2:
            logits = logits * torch.nan
        return logits

    monkeypatch.setattr(ForwardPasses, "forward", forward)
    with pytest.raises(DecodingError, match="member 'gemma3-15' gave logits with NaN") as caught:
        TokenEnsemble(TWO).generate(PROMPT, max_new_tokens=10)
    assert caught.value.output.text


def test_a_k_beyond_the_vocabulary_takes_all_of_it():
    options = {"max_new_tokens": 4}
    expected = TokenEnsemble(TWO, alignment="top_k", k=5000).generate(PROMPT, **options)
    output = TokenEnsemble(TWO, alignment="top_k", k=10**12).generate(PROMPT, **options)
    assert output.token_ids == expected.token_ids


@pytest.mark.parametrize("alignment", ["union", "top_k"])
def test_stop_strings_cut_text_ids_and_caches_alike(alignment):
    method = TokenEnsemble(MEMBERS, alignment=alignment)
    whole = method.generate(PROMPT, max_new_tokens=60).text
    for stop in ("J", "i i", "or"):
        assert stop in whole
        run = method.stream(PROMPT, max_new_tokens=60, stop_strings=stop)
        pieces = [piece.text for piece in run]
        output = run.output
        end = whole.index(stop) + len(stop)
        assert "".join(pieces) == output.text == whole[:end]
        assert output.finish_reason == "stop"
        for context, ids in zip(run.contexts, output.token_ids, strict=True):
            assert run.data.startswith(context.member.table.spell(ids))
            assert context.cache.length == len(context.ids)


def test_criteria_and_end_of_text_lists_end_a_run():
    whole = TokenEnsemble(MEMBERS).generate(PROMPT, max_new_tokens=30)
    prompt = len(ONE.encode_prompt(PROMPT))
    criteria = [lambda ids, scores: ids.shape[1] == prompt + 9]
    stopped = TokenEnsemble(MEMBERS).generate(PROMPT, stopping_criteria=criteria)
    assert (stopped.token_ids[0], stopped.finish_reason) == (whole.token_ids[0][:9], "stop")
    last = [ids[-1] for ids in whole.token_ids]
    ended = TokenEnsemble(MEMBERS).generate(PROMPT, eos_token_id=last)
    assert ended.finish_reason == "stop"
    assert [ids[-1] for ids in ended.token_ids] == last
    assert whole.text.startswith(ended.text)
    assert len(ended.text) < len(whole.text)


def test_streamers_get_what_is_committed(capsys):
    recorder = Recorder()
    method = TokenEnsemble(MEMBERS, alignment="top_k")
    output = method.generate(PROMPT, max_new_tokens=20, streamer=recorder)
    prompt, *rest = recorder.put_values
    assert prompt == [ONE.encode_prompt(PROMPT)]
    assert [token for ids in rest for token in ids] == output.token_ids[0]
    assert recorder.ends == 1
    streamer = TextStreamer(ONE.tokenizer, skip_prompt=True)
    method.generate(PROMPT, max_new_tokens=20, streamer=streamer)
    assert capsys.readouterr().out == output.text + "\n"


def test_a_full_context_ends_a_run():
    members = [member(seed=1), member(tokenizer=sentencepiece_tokenizer(), seed=2)]
    members[1].context_length = 24
    output = TokenEnsemble(members).generate(PROMPT, max_new_tokens=100)
    used = len(members[1].encode_prompt(PROMPT)) + len(output.token_ids[1])
    assert output.finish_reason in ("length", "stop")
    assert used <= 24


def test_messages_are_rendered_for_each_member():
    messages = [{"role": "user", "content": PROMPT}]
    output = TokenEnsemble(TWO).generate(messages=messages, max_new_tokens=5)
    assert output.text == TokenEnsemble(TWO).generate(PROMPT, max_new_tokens=5).text
