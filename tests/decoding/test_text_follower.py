"""The encoding of a text that changes at its end is that of the whole text."""

from __future__ import annotations

import random
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ensemble_decoding.joints import Joints
from ensemble_decoding.text import TextEncoder
from ensemble_decoding.text_follower import TextFollower
from ensemble_decoding.token_table import TokenTable
from tests.decoding.specem_strategies import property_settings
from tests.decoding.splitting_tokenizers import CODE, kinds_that_split
from tests.decoding.tokenizers_for_tests import ENGLISH, GERMAN

KINDS = kinds_that_split()
# What white space, digits, apostrophes, ideographs and parts of characters meet in.
PARTS = [
    *" \n\t\r0123'sd.,!?aäé字你好世界😀🦜—",
    "  ", "\n\n", " \n ", "   ", " the", "Inc", "orr", "ect", "don't", "'ve", "1234", "<tool>",
    "  \n", "fox", "the quick", "a  b", " brown", "<|end|>", "\u00a0", "\u3000", "e\u0301",
]  # fmt: skip
PIECES = [*(part.encode() for part in PARTS), b"\xf0", b"\x9f\x98", b"\xff", b"\xc3", b"\xe4\xbd"]
CHANGES = st.lists(
    st.tuples(st.integers(0, 6), st.lists(st.sampled_from(PIECES), max_size=5)), max_size=20
)


@cache
def encoder_of(kind):
    table = TokenTable.from_tokenizer(KINDS[kind], [KINDS[kind].eos_token_id])
    return TextEncoder(KINDS[kind], table), table


@pytest.mark.parametrize("kind", KINDS)
@property_settings(100)
@given(CHANGES)
def test_each_encoding_is_that_of_the_whole_text(kind, changes):
    encoder, table = encoder_of(kind)
    follower, data = TextFollower(encoder, table), b""
    for taken_back, pieces in changes:
        data = data[: max(0, len(data) - taken_back)] + b"".join(pieces)
        assert follower.encode(data) == encoder.encode(data)


@pytest.mark.parametrize("kind", KINDS)
def test_ordinary_text_byte_by_byte_and_back(kind):
    """Each place is a place where the text once ended."""
    encoder, table = encoder_of(kind)
    chance = random.Random(0)
    for text in (CODE, ENGLISH[-560:], GERMAN[-330:]):
        whole, follower, end = text.encode(), TextFollower(encoder, table), 0
        while end < len(whole):
            end += chance.choice([1, 1, 2, 3, 9])
            if chance.random() < 0.2:
                end = max(0, end - chance.randrange(12))
            data = whole[:end] + chance.choice([b"", b"", b" ", b"\n", b"s", b"0", b"\xf0"])
            assert follower.encode(data) == encoder.encode(data)


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        # Punctuation takes the ends of lines behind it, and only with them all white space.
        ("gpt4", [" ,\n  \nab", " ,\n  \nabc"]),
        ("added_rstrip", ["\n<tool> bro", "\n<tool> brown"]),
        ("whole_words_first", ["界好字界", "界好字"]),
    ],
)
def test_what_tokenizers_see_across(kind, texts):
    encoder, table = encoder_of(kind)
    follower = TextFollower(encoder, table)
    for text in texts:
        assert follower.encode(text.encode()) == encoder.encode(text.encode())


def test_what_it_gave_out_it_does_not_change():
    encoder, table = encoder_of("byte_level")
    follower = TextFollower(encoder, table)
    first = follower.encode(b"the quick brown Inc")
    known = [list(part) for part in first]
    follower.encode(b"the quick brown Incorrect")
    follower.encode(b"the")
    assert [list(part) for part in first] == known


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "metaspace", "gpt4", "qwen2"])
def test_only_the_end_of_ordinary_text_is_encoded_again(kind):
    encoder, table = encoder_of(kind)
    words = ENGLISH.replace("\n", " ").encode()
    follower = TextFollower(encoder, table)
    for end in range(0, len(words), 5):
        follower.encode(words[:end])
    # Two or three words for each five bytes, not the thousands that stand before them.
    assert len(words) > 3000
    assert follower.encoded_bytes < 8 * len(words)


def character_places(data):
    """By definition: where a prefix ends that is text, and so is what follows."""
    return [n for n in range(1, len(data)) if is_text(data[:n]) and is_text(data[n:])]


def is_text(data):
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@property_settings(60)
@given(
    st.lists(st.sampled_from(PIECES), max_size=12),
    st.lists(st.sampled_from(PARTS).map(str.encode), max_size=8).map(b"".join),
)
def test_no_token_reaches_across_a_joint(tokens, data):
    joints = Joints([None, b"", *tokens])
    for place in range(-1, len(data) + 2):
        if not joints.at(data, place):
            continue
        assert place in character_places(data)
        left, right = data[:place].decode()[-1:], data[place:].decode()[:1]
        pair = (left + right).encode()
        assert not any(pair in token for token in tokens)
        if right in " \t\r\n":
            assert left.isalnum() or (right in " \t" and not left.isspace())
        else:
            assert all("\u3400" <= c <= "\u9fff" for c in left + right)


def test_joints():
    joints = Joints([b"ab", b"b ", "字你".encode(), b"\xa0\xe5", b"x\n", None])
    text = "a b x\ny 字你好, 世界  z".encode()
    places = [place for place in range(len(text) + 1) if joints.at(text, place)]
    shown = [(text[:n].decode()[-1], text[n:].decode()[0]) for n in places]
    assert shown == [("a", " "), ("y", " "), (",", " "), ("世", "界"), ("界", " ")]
    assert not Joints([]).at(b"", 0)
    assert not Joints([]).at(b"\xff a", 1)
