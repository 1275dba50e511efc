"""Known texts, as they are given and read from files."""

import json

import pytest

from ensemble_decoding.teacher_forcing import checked_texts, read_texts

TEXTS = [
    ("The fox", ("The", " fox")),
    ("  The\tfox jumps", ("  The", "\tfox jumps")),
    (("The ", "fox"), ("The ", "fox")),
    (["", "fox"], ("", "fox")),
    ({"prompt": "a", "continuation": "b"}, ("a", "b")),
    ({"text": "a b"}, ("a", " b")),
]
BAD = [
    ("a b", TypeError, "texts must be a list of texts, got str"),
    ({"text": "a b"}, TypeError, "texts must be a list of texts, got dict"),
    (5, TypeError, "texts must be a list of texts, got int"),
    ([], ValueError, "texts must hold at least one text, got an empty list"),
    (["a b", "fox"], ValueError, r"texts\[1\] must have at least two words, got 'fox'"),
    ([""], ValueError, r"texts\[0\] must have at least two words, got ''"),
    ([("a", "")], ValueError, r"texts\[0\] must have a continuation, got an empty one"),
    ([("a", 5)], TypeError, r"texts\[0\] must have a continuation that is a str, got int"),
    ([(None, "a")], TypeError, r"texts\[0\] must have a prompt that is a str, got NoneType"),
    ([{"prompt": "a"}], TypeError, r"texts\[0\] must have a continuation .* got NoneType"),
    ([("a", "b", "c")], TypeError, r"texts\[0\] must be a text or a prompt and its continuation"),
    ([5], TypeError, r"texts\[0\] must be a text or a prompt and its continuation, got 5"),
    ([("a", "\ud800")], ValueError, r"texts\[0\] continuation must be"),
]


@pytest.mark.parametrize(("text", "expected"), TEXTS, ids=str)
def test_texts(text, expected, tmp_path):
    assert checked_texts([text]) == [expected]
    path = tmp_path / "texts.jsonl"
    path.write_text(f"\n{json.dumps(text)}\n\n")
    assert read_texts(path) == [expected]


@pytest.mark.parametrize(("texts", "error", "message"), BAD, ids=ascii)
def test_texts_that_are_none(texts, error, message):
    with pytest.raises(error, match=message) as caught:
        checked_texts(texts)
    assert "\n" not in str(caught.value)


def test_files_of_texts(tmp_path):
    path = tmp_path / "texts.txt"
    # Other characters than the end of a line end none.
    path.write_text(
        "The quick\u2028fox\x0c jumps\r\n\n \nA text\x85 of another\n", encoding="utf-8"
    )
    assert read_texts(path) == [("The", " quick\u2028fox\x0c jumps"), ("A", " text\x85 of another")]
    path = tmp_path / "texts.jsonl"
    lines = [["a\u2028", "b\x85c"], "d e\u2029"]
    path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines))
    assert read_texts(path) == [("a\u2028", "b\x85c"), ("d", " e\u2029")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl", b'"a b"\n{', "t.jsonl, line 2, must be JSON: "),
        ("t.jsonl", b'"a b"\n\n"c"', "t.jsonl, line 3, must have at least two words, got 'c'"),
        ("t.jsonl", b"[1, 2]", "t.jsonl, line 1, must have a prompt that is a str, got int"),
        ("t.jsonl", b"5", "t.jsonl, line 1, must be a text or a prompt and its continuation"),
        ("t.jsonl", b"[" * 100_000, "t.jsonl, line 1, must be JSON"),
        ("t.txt", b"fox\n", "t.txt, line 1, must have at least two words, got 'fox'"),
        ("t.txt", b"a \xff b", "texts must be UTF-8, got .*t.txt"),
        ("t.txt", b"\n \n", "texts must hold at least one text, got none in .*t.txt"),
        ("t.txt", b"", "texts must hold at least one text, got none in .*t.txt"),
    ],
)
def test_files_of_no_texts(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        read_texts(tmp_path / name)
    assert "\n" not in str(caught.value)
