"""A member whose tokenizer lacks bytes of the text: what is behind the end is cut for it as for all
others, and `unspelled` has the bytes of the response alone."""

import pytest

from ensemble_decoding import SpecEM
from tests.decoding.members_for_tests import PROMPT, member
from tests.decoding.scripted_model import saying, scripted
from tests.decoding.text_oracle import bytes_of_ids
from tests.decoding.tokenizers_for_tests import byte_level_tokenizer, sentencepiece_tokenizer

LACKING = b"aeiou"
HOLES = byte_level_tokenizer(missing_bytes=LACKING)
SPELLING = bytes_of_ids(HOLES)
TEXT = " the quick brown fox jumps over the lazy dog"
WRITERS = [byte_level_tokenizer(), sentencepiece_tokenizer(bos=False)]


def check(run, lacking):
    """The bytes of member `lacking` are those of the response, to the last whole token."""
    output = run.output
    data = b"".join(round_.data for round_ in output.rounds)
    ids = output.token_ids[lacking]
    written = b"".join(SPELLING[number] for number in ids)
    wanted = data.translate(None, LACKING)
    assert output.unspelled[lacking] == bytes(byte for byte in data if byte in LACKING)
    assert wanted.startswith(written)
    last = output.rounds[-1]
    left = last.candidates[last.winner].token_ids[lacking][last.committed_tokens[lacking] :]
    assert (
        not left
        or len(written) + len(SPELLING.get(left[0], b"")) > len(wanted)
        or (left[0] == HOLES.eos_token_id)
    )
    for context in run.contexts:
        assert context.cache.length == context.cache.committed == len(context.ids)
    assert sum(round_.committed_tokens[lacking] for round_ in output.rounds) == len(ids)


def finished(method, **options):
    run = method.stream(PROMPT, **{"max_new_tokens": 200, **options})
    for _ in run:
        pass
    return run


@pytest.mark.parametrize("writer", WRITERS, ids=["bytes", "pieces"])
@pytest.mark.parametrize("length", [1, 4, 10])
@pytest.mark.parametrize("stop", ["q", "o", " f", "ov", "e l", "lazy", "og"])
def test_a_stop_string(writer, length, stop):
    one = scripted(writer, saying(writer, TEXT), PROMPT, "writer")
    judge = member("llama", HOLES, seed=2)
    run = finished(SpecEM([one], verifiers=[judge], segment_length=length), stop_strings=stop)
    assert run.output.text == TEXT[: TEXT.find(stop) + len(stop)]
    check(run, 1)


@pytest.mark.parametrize("length", [1, 4, 10])
@pytest.mark.parametrize("stop", ["e", "qui", "o", "jumps", "zy"])
def test_a_stop_string_where_it_counts_the_tokens(length, stop):
    """Also where the stop string ends in bytes behind its last token of the segment."""
    writers = [scripted(WRITERS[0], saying(WRITERS[0], TEXT), PROMPT, name) for name in "ab"]
    first = member("llama", HOLES, seed=2)
    run = finished(SpecEM([first, *writers], segment_length=length), stop_strings=stop)
    assert run.output.text == TEXT[: TEXT.find(stop) + len(stop)]
    check(run, 0)


@pytest.mark.parametrize("writer", WRITERS, ids=["bytes", "pieces"])
def test_a_limit_in_its_own_tokens(writer):
    for limit in range(1, 12):
        one = scripted(writer, saying(writer, TEXT), PROMPT, "writer")
        two = scripted(writer, saying(writer, TEXT), PROMPT, "same")
        first = member("llama", HOLES, seed=2)
        run = finished(SpecEM([first, one, two]), max_new_tokens=limit)
        assert TEXT.startswith(run.output.text)
        assert len(run.output.token_ids[0]) == limit
        assert run.output.finish_reason == "length"
        check(run, 0)


def test_a_limit_among_bytes_that_it_lacks_and_that_are_no_text():
    ids = [WRITERS[0].convert_tokens_to_ids(byte) for byte in "ËÃ"]
    writers = [
        scripted(WRITERS[0], [{number: 0.99} for number in ids], PROMPT, name) for name in "ab"
    ]
    first = member("llama", byte_level_tokenizer(missing_bytes=b"\xc3"), seed=2)
    output = SpecEM([first, *writers], segment_length=2).generate(PROMPT, max_new_tokens=1)
    assert output.rounds[0].candidates[output.rounds[0].winner].data == b"\xcb" + b"\xc3" * 4
    assert (output.text, output.pending, output.finish_reason) == ("", b"", "length")


def test_a_limit_of_random_models():
    ended = 0
    for seed in range(8):
        members = [member("llama", HOLES, seed=2), member("llama", seed=seed)]
        for limit in (3, 7):
            run = finished(SpecEM(members), max_new_tokens=limit)
            assert len(run.output.token_ids[0]) <= limit
            check(run, 0)
            ended += run.output.finish_reason == "length"
    assert ended > 8
