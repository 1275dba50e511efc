"""Known texts, what members say at each of their tokens, and the examples for CoSD's trees."""

import pytest
import torch

from ensemble_decoding import Member
from ensemble_decoding.examples import collect_examples
from ensemble_decoding.teacher_forcing import Text, checked_texts, forced
from tests.decoding.members_for_tests import member, pass_counter
from tests.decoding.slow_reader import reader
from tests.decoding.token_ensemble_oracle import softmax
from tests.decoding.tokenizers_for_tests import (
    GERMAN,
    byte_level_tokenizer,
    permuted_tokenizer,
    sentencepiece_tokenizer,
)

BYTES, PIECES = byte_level_tokenizer(), sentencepiece_tokenizer()
PAIRS = {
    "one table": (BYTES, BYTES),
    "bytes and pieces": (BYTES, PIECES),
    "other ids": (permuted_tokenizer(byte_level_tokenizer(GERMAN)), BYTES),
    "bytes that one has no token for": (byte_level_tokenizer(missing_bytes=b"q"), BYTES),
}


def said_slowly(one, prompt, continuation, temperature=1.0):
    """By the place where each token begins: where it ends, the likeliest token, its probability,
    and the token's own."""
    slow = reader(one.model, one.tokenizer, prompt)
    ids, dropped = slow.encoder.encode(continuation)
    said, begin = {}, 0
    for n, number in enumerate(ids):
        row = slow.row(ids[:n])
        probabilities = softmax({i: value / temperature for i, value in enumerate(row)})
        best = slow.likeliest(row)
        token = slow.bytes[number]
        begin = continuation.index(token, begin) if dropped else begin
        given = (slow.token(best) or b"", probabilities[best], probabilities[number])
        said[begin] = (begin + len(token), *given)
        begin += len(token)
    return said


def learned(one, seed, prompt, count):
    """A text that a member writes, so that it is now and then right."""
    generator = torch.Generator().manual_seed(seed)
    ids = list(one.tokenizer(prompt)["input_ids"])
    first = len(ids)
    table = one.table
    usable = torch.tensor([token is not None and token.isascii() for token in table.token_bytes])
    for _ in range(count):
        with torch.no_grad():
            row = one.model(torch.tensor([ids])).logits[0, -1, : len(usable)]
        row = (row / 0.25).masked_fill(~usable, -torch.inf)
        ids.append(int(torch.multinomial(row.softmax(0), 1, generator=generator)))
    return table.spell(ids[first:]).decode()


def texts_of(members):
    """Of each member one, and of both."""
    texts = [(f"The {n} ", learned(one, n, f"The {n} ", 80)) for n, one in enumerate(members)]
    texts.append({"prompt": "The fox ", "continuation": "quickly jumps over the quick brown dog"})
    return texts


@pytest.fixture(scope="module", params=PAIRS)
def members(request):
    first, second = PAIRS[request.param]
    return [member("llama", first, seed=5), member("gemma3", second, seed=15)]


def test_what_is_said_at_each_token_is_that_of_whole_passes(members):
    for one in members:
        for text in checked_texts(texts_of(members)):
            counter = pass_counter(one.model)
            got = list(forced(one, text, [0.5, 3.0]))
            assert counter.tokens == len(one.encode_prompt(text.prompt)) + len(got)
            data = text.continuation.encode()
            plain, cold, hot = (said_slowly(one, text.prompt, data, t) for t in (1.0, 0.5, 3.0))
            assert [(it.start, it.end) for it in got] == [(s, it[0]) for s, it in plain.items()]
            for it in got:
                end, best, best_probability, own = plain[it.start]
                assert it.best == best
                assert it.right == (best == data[it.start : end])
                assert it.best_probability == pytest.approx(best_probability, rel=1e-5)
                assert it.log_probability == pytest.approx(torch.tensor(own).log().item(), rel=1e-4)
                for (highest, own_there), other in zip(
                    it.at_temperatures, (cold, hot), strict=True
                ):
                    assert highest == pytest.approx(other[it.start][2], rel=1e-4)
                    assert own_there == pytest.approx(
                        torch.tensor(other[it.start][3], dtype=torch.float64).log().item(), rel=1e-4
                    )


def counted_examples(members, texts):
    found = []
    for text in checked_texts(texts):
        data = text.continuation.encode()
        own, theirs = (said_slowly(one, text.prompt, data) for one in members)
        for begin in sorted(own.keys() & theirs.keys()):
            right = [said[begin][1] == data[begin : said[begin][0]] for said in (own, theirs)]
            if sum(right) == 1:
                found.append((own[begin][2], theirs[begin][2], right[1]))
    return found


def test_examples_are_where_one_alone_is_right(members):
    texts = texts_of(members)
    expected = counted_examples(members, texts)
    got = collect_examples(*members, texts, progress=False)
    assert len(got) == len(expected) > 5
    for one, (draft, assistant, replace) in zip(got, expected, strict=True):
        assert one[:2] == pytest.approx((draft, assistant), rel=1e-5)
        assert one.replace == replace
    assert {one.replace for one in got} == {True, False}


@pytest.fixture(scope="module")
def pair():
    return [member("llama", BYTES, seed=5), member("llama", BYTES, seed=6)]


def test_what_was_collected_is_not_read_again(pair, tmp_path, capsys):
    texts, path = texts_of(pair), tmp_path / "examples.jsonl"
    expected = [collect_examples(*pair, [text], progress=False) for text in texts]
    assert capsys.readouterr() == ("", "")
    assert collect_examples(*pair, texts[:1], path) == expected[0]
    assert "examples" in capsys.readouterr().err
    assert collect_examples(*pair, texts[:2], path, progress=False) == expected[0] + expected[1]
    counter = pass_counter(pair[0].model)
    assert collect_examples(*pair, texts[:2], path, progress=False) == expected[0] + expected[1]
    assert counter.tokens == 0
    # In another order, and with one more.
    again = collect_examples(*pair, texts[::-1], path, progress=False)
    assert again == expected[2] + expected[1] + expected[0]
    assert counter.tokens > 0
    assert len(path.read_text().splitlines()) == 3
    # Of other members nothing is there yet.
    others = pair[::-1]
    assert collect_examples(*others, texts[:1], path, progress=False) == [
        (a, d, not replace) for d, a, replace in expected[0]
    ]
    assert len(path.read_text().splitlines()) == 4


@pytest.mark.parametrize("cut", [1, 2, 30, "all but one character"])
def test_a_line_that_was_cut_off_is_written_again(pair, tmp_path, cut):
    """Also one that lacks its newline alone: what follows must not be joined to it."""
    texts, path = texts_of(pair), tmp_path / "examples.jsonl"
    expected = collect_examples(*pair, texts, path, progress=False)
    whole = path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    cut = len(last) - 1 if isinstance(cut, str) else cut
    path.write_bytes(whole[:-cut])
    assert collect_examples(*pair, texts, path, progress=False) == expected
    assert path.read_bytes() == whole
    path.write_bytes(whole[:-cut])
    more = [*texts, "The lazy dog sleeps"]
    assert collect_examples(*pair, more, path, progress=False)[: len(expected)] == expected
    assert collect_examples(*pair, texts, path, progress=False) == expected


@pytest.mark.parametrize(
    "content",
    [
        b"hello\n",
        b"[]\n",
        b"{}\n",
        b'{"text": "a", "examples": [[1, 2]]}\n',
        b"\xff\xff\n",
        b"{\n{}",
    ],
)
def test_files_of_something_else_are_refused(pair, tmp_path, content):
    path = tmp_path / "examples.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="path must hold examples that collect_examples") as error:
        collect_examples(*pair, ["a text"], path, progress=False)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert path.read_bytes() == content


def test_a_text_longer_than_a_context_is_read_as_far_as_it_has_room():
    one = Member(member(seed=5).model, BYTES)
    one.context_length = len(one.encode_prompt("The ")) + 5
    assert len(list(forced(one, Text("The ", "quick brown fox jumps over the lazy dog")))) == 5
