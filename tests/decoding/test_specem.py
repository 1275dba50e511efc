"""SpecEM as a whole, on tiny random models."""

import codecs
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import DynamicCache

from ensemble_decoding import Member, SpecEM
from ensemble_decoding.cache import cache_argument
from tests.decoding.members_for_tests import PROMPT, member, pass_counter, three_families
from tests.decoding.models_for_tests import ARCHITECTURES, WINDOW
from tests.decoding.tokenizers_for_tests import byte_level_tokenizer, sentencepiece_tokenizer


def own_greedy(one, prompt, new_tokens):
    """The member's own `generate`, with what SpecEM never drafts suppressed."""
    ids = torch.tensor([one.tokenizer(prompt)["input_ids"]])
    ends = set(one.end_of_text_ids)
    text = {i for i, token in enumerate(one.table.token_bytes) if token is not None}
    out = one.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        do_sample=False,
        suppress_tokens=sorted(
            set(range(one.model.config.get_text_config().vocab_size)) - text - ends
        ),
        eos_token_id=sorted(ends) or None,
        pad_token_id=0,
    )
    return out[0, ids.shape[1] :].tolist()


def assert_cache_is_a_fresh_prefill(context, tolerance=1e-10):
    model = context.member.model
    fresh = DynamicCache()
    with torch.no_grad():
        model(
            torch.tensor([context.ids]),
            use_cache=True,
            **{cache_argument(model): fresh},
        )
    cache = context.cache
    assert cache.length == cache.committed == len(context.ids)
    for layer, expected in enumerate(fresh.layers):
        got = cache.storage[:, layer, ..., : cache.length, :]
        torch.testing.assert_close(got[0], expected.keys, rtol=0, atol=tolerance)
        torch.testing.assert_close(got[1], expected.values, rtol=0, atol=tolerance)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("tokenizer", [byte_level_tokenizer, sentencepiece_tokenizer])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_with_itself_gives_its_own_greedy_output(architecture, tokenizer, count):
    one = member(architecture, tokenizer())
    twins = [one, *(Member(one.model, one.tokenizer) for _ in range(count - 1))]
    expected = own_greedy(one, PROMPT, 128)
    output = SpecEM(twins).generate(PROMPT, max_new_tokens=128)
    assert output.token_ids == [expected] * count
    assert len(expected) == 128 or output.finish_reason == "stop"


def test_after_each_of_fifty_rounds_every_cache_is_a_fresh_prefill():
    run = SpecEM(three_families(), segment_length=4).stream(PROMPT, max_new_tokens=1000)
    for count, _ in enumerate(run, 1):
        for context in run.contexts:
            assert_cache_is_a_fresh_prefill(context)
        if count == 50:
            break
    assert count == 50 or run.output.finish_reason == "stop"
    assert len(run.contexts[1].ids) > 3 * WINDOW


def test_one_beginning_of_text_stands_in_each_context():
    members = three_families()
    run = SpecEM(members, segment_length=4).stream(PROMPT, max_new_tokens=200)
    for _ in run:
        pass
    for context in run.contexts:
        bos = context.member.tokenizer.bos_token_id
        uses_it = context.member.tokenizer("")["input_ids"] == [bos]
        assert context.ids.count(bos) == (1 if uses_it else 0)
    assert [c.ids[0] == c.member.tokenizer.bos_token_id for c in run.contexts] == [
        False,
        True,
        False,
    ]


def test_the_members_spell_the_same_bytes_and_keep_their_own_drafts():
    members = three_families()
    run = SpecEM(members, segment_length=5).stream(PROMPT, max_new_tokens=150)
    pieces = [piece.text for piece in run]
    output = run.output
    for context, ids in zip(run.contexts, output.token_ids, strict=True):
        assert context.member.table.spell(ids) == run.data
    assert "".join(pieces) == output.text
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(run.data)
    assert output.text == text
    winners = [r.candidates[r.winner] for r in output.rounds]
    for j in range(len(members)):
        committed = [ids for w in winners for ids in w.token_ids[j]]
        assert committed[: len(output.token_ids[j])] == output.token_ids[j]
    assert len({w.drafted_by[0] for w in winners}) > 1


def test_no_token_is_fed_more_often_than_the_counters_say():
    members = three_families()
    counters = [pass_counter(m.model) for m in members]
    output = SpecEM(members, segment_length=5).generate(PROMPT, max_new_tokens=60)
    for one, usage, counter in zip(members, output.usage, counters, strict=True):
        fed = usage.prompt_tokens + usage.drafted_tokens + usage.verified_tokens
        assert counter.tokens == fed
        assert usage.prompt_tokens == len(one.encode_prompt(PROMPT))
        # At most 5 + 3 drafted in a round, the last of which is not fed.
        assert usage.drafted_tokens <= 7 * len(output.rounds)
        j = members.index(one)
        packed = sum(len(c.token_ids[j]) for r in output.rounds for c in r.candidates)
        assert usage.verified_tokens == packed
        assert usage.forward_passes <= 1 + 8 * len(output.rounds)
        assert set(usage.operator_seconds) == {
            "segment_attention",
            "token_statistics",
            "compact_kv_",
        }


@pytest.mark.parametrize("segment_length", [1, 3, 8])
@pytest.mark.parametrize("max_new_tokens", range(1, 21, 3))
def test_the_limit_is_exact_where_all_share_a_tokenizer(segment_length, max_new_tokens):
    members = [member(seed=seed) for seed in (1, 2)]
    output = SpecEM(members, segment_length=segment_length).generate(
        PROMPT, max_new_tokens=max_new_tokens
    )
    ids = output.token_ids[0]
    ended = ids and ids[-1] in members[0].end_of_text_ids
    assert len(ids) == max_new_tokens or (ended and len(ids) < max_new_tokens)
    assert output.finish_reason == ("stop" if ended else "length")


@pytest.mark.parametrize("max_new_tokens", range(1, 21))
def test_the_limit_cuts_to_a_complete_character_between_tokenizers(max_new_tokens):
    run = SpecEM(three_families(), segment_length=7).stream(PROMPT, max_new_tokens=max_new_tokens)
    for _ in run:
        pass
    output = run.output
    assert len(output.token_ids[0]) <= max_new_tokens
    spelled = run.contexts[0].member.table.spell(output.token_ids[0])
    assert spelled == run.data
    for context, ids in zip(run.contexts, output.token_ids, strict=True):
        assert run.data.startswith(context.member.table.spell(ids))
        assert context.cache.length == len(context.ids)


def test_the_order_of_the_members_only_names_them():
    forward, backward = three_families(), three_families()[::-1]
    a = SpecEM(forward, segment_length=6).generate(PROMPT, max_new_tokens=80)
    b = SpecEM(backward, segment_length=6).generate(PROMPT, max_new_tokens=80)
    # The limit counts another member's tokens, so one text may be longer than the other.
    rounds = min(len(a.rounds), len(b.rounds)) - 1
    assert rounds > 5
    for x, y in zip(a.rounds.rounds[:rounds], b.rounds.rounds[:rounds], strict=True):
        assert x.data == y.data
        assert x.weights == pytest.approx(y.weights[::-1], rel=1e-9)


def test_models_are_left_with_the_attention_they_had():
    members = three_families()
    before = [m.model.config._attn_implementation for m in members]
    run = SpecEM(members).stream(PROMPT, max_new_tokens=40)
    next(run)
    run.close()
    assert [m.model.config._attn_implementation for m in members] == before
    SpecEM(members).generate(PROMPT, max_new_tokens=12)
    assert [m.model.config._attn_implementation for m in members] == before


def test_two_runs_of_one_ensemble_do_not_disturb_each_other():
    method = SpecEM(three_families(), segment_length=4)
    alone = [method.generate(p, max_new_tokens=40).text for p in (PROMPT, "Die Antwort ")]
    first = method.stream(PROMPT, max_new_tokens=40)
    second = method.stream("Die Antwort ", max_new_tokens=40)
    texts = ["", ""]
    iterators = [iter(first), iter(second)]
    while iterators[0] or iterators[1]:
        for i, iterator in enumerate(iterators):
            piece = next(iterator, None) if iterator else None
            if piece is None:
                iterators[i] = None
            else:
                texts[i] += piece.text
    assert texts == alone


def test_overlapping_runs_may_end_in_any_order():
    members = three_families()
    method = SpecEM(members, segment_length=4)
    alone = method.generate(PROMPT, max_new_tokens=60).text
    first = method.stream(PROMPT, max_new_tokens=60)
    second = method.stream(PROMPT, max_new_tokens=60)
    next(first)
    next(second)
    first.close()
    for _ in second:
        pass
    assert second.output.text == alone
    assert {m.model.config._attn_implementation for m in members} == {"sdpa"}


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_an_abandoned_run_is_collected_with_its_model_without_a_word():
    run = SpecEM(three_families(), segment_length=4).stream(PROMPT, max_new_tokens=60)
    next(run)
    model = weakref.ref(run.contexts[0].member.model)
    del run
    gc.collect()
    assert model() is None


def test_runs_in_threads_share_members():
    members = three_families()
    prompts = [PROMPT, "Die Antwort ", "Where was "]
    alone = [SpecEM(members).generate(p, max_new_tokens=40).text for p in prompts]
    with ThreadPoolExecutor(3) as pool:
        texts = pool.map(lambda p: SpecEM(members).generate(p, max_new_tokens=40).text, prompts)
        assert list(texts) == alone
    assert {m.model.config._attn_implementation for m in members} == {"sdpa"}


def test_the_trace_survives_a_file(tmp_path):
    output = SpecEM(three_families(), segment_length=4).generate(PROMPT, max_new_tokens=20)
    output.rounds.save(tmp_path / "trace.json")
    assert type(output.rounds).load(tmp_path / "trace.json") == output.rounds
