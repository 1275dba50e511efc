"""Runs put into situations that people have met, with models that follow a script."""

import math

import pytest
import torch

from ensemble_decoding import SpecEM
from ensemble_decoding.sampling import first_maximum
from tests.decoding.members_for_tests import PROMPT
from tests.decoding.scripted_model import saying, scripted
from tests.decoding.tokenizers_for_tests import byte_level_tokenizer, sentencepiece_tokenizer

BYTES = byte_level_tokenizer()
PIECES = sentencepiece_tokenizer(bos=False)
EMOJI = "yes 😀🦜 naïve 你好 👩‍👩‍👧 end"


@pytest.mark.parametrize("segment_length", [1, 2, 3, 4, 5, 9])
def test_characters_stay_whole_wherever_a_segment_ends(segment_length):
    """An emoji is one token in one member and several byte tokens in the other."""
    assert len(BYTES(" 😀")["input_ids"]) == 1
    assert len(PIECES(" 😀")["input_ids"]) > 3
    for order in (1, -1):
        members = [
            scripted(tokenizer, saying(tokenizer, EMOJI), PROMPT, name)
            for tokenizer, name in ((BYTES, "bytes"), (PIECES, "pieces"))
        ][::order]
        run = SpecEM(members, segment_length=segment_length).stream(PROMPT, max_new_tokens=200)
        pieces = [piece.text for piece in run]
        assert "".join(pieces) == run.output.text
        for text in (*pieces, run.output.text):
            assert "�" not in text
        for candidate in (c for r in run.output.rounds for c in r.candidates):
            candidate.data.decode("utf-8")


def test_a_member_alone_writes_its_script():
    for tokenizer in (BYTES, PIECES):
        one = scripted(tokenizer, saying(tokenizer, EMOJI), PROMPT, "one")
        output = SpecEM([one], segment_length=3).generate(PROMPT, max_new_tokens=200)
        assert (output.text, output.finish_reason) == (EMOJI, "stop")


@pytest.mark.parametrize("limit", range(1, 14))
def test_the_limit_inside_a_character(limit):
    """One tokenizer: exact, and the bytes of the broken character are pending. Two: cut back."""
    alone = scripted(PIECES, saying(PIECES, "a 😀 b"), PROMPT, "one")
    output = SpecEM([alone]).generate(PROMPT, max_new_tokens=limit)
    ids = PIECES("a 😀 b", add_special_tokens=False)["input_ids"]
    spelled = alone.table.spell(ids[:limit])
    assert output.token_ids[0] == [*ids, PIECES.eos_token_id][:limit]
    assert output.text.encode() + output.pending == spelled
    assert output.text == spelled.decode("utf-8", "ignore")

    pair = [
        scripted(PIECES, saying(PIECES, "a 😀 b"), PROMPT, "pieces"),
        scripted(BYTES, saying(BYTES, "a 😀 b"), PROMPT, "bytes"),
    ]
    both = SpecEM(pair).generate(PROMPT, max_new_tokens=limit)
    assert both.pending == b""
    assert both.text == output.text
    assert len(both.token_ids[0]) <= limit


def test_invalid_bytes_do_not_stall_the_stream():
    lone = PIECES.convert_tokens_to_ids("<0xFF>")
    letter = PIECES("a", add_special_tokens=False)["input_ids"][-1]
    script = [{lone: 0.9}, {letter: 0.9}, {lone: 0.9}, {letter: 0.9}, {PIECES.eos_token_id: 0.9}]
    one = scripted(PIECES, script, PROMPT, "one")
    run = SpecEM([one], segment_length=2).stream(PROMPT, max_new_tokens=50)
    assert [piece.text for piece in run] == ["�a", "�a", ""]
    assert run.data == b"\xffa\xffa"


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4])
def test_every_token_of_a_draft_is_judged(length):
    """The first token by the last committed row, and end-of-text like any other."""
    tokenizer = BYTES
    ids = tokenizer(" the quick brown fox", add_special_tokens=False)["input_ids"][:length]
    end = tokenizer.eos_token_id
    probabilities = [0.5, 0.25, 0.125, 0.4, 0.2]
    drafter = [{token: 0.9} for token in (*ids, end)]
    judge = [{t: p} for t, p in zip((*ids, end), probabilities, strict=False)]
    members = [
        scripted(tokenizer, drafter, PROMPT, "drafter"),
        scripted(tokenizer, judge, PROMPT, "judge"),
    ]
    (round_, *_) = SpecEM(members, segment_length=8).generate(PROMPT).rounds
    draft = next(c for c in round_.candidates if 0 in c.drafted_by)
    assert draft.token_ids[1] == [*ids, end]
    assert draft.log_likelihoods[0] == pytest.approx(math.log(0.9), abs=1e-6)
    golden = sum(map(math.log, probabilities[: length + 1])) / (length + 1)
    assert draft.log_likelihoods[1] == pytest.approx(golden, abs=1e-6)


def test_a_draft_of_one_token_that_the_others_reject_loses():
    a, b = (BYTES(word, add_special_tokens=False)["input_ids"][0] for word in (" the", " quick"))
    sure = {a: 0.6, b: 0.3}
    members = [
        scripted(BYTES, [{b: 0.51, a: 0.48}], PROMPT, "odd one"),
        scripted(BYTES, [sure], PROMPT, "second"),
        scripted(BYTES, [sure], PROMPT, "third"),
    ]
    output = SpecEM(members, segment_length=1).generate(PROMPT, max_new_tokens=1)
    assert output.token_ids == [[a]] * 3


def test_a_member_that_always_ends_first_neither_wins_nor_is_asked_again():
    """It is outvoted in each round; the run goes on and ends with the others."""
    words = saying(BYTES, " the quick brown fox jumps over the lazy dog", probability=0.95)
    end = {BYTES.eos_token_id: 0.9}
    members = [
        scripted(BYTES, [end], PROMPT, "quitter"),
        scripted(BYTES, words, PROMPT, "second"),
        scripted(BYTES, words, PROMPT, "third"),
    ]
    output = SpecEM(members, segment_length=3).generate(PROMPT, max_new_tokens=100)
    assert output.text == " the quick brown fox jumps over the lazy dog"
    assert output.finish_reason == "stop"
    assert [ids[-1] for ids in output.token_ids] == [BYTES.eos_token_id] * 3
    # Its drafts are one end-of-text, for which it needs no decoding step.
    assert output.usage[0].drafted_tokens == 0
    assert output.usage[0].forward_passes == 1 + len(output.rounds)


def test_all_members_end_at_once():
    members = [
        scripted(tokenizer, [{tokenizer.eos_token_id: 0.9}], PROMPT, name)
        for tokenizer, name in ((BYTES, "a"), (PIECES, "b"))
    ]
    output = SpecEM(members).generate(PROMPT)
    assert (output.text, output.finish_reason, len(output.rounds)) == ("", "stop", 1)
    assert output.token_ids == [[BYTES.eos_token_id], [PIECES.eos_token_id]]
    assert len(output.rounds[0].candidates) == 1


def test_a_member_without_an_end_of_text_judges_the_text():
    endless = byte_level_tokenizer(eos=False)
    text = " the quick"
    ids = endless(text, add_special_tokens=False)["input_ids"]
    members = [
        scripted(PIECES, saying(PIECES, text), PROMPT, "ends"),
        scripted(endless, [{t: 0.5} for t in ids] + [{5: 0.9}], PROMPT, "endless"),
    ]
    output = SpecEM(members, segment_length=20).generate(PROMPT, max_new_tokens=30)
    ended = next(c for c in output.rounds[0].candidates if c.ended)
    assert ended.token_ids[1] == ids
    assert ended.log_likelihoods[1] == pytest.approx(math.log(0.5), abs=1e-6)


def test_a_bare_end_that_nobody_else_can_judge_leaves_them_neutral():
    endless = byte_level_tokenizer(eos=False)
    letter = endless(" the", add_special_tokens=False)["input_ids"][0]
    members = [
        scripted(PIECES, [{PIECES.eos_token_id: 0.9}], PROMPT, "ends"),
        scripted(endless, [{letter: 0.9}], PROMPT, "endless"),
    ]
    (round_,) = SpecEM(members, segment_length=2).generate(PROMPT, max_new_tokens=2).rounds
    bare = next(c for c in round_.candidates if c.ended)
    # Beside a candidate that it can judge, the bare end gets nothing from it.
    assert bare.log_likelihoods[1] is None
    assert bare.shares[1] == 0.0


def test_an_impossible_candidate_gets_nothing_and_the_trace_stays_json(tmp_path):
    a, b = (BYTES(word, add_special_tokens=False)["input_ids"][0] for word in (" the", " quick"))
    members = [
        scripted(BYTES, [{a: 0.6, b: 0.4}], PROMPT, "first"),
        scripted(BYTES, [{b: 1.0}], PROMPT, "second"),
    ]
    output = SpecEM(members, segment_length=1).generate(PROMPT, max_new_tokens=1)
    candidate = output.rounds[0].candidates[0]
    assert candidate.token_ids == [[a], [a]]
    assert (candidate.log_likelihoods[1], candidate.shares[1]) == (None, 0.0)
    output.rounds.save(tmp_path / "trace.json")
    written = (tmp_path / "trace.json").read_text()
    assert "Infinity" not in written
    assert "NaN" not in written


def test_several_ends_of_text_count_together():
    tokenizer = BYTES
    member = scripted(tokenizer, [{0: 0.3, 7: 0.25, 9: 0.1}], PROMPT, "one")
    member.model.generation_config.eos_token_id = [0, 7]
    member = type(member)(member.model, tokenizer, name="one")
    (round_,) = SpecEM([member]).generate(PROMPT).rounds
    assert round_.candidates[0].log_likelihoods[0] == pytest.approx(math.log(0.55), abs=1e-6)


@pytest.mark.parametrize("size", [1, 7, 511, 512, 513, 1024, 1500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_greedy_token_is_the_first_maximum(size, dtype):
    generator = torch.Generator().manual_seed(size)
    for _ in range(20):
        # Few values, so that most maxima are tied.
        row = torch.randint(-3, 4, (size,), generator=generator).to(dtype)
        values = row.tolist()
        assert first_maximum(row) == values.index(max(values))
        spoiled = row.clone()
        spoiled[size // 2] = torch.nan
        assert first_maximum(spoiled) == size // 2
