"""Facts about the vocabularies of two real models, and the bridge between them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from transformers import AutoTokenizer

from ensemble_decoding.text import CharacterDecoder, TextEncoder, complete_prefix
from ensemble_decoding.token_table import TokenTable

pytestmark = pytest.mark.real_models

TEXT = (
    "SmolLM2 said: “Ensembles work” — isn't it so?\n\n\t1. Zürich, naïve, Æ 2. 3.14159\n"
    "def f(x):\n        return x ** 2  # 你好,世界\n\nпривет мир 😀🦜 "
    "👩‍👩‍👧 e\u0301 ▁ <eos> <|im_end|>"
)


class Real(NamedTuple):
    tokenizer: Any
    table: TokenTable
    encoder: TextEncoder


@pytest.fixture(scope="module")
def real(real_models: dict[str, Path]) -> dict[str, Real]:
    loaded = {}
    for name, path in real_models.items():
        tokenizer = AutoTokenizer.from_pretrained(path)
        table = TokenTable.from_tokenizer(tokenizer, [tokenizer.eos_token_id])
        loaded[name] = Real(tokenizer, table, TextEncoder(tokenizer, table))
    return loaded


@pytest.fixture(scope="module")
def smollm2(real: dict[str, Real]) -> Real:
    return next(model for model in real.values() if len(model.table) == 49152)


@pytest.fixture(scope="module")
def gemma(real: dict[str, Real]) -> Real:
    return next(model for model in real.values() if len(model.table) == 262144)


def lacking(table: TokenTable) -> bytes:
    return bytes(byte for byte in range(256) if table.token_id(bytes([byte])) is None)


def test_bytes_without_a_token(smollm2: Real, gemma: Real) -> None:
    lost = bytes.fromhex("04 06 13 14 16 1D F1 F2")
    never_in_utf8 = bytes([0xC0, 0xC1, *range(0xF5, 0x100)])
    assert lacking(smollm2.table) == bytes(sorted(lost + never_in_utf8))
    assert lacking(gemma.table) == b""
    assert smollm2.encoder.encode(b"a\x04b").missing == [1]
    assert gemma.encoder.encode(b"a\x04b").missing == []


def test_ids_that_share_bytes(smollm2: Real, gemma: Real) -> None:
    assert smollm2.table.canonical_ids == {}
    canonical = gemma.table.canonical_ids
    assert len(canonical) == 110
    assert canonical[b"a"] == 236746
    assert gemma.table.token_bytes[335] == gemma.table.token_bytes[236746] == b"a"
    for token, number in canonical.items():
        if not token.isspace():
            assert gemma.tokenizer(token.decode(), add_special_tokens=False)["input_ids"] == [
                number
            ]


def test_tokens_are_not_lost_in_decoding(smollm2: Real, gemma: Real) -> None:
    for model in (smollm2, gemma):
        decoded = [model.tokenizer.decode([number]) for number in range(0, len(model.table), 7)]
        for text, token in zip(decoded, model.table.token_bytes[::7], strict=True):
            if token is not None and "\ufffd" not in text:
                assert text.encode() == token
    parts_of_characters = [
        token
        for token in smollm2.table.token_bytes
        if token and complete_prefix(token) < len(token)
    ]
    assert len(parts_of_characters) > 100
    assert len(set(parts_of_characters)) == len(parts_of_characters)


def test_shared_tokens(smollm2: Real, gemma: Real) -> None:
    mine, theirs = (
        {token for token in model.table.token_bytes if token} for model in (smollm2, gemma)
    )
    assert round(len(mine & theirs) / len(mine), 3) == 0.939
    assert round(len(mine & theirs) / len(theirs), 2) == 0.18


def test_specials_are_no_text(smollm2: Real, gemma: Real) -> None:
    for model in (smollm2, gemma):
        for number in {*model.tokenizer.all_special_ids}:
            assert model.table.token_bytes[number] is None
        assert model.table.spell([model.tokenizer.eos_token_id]) == b""
        assert model.tokenizer.eos_token_id not in model.table.suppressed_ids()
    assert gemma.tokenizer.bos_token_id in gemma.table.suppressed_ids()


def test_an_emoji_in_one_token_and_in_several(smollm2: Real, gemma: Real) -> None:
    emoji = "🦜".encode()
    one, several = gemma.encoder.encode(emoji).ids, smollm2.encoder.encode(emoji).ids
    assert len(one) == 1
    assert len(several) > 1
    decoder = CharacterDecoder()
    pieces = [decoder.feed(smollm2.table.spell([number])) for number in several]
    assert pieces == [""] * (len(several) - 1) + ["🦜"]


def test_text_crosses_unchanged(smollm2: Real, gemma: Real) -> None:
    """There and back in ten-token segments, and not a byte differs."""
    data = TEXT.encode()
    for writer, reader in ((smollm2, gemma), (gemma, smollm2)):
        ids, _, missing = writer.encoder.encode(data)
        assert missing == []
        assert writer.table.spell(ids) == data
        crossed = pending = b""
        for start in range(0, len(ids), 10):
            pending += writer.table.spell(ids[start : start + 10])
            end = complete_prefix(pending)
            crossed += reader.table.spell(reader.encoder.encode(pending[:end]).ids)
            pending = pending[end:]
        assert crossed + pending == data


def test_clean_text_is_encoded_as_by_the_tokenizer(smollm2: Real, gemma: Real) -> None:
    clean = TEXT.split(" e\u0301")[0]
    for model in (smollm2, gemma):
        expected = model.tokenizer(clean, add_special_tokens=False)["input_ids"]
        written = model.encoder.encode(clean.encode())
        assert (written.ids, written.missing) == (expected, [])
        # What the tokenizer cannot spell stands at the end and changes nothing before it.
        odd = model.encoder.encode((clean + "\n▁\x04<eos>").encode()).ids
        assert odd[: len(expected)] == expected


def test_any_bytes(smollm2: Real, gemma: Real) -> None:
    draw = random.Random(0)
    for data in (draw.randbytes(5000), "▁".encode() * 999, b"a\x04" * 999, "e\u0301".encode() * 99):
        assert gemma.table.spell(gemma.encoder.encode(data).ids) == data
        ids, _, missing = smollm2.encoder.encode(data)
        lost = lacking(smollm2.table)
        assert not {data[place] for place in missing} - set(lost)
        assert smollm2.table.spell(ids).translate(None, lost) == data.translate(None, lost)
