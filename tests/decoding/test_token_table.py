"""The bytes of each id against what the tokenizers were made from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from ensemble_decoding.text import TextEncoder
from ensemble_decoding.token_table import TokenTable

from .text_oracle import bytes_of_ids
from .tokenizers_for_tests import (
    MISSING_BYTES,
    byte_level_tokenizer,
    every_kind,
    permuted_tokenizer,
)

KINDS = every_kind()


def table_of(tokenizer: PreTrainedTokenizerFast) -> TokenTable:
    return TokenTable.from_tokenizer(tokenizer, [tokenizer.eos_token_id])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_bytes_of_every_id(kind: str) -> None:
    table = table_of(KINDS[kind])
    expected = bytes_of_ids(KINDS[kind])
    assert table.token_bytes == [expected.get(number) for number in range(len(table))]
    assert len(table) == 1 + max(KINDS[kind].get_vocab().values())


def test_bytes_without_byte_fallback() -> None:
    # There "<0x41>" is six letters.
    backend = Tokenizer(models.BPE({"<0x41>": 0, "▁b": 1}, [], unk_token=None))
    backend.decoder = decoders.Metaspace()
    table = TokenTable.from_tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert table.token_bytes == [b"<0x41>", b" b"]


def test_the_same_bytes_in_every_kind() -> None:
    keys = [set(filter(None, table_of(tokenizer).token_bytes)) for tokenizer in KINDS.values()]
    shared = set.intersection(*keys)
    assert {b" ", b".", b"e", b" an"} <= shared
    for name in ("byte_level", "byte_level_bos", "sentencepiece", "metaspace"):
        table = table_of(KINDS[name])
        assert all(table.token_id(bytes([byte])) is not None for byte in range(256)), name
    holes = table_of(KINDS["byte_level_holes"])
    assert {b for b in range(256) if holes.token_id(bytes([b])) is None} == set(MISSING_BYTES)


def test_no_id_with_empty_bytes() -> None:
    backend = Tokenizer(models.BPE({"": 0, "Ġ": 1, "b": 4}, []))
    backend.decoder = decoders.ByteLevel()
    table = TokenTable.from_tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert table.token_bytes == [None, b" ", None, None, b"b"]  # 2 and 3 are holes
    assert table.suppressed_ids() == [0, 2, 3]


def test_spell() -> None:
    table = TokenTable([b"a", None, b"\xf0\x9f", b"x"], [3])
    assert table.token_bytes[3] is None
    assert table.spell([0, 3, 2, 0]) == b"a\xf0\x9fa"
    assert table.spell(()) == b""
    assert table.suppressed_ids() == [1]
    for wrong in (1, 4, -1):
        with pytest.raises(ValueError, match=f"ids must .* got {wrong}$"):
            table.spell([0, wrong])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_canonical_ids_are_those_that_are_emitted(kind: str) -> None:
    tokenizer = KINDS[kind]
    table = table_of(tokenizer)
    shared = {
        token
        for token in table.token_bytes
        if token is not None and table.token_bytes.count(token) > 1
    }
    assert table.canonical_ids.keys() == shared
    assert bool(shared) == (kind not in ("no_byte_fallback",) and "byte_level" not in kind) or (
        kind == "permuted"
    )
    for token, number in table.canonical_ids.items():
        # In the middle of a text, so that no dummy prefix stands before it.
        ids = tokenizer("\x01" + token.decode(), add_special_tokens=False)["input_ids"]
        assert ids[-1] == number
        assert table.token_id(token) == number == table.longest_match(token)


def test_canonical_is_the_lowest_where_none_is_emitted() -> None:
    table = TokenTable([b"b", b"a", b"a", b"b"], [3])
    assert table.canonical_ids == {b"a": 1}


def test_longest_match() -> None:
    table = TokenTable([None, b"a", b"ab", b"abcd", b"c", b"\xff\xfe"])
    assert table.longest_match(b"abcd") == 3
    assert table.longest_match(b"abcx") == 2
    assert table.longest_match(b"xabc", 1) == 2
    assert table.longest_match(b"abc", 2) == 4
    assert table.longest_match(b"abc", 3) is None
    assert table.longest_match(b"x") is None
    assert table.longest_match(b"\xff") is None
    assert table.longest_match(b"\xff\xfe\xff") == 5


def test_the_fingerprint_of_the_tokenizer_leaves_the_ends_aside() -> None:
    tokenizer = byte_level_tokenizer()
    base, chat = (TokenTable.from_tokenizer(tokenizer, ids) for ids in ([0], [2, 7]))
    assert base.fingerprint != chat.fingerprint
    assert base.tokenizer_fingerprint == chat.tokenizer_fingerprint
    other = table_of(byte_level_tokenizer(missing_bytes=b"q"))
    narrow = TokenTable.from_tokenizer(tokenizer, [0], vocab_size=499)
    for different in (other, narrow):
        assert different.tokenizer_fingerprint != base.tokenizer_fingerprint


def test_fingerprint() -> None:
    table = table_of(byte_level_tokenizer())
    again = TokenTable(table.token_bytes, table.end_of_text_ids)
    assert table.fingerprint == again.fingerprint
    assert table.fingerprint == table_of(byte_level_tokenizer(nfc=True)).fingerprint
    others = [
        TokenTable(table.token_bytes),
        TokenTable([*table.token_bytes, None], table.end_of_text_ids),
        TokenTable([b"ab", b"c"]),
        TokenTable([b"a", b"bc"]),
        TokenTable([b"c", b"ab"]),
        TokenTable([b"ab", b"c", None], [2]),
        TokenTable([b"ab", b"c", None]),
        table_of(permuted_tokenizer(byte_level_tokenizer())),
    ]
    prints = {table.fingerprint} | {other.fingerprint for other in others}
    assert len(prints) == 1 + len(others)
    assert (
        TokenTable([None] * 3, [0, 2]).fingerprint == TokenTable([None] * 3, [2, 0, 2]).fingerprint
    )


def test_end_of_text_ids_out_of_range() -> None:
    for wrong in (500, -1):
        with pytest.raises(ValueError, match=f"end_of_text_ids must be .* 499.* got {wrong}"):
            TokenTable.from_tokenizer(byte_level_tokenizer(), [wrong])


def test_dropout_does_not_reach_the_encoder() -> None:
    tokenizer = byte_level_tokenizer.__wrapped__()
    data = b"The question was lost, the answer was kept."
    expected = TextEncoder(tokenizer, table_of(tokenizer)).encode(data)
    tokenizer.backend_tokenizer.model.dropout = 0.5
    encoder = TextEncoder(tokenizer, table_of(tokenizer))
    assert all(encoder.encode(data) == expected for _ in range(20))
    assert tokenizer.backend_tokenizer.model.dropout == 0.5


class SlowTokenizer(PreTrainedTokenizer):
    vocab_size = 1

    def get_vocab(self) -> dict[str, int]:
        return {"a": 0}


def test_a_tokenizer_without_a_fast_backend_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tokenizer must be a fast .* got SlowTokenizer"):
        TokenTable.from_tokenizer(SlowTokenizer())


def unknown_backends() -> dict[str, Tokenizer]:
    word_piece = Tokenizer(models.WordPiece({"a": 0, "##b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    word_piece.decoder = decoders.WordPiece()
    suffix = Tokenizer(models.BPE({"a</w>": 0}, [], end_of_word_suffix="</w>"))
    suffix.decoder = decoders.ByteLevel()
    both = Tokenizer(models.BPE({"a": 0}, []))
    both.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteLevel()])
    pattern = Tokenizer(models.BPE({"a": 0}, []))
    pattern.decoder = decoders.Sequence([decoders.CTC()])
    return {
        "WordPiece": word_piece,
        "end_of_word_suffix '</w>'": suffix,
        "'Metaspace', 'ByteLevel'": both,
        "'CTC'": pattern,
        "None": Tokenizer(models.WordLevel({"a": 0}, unk_token="a")),
    }


@pytest.mark.parametrize("found", sorted(unknown_backends()))
def test_a_tokenizer_whose_bytes_are_unknown_is_refused(found: str) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=unknown_backends()[found])
    with pytest.raises(
        ValueError, match=f"tokenizer must spell .* got {type(tokenizer).__name__} with .*{found}"
    ):
        TokenTable.from_tokenizer(tokenizer)


def test_a_part_in_python_is_refused() -> None:
    tokenizer = byte_level_tokenizer.__wrapped__()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(object())
    with pytest.raises(ValueError, match=r"tokenizer must spell .* cannot be written as JSON"):
        TokenTable.from_tokenizer(tokenizer)


@pytest.mark.slow
def test_training_gives_the_same_ids_in_every_process() -> None:
    script = (
        "import hashlib; from tests.decoding.tokenizers_for_tests import every_kind\n"
        "print([hashlib.sha256(t.backend_tokenizer.to_str().encode()).hexdigest()\n"
        "       for t in every_kind().values()])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(outputs) == 1
