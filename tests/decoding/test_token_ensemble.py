"""Token-level ensembles as a whole, on tiny random models."""

from functools import cache

import pytest
import torch

from ensemble_decoding import Member, TokenEnsemble, Trace
from tests.decoding.members_for_tests import PROMPT, member, pass_counter, three_families
from tests.decoding.models_for_tests import ARCHITECTURES
from tests.decoding.scripted_model import saying, scripted
from tests.decoding.test_architectures import model
from tests.decoding.test_specem import assert_cache_is_a_fresh_prefill, own_greedy
from tests.decoding.text_oracle import bytes_of_ids
from tests.decoding.tokenizers_for_tests import (
    GERMAN,
    MISSING_BYTES,
    byte_level_tokenizer,
    sentencepiece_tokenizer,
)

BYTES = byte_level_tokenizer()
PIECES = sentencepiece_tokenizer()
ALIGNMENTS = ("union", "top_k", "identity")


@cache
def greedy(architecture):
    if architecture in ARCHITECTURES:
        one = member(architecture)
    else:
        one = Member(model(architecture), BYTES)
    return one, own_greedy(one, PROMPT, 128)


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "GPT2"])
def test_a_model_with_itself_gives_its_own_greedy_output(architecture, alignment):
    one, expected = greedy(architecture)
    twins = [one, Member(one.model, one.tokenizer)]
    output = TokenEnsemble(twins, alignment=alignment).generate(PROMPT, max_new_tokens=128)
    assert output.token_ids == [expected] * 2
    assert len(expected) == 128 or output.finish_reason == "stop"
    assert len(output.rounds) == len(expected)


def test_equal_tables_keep_ids_of_equal_bytes_apart():
    """A SentencePiece model may choose a byte token where its tokenizer has a letter."""
    one = member("gemma3", PIECES, seed=1)
    expected = own_greedy(one, PROMPT, 64)
    assert any(one.table.token_id(one.table.spell((i,))) != i for i in expected[:-1])
    twins = [one, Member(one.model, one.tokenizer)]
    assert TokenEnsemble(twins).generate(PROMPT, max_new_tokens=64).token_ids == [expected] * 2


@pytest.mark.parametrize("alignment", ["union", "top_k"])
def test_a_threshold_of_zero_is_the_main_member_alone(alignment):
    members = three_families()
    for first in (0, 1):
        ordered = members[first:] + members[:first]
        expected = own_greedy(ordered[0], PROMPT, 40)
        method = TokenEnsemble(ordered, alignment=alignment, threshold=0.0)
        run = method.stream(PROMPT, max_new_tokens=40)
        for _ in run:
            pass
        output = run.output
        assert output.token_ids[0][:36] == expected[:36]  # the limit may cut a character
        assert output.ensembled_share == 0
        for context, ids, waiting in zip(run.contexts, output.token_ids, run.waiting, strict=True):
            spelled = context.member.table.spell(ids) + waiting
            assert spelled.startswith(run.data)


@pytest.mark.parametrize(
    "method", [{"alignment": "union"}, {"alignment": "top_k", "k": 150}], ids=str
)
def test_after_each_token_every_cache_is_a_fresh_prefill(method):
    options = {"max_new_tokens": 1000, "do_sample": True, "seed": 3, "temperature": 2.0}
    run = TokenEnsemble(three_families(), **method).stream(PROMPT, **options)
    waited = 0
    for count, piece in enumerate(run, 1):
        waited += any(run.waiting)
        for j, context in enumerate(run.contexts):
            assert_cache_is_a_fresh_prefill(context)
            assert context.member.table.spell(context.response_ids) + run.waiting[j] == run.data
        assert len(piece.round.voters) >= 1
        if count == 60:
            break
    assert count == 60 or run.output.finish_reason == "stop"
    assert waited


@pytest.mark.parametrize("alignment", ["union", "top_k"])
def test_nothing_is_fed_twice(alignment):
    members = three_families()
    counters = [pass_counter(one.model) for one in members]
    output = TokenEnsemble(members, alignment=alignment).generate(PROMPT, max_new_tokens=40)
    for one, usage, counter, ids in zip(
        members, output.usage, counters, output.token_ids, strict=True
    ):
        prompt = len(one.encode_prompt(PROMPT))
        assert counter.tokens == prompt + len(ids)
        assert (usage.prompt_tokens, usage.committed_tokens) == (prompt, len(ids))
        assert usage.drafted_tokens == usage.verified_tokens == 0
        assert usage.forward_passes <= 1 + len(output.rounds)


SAYERS = {
    "bytes": BYTES,
    "German bytes": byte_level_tokenizer(GERMAN),
    "pieces": PIECES,
    "holes": byte_level_tokenizer(missing_bytes=MISSING_BYTES),
}


def written(context, unspelled):
    """How many bytes of the response a member has written, or has no token for."""
    spelled = bytes_of_ids(context.member.tokenizer)
    ids = set(context.response_ids) - {context.member.tokenizer.eos_token_id}
    return len(unspelled) + sum(len(spelled[i]) for i in context.response_ids if i in ids)


# Of UniTE one candidate each: a longer token takes the score of its beginning, and could win.
@pytest.mark.parametrize(
    "method", [{"alignment": "union"}, {"alignment": "top_k", "k": 1}], ids=str
)
@pytest.mark.parametrize("text", ["a 😀 b 😀", "你好,世界 🦜", "👩‍👩‍👧 Zürich — привет"])
def test_characters_of_several_tokens_come_through_whole(method, text):
    waited = 0
    for name, sayer in SAYERS.items():
        if name == "holes" and set(text.encode()) & set(MISSING_BYTES):
            continue
        first = scripted(sayer, saying(sayer, text), PROMPT, name)
        others = [
            scripted(one, [{one.convert_tokens_to_ids("z"): 0.5}], PROMPT, "other")
            for one in SAYERS.values()
            if one is not sayer
        ]
        run = TokenEnsemble([first, *others], weights=[9, 1, 1, 1], **method).stream(PROMPT)
        pieces, length, behind = [], 0, set()
        for piece in run:
            pieces.append(piece.text)
            assert not behind & set(piece.round.voters)
            length += len(piece.round.data)
            behind = {
                j
                for j, context in enumerate(run.contexts)
                if written(context, run.unspelled[j]) < length
            }
            waited += len(behind)
        assert "".join(pieces) == run.output.text == text
        assert run.output.finish_reason == "stop"
        assert not behind
    assert waited


@pytest.mark.parametrize("max_new_tokens", [1, 2, 7, 20])
def test_the_limit_is_exact_where_all_share_a_tokenizer(max_new_tokens):
    members = [member(seed=seed) for seed in (1, 2)]
    for alignment in ALIGNMENTS:
        method = TokenEnsemble(members, alignment=alignment)
        output = method.generate(PROMPT, max_new_tokens=max_new_tokens)
        assert [len(ids) for ids in output.token_ids] == [max_new_tokens] * 2
        assert output.finish_reason == "length"


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("max_new_tokens", range(1, 25))
def test_the_limit_cuts_to_a_complete_character_between_tokenizers(max_new_tokens, seed):
    run = TokenEnsemble(three_families()).stream(
        PROMPT, max_new_tokens=max_new_tokens, do_sample=True, seed=seed, temperature=2.0
    )
    for _ in run:
        pass
    output = run.output
    assert len(output.token_ids[0]) <= max_new_tokens
    for context, ids in zip(run.contexts, output.token_ids, strict=True):
        assert run.data.startswith(context.member.table.spell(ids))
        assert context.cache.length == len(context.ids)
    assert run.data.decode("utf-8", "replace").startswith(output.text)
    if len(output.token_ids[0]) < max_new_tokens - 3:
        assert output.finish_reason == "stop"


def test_a_first_member_without_end_of_text_ends_with_the_others():
    endless = byte_level_tokenizer(GERMAN, eos=False)
    quiet = scripted(endless, [{endless.convert_tokens_to_ids("a"): 0.5}], PROMPT, "endless")
    speaker = scripted(BYTES, saying(BYTES, " the fox"), PROMPT, "speaker")
    for alignment in ("union", "top_k"):
        method = TokenEnsemble([quiet, speaker], alignment=alignment, weights=[1, 9])
        output = method.generate(PROMPT, max_new_tokens=50)
        assert (output.text, output.finish_reason) == (" the fox", "stop")
        assert output.token_ids[1][-1] == BYTES.eos_token_id
        assert quiet.table.spell(output.token_ids[0]) == b" the fox"
        assert output.rounds[-1].candidates[0].ended


def test_what_is_neither_text_nor_its_end_is_never_chosen():
    special = {1: 0.6, 2: 0.39}
    pair = [scripted(BYTES, [special], PROMPT, name) for name in "ab"]
    sampled = {"do_sample": True, "seed": 1, "top_k": 2}
    # The colder, the more of all probability is that of special tokens, up to all of it.
    colder = [{**sampled, "temperature": t} for t in (3.0, 0.1, 1e-3, 1e-30)]
    for alignment in ALIGNMENTS:
        for options in ({}, *colder):
            method = TokenEnsemble(pair, alignment=alignment)
            ids = method.generate(PROMPT, max_new_tokens=20, **options).token_ids[0]
            assert ids
            assert not set(ids) & set(special)


def test_all_end_of_text_ids_are_one_event():
    texts = [BYTES.convert_tokens_to_ids(letter) for letter in "abc"]
    script = [{texts[0]: 0.4, texts[1]: 0.3, texts[2]: 0.25}]
    pair = [scripted(BYTES, script, PROMPT, name) for name in "ab"]
    for alignment in ALIGNMENTS:
        method = TokenEnsemble(pair, alignment=alignment)
        assert method.generate(PROMPT, max_new_tokens=2).text == "aa"
        output = method.generate(PROMPT, max_new_tokens=2, eos_token_id=texts[1:])
        assert (output.text, output.finish_reason) == ("", "stop")
        # Alone the letters b and c were less likely than a.
        assert output.rounds[0].candidates[0].score == pytest.approx(0.55, abs=0.05)


def test_the_trace_says_who_chose_and_survives_a_file(tmp_path):
    members = three_families()
    method = TokenEnsemble(members, threshold=0.06, weights=[2, 1, 1], alignment="top_k", k=5)
    output = method.generate(PROMPT, max_new_tokens=40)
    rounds = output.rounds
    chose = [round_.ensembled for round_ in rounds]
    assert 0 < output.ensembled_share == sum(chose) / len(chose) < 1
    for round_ in rounds:
        (chosen,) = round_.candidates
        assert sum(round_.weights) == pytest.approx(1)
        assert [j for j, w in enumerate(round_.weights) if w] == round_.voters
        assert ("main member" in round_.reason) == (not round_.ensembled)
        assert round_.ensembled or (round_.voters == [0] and 0 in chosen.drafted_by)
        mixed = sum(w * p for w, p in zip(round_.weights, chosen.shares, strict=True))
        assert chosen.score == pytest.approx(mixed, rel=1e-5)
    assert {**rounds.options, "alignment": "top_k", "k": 5, "threshold": 0.06} == rounds.options
    rounds.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json") == rounds
    rounds[0].voters = [0, 3]
    rounds.save(tmp_path / "trace.json")
    with pytest.raises(ValueError, match=r"rounds\[0\].voters must hold places of members, got"):
        Trace.load(tmp_path / "trace.json")


def test_models_on_float32_and_bfloat16_mix():
    members = [member(seed=1, dtype=torch.float32), member("gemma3", PIECES, dtype=torch.bfloat16)]
    for alignment in ("union", "top_k"):
        method = TokenEnsemble(members, alignment=alignment)
        assert method.generate(PROMPT, max_new_tokens=8).token_ids[0]
