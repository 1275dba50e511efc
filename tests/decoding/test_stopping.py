"""Where a response ends, and that nothing leaks behind it. The oracle is the run without the rule,
cut by plain Python."""

import re

import pytest
import torch
from transformers import MaxLengthCriteria, StoppingCriteria, StoppingCriteriaList

from ensemble_decoding import SpecEM
from tests.decoding.members_for_tests import PROMPT, member, three_families
from tests.decoding.scripted_model import saying, scripted
from tests.decoding.test_specem import assert_cache_is_a_fresh_prefill
from tests.decoding.tokenizers_for_tests import byte_level_tokenizer, sentencepiece_tokenizer

TEXT = " the quick brown fox jumps over the lazy dog, naïve 😀 end"
TOKENIZERS = (byte_level_tokenizer(), sentencepiece_tokenizer(bos=False))


def pair():
    return [
        scripted(tokenizer, saying(tokenizer, TEXT), PROMPT, name)
        for tokenizer, name in zip(TOKENIZERS, ("bytes", "pieces"), strict=True)
    ]


def finished(method, **options):
    run = method.stream(PROMPT, **{"max_new_tokens": 300, **options})
    pieces = [piece.text for piece in run]
    assert "".join(pieces) == run.output.text
    for context, ids in zip(run.contexts, run.output.token_ids, strict=True):
        assert context.cache.length == context.cache.committed == len(context.ids)
        assert run.data.startswith(context.member.table.spell(ids))
    assert b"".join(r.data for r in run.output.rounds) == run.data
    for j, ids in enumerate(run.output.token_ids):
        assert sum(r.committed_tokens[j] for r in run.output.rounds) == len(ids)
    return run


@pytest.mark.parametrize("segment_length", [1, 3, 10])
@pytest.mark.parametrize(
    "stops",
    [
        "fox",
        " fox jumps over",
        "o",
        "ox j",
        ["dog", "brown", "lazy"],
        ["brown fox", "own"],
        "naï",
        "😀",
        " ",
        "end",
    ],
)
def test_the_text_ends_right_behind_the_first_stop_string(stops, segment_length):
    run = finished(SpecEM(pair(), segment_length=segment_length), stop_strings=stops)
    wanted = [stops] if isinstance(stops, str) else stops
    end = min(TEXT.find(stop) + len(stop) for stop in wanted)
    assert run.output.text == TEXT[:end]
    assert run.output.finish_reason == "stop"


def test_a_stop_string_of_the_prompt_or_across_its_end_does_not_count():
    stop = PROMPT[-4:] + TEXT[:4]
    run = finished(SpecEM(pair(), segment_length=4), stop_strings=[stop, PROMPT[:9]])
    assert run.output.text == TEXT


def test_a_stop_string_that_never_comes():
    run = finished(SpecEM(pair()), stop_strings="xyzzy")
    assert (run.output.text, run.output.finish_reason) == (TEXT, "stop")


def test_a_stop_string_leaves_caches_and_the_next_run_alone():
    method = SpecEM(three_families(), segment_length=5)
    whole = method.generate(PROMPT, max_new_tokens=60)
    stop = re.search("[a-z]{3}", whole.text[5:]).group()
    run = finished(method, stop_strings=stop, max_new_tokens=60)
    for context in run.contexts:
        assert_cache_is_a_fresh_prefill(context)
    assert run.output.text == whole.text[: whole.text.find(stop) + len(stop)]
    assert method.generate(PROMPT, max_new_tokens=60).token_ids == whole.token_ids


class AtIds(StoppingCriteria):
    """Stops at a number of ids; notes what it was asked."""

    def __init__(self, count):
        self.count, self.asked = count, []

    def __call__(self, input_ids, scores, **_):
        self.asked.append(input_ids.shape[1])
        return torch.tensor([input_ids.shape[1] >= self.count])


@pytest.mark.parametrize("new_tokens", [1, 2, 5, 9, 13])
def test_criteria_stop_at_the_exact_token_of_the_first_member(new_tokens):
    prompt_length = len(TOKENIZERS[0](PROMPT)["input_ids"])
    criterion = AtIds(prompt_length + new_tokens)
    method = SpecEM(pair(), segment_length=4)
    whole = method.generate(PROMPT)
    run = finished(method, stopping_criteria=StoppingCriteriaList([criterion]))
    assert run.output.token_ids[0] == whole.token_ids[0][:new_tokens]
    assert run.output.finish_reason == "stop"
    assert criterion.asked == list(range(prompt_length + 1, prompt_length + new_tokens + 1))


@pytest.mark.parametrize(
    "ending",
    [{"max_new_tokens": 7}, {"stop_strings": "fox ju"}, {"stop_strings": "own"}, {}],
    ids=repr,
)
@pytest.mark.parametrize("segment_length", [1, 4, 10])
def test_criteria_hear_of_committed_tokens_alone(ending, segment_length):
    prompt_length = len(TOKENIZERS[0](PROMPT)["input_ids"])
    criterion = AtIds(10**6)
    method = SpecEM(pair(), segment_length=segment_length)
    run = finished(method, stopping_criteria=[criterion], **ending)
    assert run.output.text == finished(method, **ending).output.text
    count = len(run.output.token_ids[0])
    assert criterion.asked == list(range(prompt_length + 1, prompt_length + count + 1))


def test_transformers_own_criteria():
    prompt_length = len(TOKENIZERS[0](PROMPT)["input_ids"])
    criteria = StoppingCriteriaList([MaxLengthCriteria(prompt_length + 7)])
    run = finished(SpecEM(pair()), stopping_criteria=criteria)
    assert len(run.output.token_ids[0]) == 7


def test_the_earliest_of_several_endings_counts():
    ids = TOKENIZERS[0](TEXT, add_special_tokens=False)["input_ids"]
    third = TOKENIZERS[0].decode(ids[:3])
    method = SpecEM(pair(), segment_length=6)
    run = finished(method, stop_strings="dog", max_new_tokens=3)
    assert (run.output.text, run.output.finish_reason) == (third, "length")
    run = finished(method, stop_strings=third[-2:], max_new_tokens=30)
    assert run.output.text == TEXT[: TEXT.find(third[-2:]) + 2]
    assert run.output.finish_reason == "stop"


@pytest.mark.parametrize("segment_length", range(1, 9))
def test_limits_are_exact_and_the_counters_agree(segment_length):
    members = [member(seed=seed) for seed in (1, 2)]
    method = SpecEM(members, segment_length=segment_length)
    for limit in range(1, 21):
        run = finished(method, max_new_tokens=limit)
        ids = run.output.token_ids[0]
        ended = ids[-1] in members[0].end_of_text_ids
        assert len(ids) == limit or (len(ids) < limit and ended)
        assert run.output.finish_reason == ("stop" if ended else "length")
        usage = run.output.usage[0]
        packed = sum(len(c.token_ids[0]) for r in run.output.rounds for c in r.candidates)
        assert usage.verified_tokens == packed


def test_end_of_text_ids_by_option():
    tokenizer = TOKENIZERS[0]
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    one = scripted(tokenizer, saying(tokenizer, TEXT), PROMPT, "one")
    for option in (ids[4], [ids[4], ids[9]], [[ids[4]]]):
        output = SpecEM([one]).generate(PROMPT, eos_token_id=option)
        assert output.token_ids[0] == ids[:5]
        assert output.finish_reason == "stop"
    output = SpecEM(pair()).generate(PROMPT, eos_token_id=[[ids[4]], []])
    assert output.token_ids[0] == ids[:5]
    expected = "must have an entry for each of the 2 members, which have different tokenizers, got"
    for wrong in (ids[4], [ids[4]], [[1], [2], [3]]):
        with pytest.raises(ValueError, match=f"eos_token_id {expected}"):
            SpecEM(pair()).generate(PROMPT, eos_token_id=wrong)


def base_and_chat():
    """Two models of one tokenizer that stop differently."""
    base = scripted(TOKENIZERS[0], saying(TOKENIZERS[0], TEXT), PROMPT, "base")
    return [base, base.with_end_of_text([base.end_of_text_ids[0], 2])]


def test_one_end_of_text_id_for_members_that_stop_differently():
    ids = TOKENIZERS[0](TEXT, add_special_tokens=False)["input_ids"]
    for option in (ids[4], [ids[4], ids[9]]):
        output = SpecEM(base_and_chat()).generate(PROMPT, eos_token_id=option)
        assert (output.token_ids, output.finish_reason) == ([ids[:5]] * 2, "stop")


def test_the_limit_is_exact_for_members_that_stop_differently():
    for limit in range(1, 1 + len(TOKENIZERS[0](TEXT, add_special_tokens=False)["input_ids"])):
        run = finished(SpecEM(base_and_chat(), segment_length=4), max_new_tokens=limit)
        assert [len(ids) for ids in run.output.token_ids] == [limit, limit]


@pytest.mark.parametrize("limit", [1, 2, 9, 11, 23])
def test_a_limit_among_bytes_that_are_no_text_keeps_all_but_the_last(limit):
    """Each of them could begin a character, so that no end among them is a complete one."""
    ids = [TOKENIZERS[0].convert_tokens_to_ids("Ë"), TOKENIZERS[1].convert_tokens_to_ids("<0xCB>")]
    members = [
        scripted(tokenizer, [{number: 0.99}], PROMPT, str(number))
        for tokenizer, number in zip(TOKENIZERS, ids, strict=True)
    ]
    output = finished(SpecEM(members), max_new_tokens=limit).output
    assert output.token_ids == [[number] * (limit - 1) for number in ids]
    assert output.text + output.pending.decode("latin1") == "\ufffd" * (limit - 2) + "Ë" * (
        limit > 1
    )


def test_a_stop_string_is_sought_in_the_bytes():
    """What the text shows for bytes that are no text is not in them."""
    number = TOKENIZERS[0].convert_tokens_to_ids("Ë")
    one = scripted(TOKENIZERS[0], [{number: 0.99}], PROMPT, "one")
    run = finished(SpecEM([one]), stop_strings="\ufffd", max_new_tokens=8)
    assert (run.output.text, run.output.finish_reason) == ("\ufffd" * 7, "length")
    real = scripted(TOKENIZERS[0], saying(TOKENIZERS[0], " a \ufffd b"), PROMPT, "real")
    run = finished(SpecEM([real]), stop_strings="\ufffd")
    assert (run.output.text, run.output.finish_reason) == (" a \ufffd", "stop")
