"""Bytes to ids and back, for every kind of tokenizer."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from ensemble_decoding.text import CharacterDecoder, TextEncoder
from ensemble_decoding.token_table import TokenTable

from .text_oracle import NaiveEncoder
from .tokenizers_for_tests import (
    ENGLISH,
    MISSING_BYTES,
    byte_level_tokenizer,
    every_kind,
    sentencepiece_tokenizer,
)

KINDS = every_kind()
TABLES = {kind: TokenTable.from_tokenizer(t, [t.eos_token_id]) for kind, t in KINDS.items()}
ENCODERS = {kind: TextEncoder(KINDS[kind], TABLES[kind]) for kind in KINDS}
LOSSLESS = sorted(set(KINDS) - {"byte_level_holes", "no_byte_fallback"})

ODD_PIECES = ["▁", "▁▁", "e\u0301", "\u0301", "é", "Ġ", "<s>", "</s>", "<unk>", "<|endoftext|>"]
ODD_PIECES += ["<|tool|>", "<0x41>", "\x00", "\x04", "\u2014", "\U00040000", "\ufffd", "😀", "🦜"]
CLEAN_PIECES = [" ", "  ", "\n\n", "the", " quick", "Incorrect", "42", "don't", "ü", "你好", "ﬁ"]
INVALID = [b"\xff", b"\x80", b"\xf0\x9f", b"\xf0\x9f\x98", b"\xc3", b"\xe2\x96", b"\xed\xa0\x80"]
PIECES = [piece.encode() for piece in ODD_PIECES + CLEAN_PIECES]

texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=4).map(str.encode), max_size=12)
mixed = st.lists(st.sampled_from(PIECES + INVALID) | st.binary(max_size=3), max_size=12)
any_bytes = texts.map(b"".join) | mixed.map(b"".join) | st.binary(max_size=40)


def placed(data: bytes, table: TokenTable, ids: list[int], ends: list[int]) -> list[int]:
    """Checks that each id spells the bytes in front of its end; the places that none covers."""
    covered: list[int] = []
    for number, end in zip(ids, ends, strict=True):
        token = table.spell([number])
        assert data[end - len(token) : end] == token
        covered += range(end - len(token), end)
    assert covered == sorted(set(covered))
    return sorted(set(range(len(data))) - set(covered))


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(data=any_bytes)
def test_ids_spell_the_bytes(kind: str, data: bytes) -> None:
    table = TABLES[kind]
    ids, ends, missing = ENCODERS[kind].encode(data)
    assert placed(data, table, ids, ends) == missing
    dropped = bytes(data[place] for place in missing)
    assert not set(ids) & {*KINDS[kind].all_special_ids}
    if kind in LOSSLESS:
        assert table.spell(ids) == data
        assert dropped == b""
    elif kind == "byte_level_holes":
        assert dropped == bytes(byte for byte in data if byte in MISSING_BYTES)


# The dummy prefix aside, those two write as their siblings without it.
SIBLINGS = {"dummy_prefix": "sentencepiece", "metaspace_dummy_prefix": "metaspace"}
ORACLES = {kind: NaiveEncoder(KINDS[SIBLINGS.get(kind, kind)]) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50, deadline=None)
@given(data=any_bytes)
def test_the_rule_for_odd_characters(kind: str, data: bytes) -> None:
    encoding = ENCODERS[kind].encode(data)
    assert (encoding.ids, encoding.unspelled(data)) == ORACLES[kind].encode(data)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rule_in_texts_longer_than_a_window(kind: str) -> None:
    draw = random.Random(kind)
    pieces = [piece.encode() for piece in CLEAN_PIECES] * 6 + PIECES + INVALID
    data = b"".join(draw.choice(pieces) for _ in range(400))
    encoding = ENCODERS[kind].encode(data)
    assert (encoding.ids, encoding.unspelled(data)) == ORACLES[kind].encode(data)


@pytest.mark.parametrize("kind", LOSSLESS)
def test_clean_text_is_encoded_as_by_the_tokenizer(kind: str) -> None:
    text = "The answers are correct, and the question was lost.\n\nA model reads (right + left)."
    expected = KINDS[kind](text, add_special_tokens=False)["input_ids"]
    encoded = ENCODERS[kind].encode(text.encode()).ids
    if "dummy_prefix" not in kind:
        assert encoded == expected
        return
    # The space that is put before the text changes its first word and nothing else.
    assert TABLES[kind].spell(expected) == b" " + text.encode()
    assert TABLES[kind].spell(encoded) == text.encode()
    assert encoded[-20:] == expected[-20:]


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("odd", [piece.encode() for piece in ODD_PIECES] + INVALID)
def test_an_odd_character_leaves_the_tokens_before_it(kind: str, odd: bytes) -> None:
    before = b"The answer is 42, and the question was lost.\n"
    ids = ENCODERS[kind].encode(before).ids
    for after in (b"", b"\nThe lazy dog", b" \xff" + odd):
        assert ENCODERS[kind].encode(before + odd + after).ids[: len(ids)] == ids


def test_tokens_are_kept_up_to_a_whole_character() -> None:
    tokenizer = byte_level_tokenizer("। ॥ ॐ " * 20, 300, nfc=True)
    table = TokenTable.from_tokenizer(tokenizer)
    # NFC makes E0 A4 95 ... of E0 A5 98: the first byte alone is no reason to keep its token.
    ids = TextEncoder(tokenizer, table).encode("a\u0958".encode()).ids
    assert [table.token_bytes[number] for number in ids] == [b"a", b"\xe0\xa5", b"\x98"]


@pytest.mark.parametrize("kind", LOSSLESS)
def test_an_emoji_in_one_token_or_in_one_for_each_byte(kind: str) -> None:
    data = " 😀".encode()
    ids = ENCODERS[kind].encode(data).ids
    if kind in ("byte_level", "byte_level_nfc", "permuted"):
        assert len(ids) == 1
    else:
        assert [TABLES[kind].token_bytes[number] for number in ids] == [
            bytes([byte]) for byte in data
        ]
    decoder = CharacterDecoder()
    assert "".join(decoder.feed(TABLES[kind].spell([number])) for number in ids) == " 😀"


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_of_special_tokens_is_text(kind: str) -> None:
    specials = KINDS[kind].all_special_tokens
    assert specials
    for token in specials:
        ids = ENCODERS[kind].encode(f"a{token}b".encode()).ids
        assert not set(ids) & {*KINDS[kind].all_special_ids}
    # The tokenizer itself would have parsed it.
    assert KINDS[kind].eos_token_id in KINDS[kind](f"a{KINDS[kind].eos_token}b")["input_ids"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokenizer_stays_as_it_was(kind: str) -> None:
    tokenizer = KINDS[kind]
    backend = tokenizer.backend_tokenizer
    backend.enable_truncation(3)
    backend.enable_padding(length=30)
    try:
        before = backend.to_str()
        table = TokenTable.from_tokenizer(tokenizer, [tokenizer.eos_token_id])
        encoder = TextEncoder(tokenizer, table)
        data = "The quick brown fox ▁ <s> \x04".encode()
        assert encoder.encode(data) == ENCODERS[kind].encode(data)
        assert table.canonical_ids == TABLES[kind].canonical_ids
        assert backend.to_str() == before
        assert not backend.encode_special_tokens
    finally:
        backend.no_truncation()
        backend.no_padding()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "unit", [b"a\x04\x06b", "e\u0301".encode(), "▁a ".encode(), b"", b"the dog "]
)
def test_work_grows_with_the_length_of_the_text(
    kind: str, unit: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many odd characters there are, each byte is encoded a bounded number of times."""
    encoder = ENCODERS[kind]
    encoded: list[int] = []
    tokens = encoder._tokens
    monkeypatch.setattr(encoder, "_tokens", lambda text: encoded.append(len(text)) or tokens(text))
    draw = random.Random(kind)
    unit = unit * 30 + "▁".encode() if unit == b"the dog " else unit or draw.randbytes(20_000)
    data = (unit * (20_000 // len(unit)))[:20_000]
    encoder.encode(data)
    # Every character may be odd, and then a whole first window is looked at for each.
    assert sum(encoded) <= 2 * len(data) + 64 * len(data)
    if len(unit) > 100 and kind in LOSSLESS:
        assert sum(encoded) <= 12 * len(data)


def test_an_added_token_is_used_where_it_spells_the_bytes() -> None:
    tokenizer = byte_level_tokenizer.__wrapped__()
    tokenizer.add_tokens(["<note>", "Ġx", "é→"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<hidden>"]})
    table = TokenTable.from_tokenizer(tokenizer)
    encoder = TextEncoder(tokenizer, table)
    note, mark, arrow, hidden = range(500, 504)
    assert table.token_bytes[500:] == [b"<note>", "Ġx".encode(), "é→".encode(), None]
    assert table.suppressed_ids() == [0, 1, 2, hidden]
    assert encoder.encode("a<note>é→ xĠx<hidden>".encode()).ids.count(note) == 1
    assert encoder.encode("é→Ġx".encode()).ids == [arrow, mark]
    assert hidden not in encoder.encode(b"<hidden>").ids
    # A model that has fewer ids than its tokenizer is not given those that it lacks.
    narrow = TokenTable.from_tokenizer(tokenizer, vocab_size=501)
    assert len(narrow) == 501
    ids, _, missing = TextEncoder(tokenizer, narrow).encode("<note>é→<hidden>".encode())
    assert max(ids) == ids[0] == note
    assert (narrow.spell(ids), missing) == ("<note>é→<hidden>".encode(), [])


def test_every_dummy_prefix_is_left_out() -> None:
    tokenizer = byte_level_tokenizer.__wrapped__()
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    )
    backend.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Prepend(" ")])
    table = TokenTable.from_tokenizer(tokenizer)
    assert table.spell(tokenizer("fox")["input_ids"]) == b" fox"
    encoder = TextEncoder(tokenizer, table)
    for data in (b"fox", b" fox ", b"a\xfffox"):
        ids = encoder.encode(data).ids
        assert table.spell(ids) == data
        assert ids == ENCODERS["byte_level"].encode(data).ids


def test_a_unigram_model() -> None:
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence([normalizers.NFKC()])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    backend.train_from_iterator(ENGLISH.splitlines(), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    table = TokenTable.from_tokenizer(tokenizer)
    data = "the ﬁrst fox ▁ <unk>\x04".encode()
    ids, ends, missing = TextEncoder(tokenizer, table).encode(data)
    assert placed(data, table, ids, ends) == missing
    assert table.spell(ids).startswith(b"the ")
    assert table.token_id(b"the") in ids or table.token_id(b"t") in ids


def test_an_added_token_that_swallows_spaces_does_not_lose_them() -> None:
    tokenizer = sentencepiece_tokenizer.__wrapped__()
    tokenizer.add_tokens([AddedToken("<gap>", lstrip=True, rstrip=True)])
    table = TokenTable.from_tokenizer(tokenizer)
    ids, _, missing = TextEncoder(tokenizer, table).encode(b"the   <gap>   dog")
    assert (table.spell(ids), missing) == (b"the   <gap>   dog", [])
