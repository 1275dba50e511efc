"""Where characters end, and bytes to text in pieces."""

from __future__ import annotations

import codecs
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble_decoding.text import CharacterDecoder, complete_prefix

from .text_oracle import is_utf8

PIECES = [b"a", "é".encode(), "你".encode(), "😀".encode(), b"\xff", b"\x80", b"\xf0\x9f", b"\xf0"]
PIECES += [b"\xf0\x9f\x98", b"\xc3", b"\xe2\x96", b"\xed\xa0", b"\xed", b"\xf4\x90", b"\xe0\x80"]
pieces_of_text = st.lists(st.sampled_from(PIECES) | st.binary(max_size=3), max_size=12)
any_bytes = pieces_of_text.map(b"".join)


def begun_character(data: bytes) -> bytes:
    """By trial: the last bytes, if they are no character yet and some more would make them one."""
    for tail in (data[-k:] for k in range(1, min(3, len(data)) + 1)):
        for length in range(1, 4):
            for more in itertools.product(b"\x80\x90\x9f\xa0\xbf", repeat=length):
                if is_utf8(tail + bytes(more)) and len((tail + bytes(more)).decode()) == 1:
                    return tail
    return b""


@settings(deadline=None)
@given(data=any_bytes)
def test_complete_prefix(data: bytes) -> None:
    assert complete_prefix(data) == len(data) - len(begun_character(data))


def test_complete_prefix_of_every_end() -> None:
    """All ends of one and two bytes, and of three and four at the limits of what is legal.

    Python's decoder also holds back the first two bytes of an encoded surrogate, in case that
    its caller lets surrogates pass; they can never become a character.
    """
    limits = bytes.fromhex("007f808f909fa0bfc0c1c2dfe0e1ecedeeeff0f1f3f4f5ff")
    threes = [bytes(end) for end in itertools.product(limits, repeat=3)]
    fours = [end + bytes([last]) for end in threes for last in b"\x41\x80\xbf\xf0"]
    for end in [bytes(end) for end in itertools.product(range(256), repeat=2)] + threes + fours:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(b"x" + end)
        held_back, _ = decoder.getstate()
        if held_back[:1] == b"\xed" and held_back[1:] >= b"\xa0":
            held_back = b""
        assert complete_prefix(b"x" + end) == 1 + len(end) - len(held_back), end


@settings(deadline=None)
@given(pieces=pieces_of_text)
def test_decoded_pieces_join_to_the_whole(pieces: list[bytes]) -> None:
    decoder = CharacterDecoder()
    text = "".join(decoder.feed(piece) for piece in pieces)
    whole = b"".join(pieces)
    complete = whole[: len(whole) - len(decoder.pending)]
    assert text == complete.decode("utf-8", "replace")
    assert whole.endswith(decoder.pending)
    assert text + decoder.pending.decode("utf-8", "replace") == whole.decode("utf-8", "replace")


@settings(deadline=None)
@given(data=any_bytes)
def test_decoded_byte_by_byte(data: bytes) -> None:
    decoder = CharacterDecoder()
    text = "".join(decoder.feed(bytes([byte])) for byte in data)
    assert text + decoder.pending.decode("utf-8", "replace") == data.decode("utf-8", "replace")


def test_a_byte_that_is_no_character_does_not_stall() -> None:
    decoder = CharacterDecoder()
    assert decoder.feed(b"a\xff") == "a\ufffd"
    assert decoder.feed(b"\xf0\x9f\x98") == ""
    assert decoder.pending == b"\xf0\x9f\x98"
    assert decoder.feed(b"b") == "\ufffdb"
    assert decoder.pending == b""
