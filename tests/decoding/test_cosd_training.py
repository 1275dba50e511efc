"""What trees, calibrations and sweeps are made of: files of texts and examples as they are found on
disk, and what cannot be used."""

import json
from pathlib import Path

import pytest

from ensemble_decoding import (
    Calibration,
    CoSD,
    Example,
    Tree,
    calibrate,
    collect_examples,
    fit_tree,
    sweep,
)
from ensemble_decoding.cli import main
from ensemble_decoding.teacher_forcing import Text, read_texts
from tests.decoding.members_for_tests import PROMPT, member
from tests.decoding.tokenizers_for_tests import (
    MISSING_BYTES,
    byte_level_tokenizer,
    sentencepiece_tokenizer,
)
from tests.decoding.well_read_models import well_read

DRAFT = well_read(member("llama", byte_level_tokenizer(), seed=5), 0.2)
ASSISTANT = well_read(member("gemma3", sentencepiece_tokenizer(), seed=15), 0.9)
TEXTS = ["The quick brown fox jumps over the lazy dog.", "Where was the incorrect one? Hello!"]
EXAMPLES = [Example(i / 40, 1 - i / 40, i % 3 == 0) for i in range(40)]


def collected(path, texts=TEXTS):
    return collect_examples(DRAFT, ASSISTANT, texts, path, progress=False)


@pytest.mark.parametrize("lost", [1, 2, 60])
def test_examples_go_on_wherever_the_last_line_was_cut(tmp_path, lost):
    path = tmp_path / "examples.jsonl"
    expected = collected(path)
    assert expected
    path.write_bytes(path.read_bytes()[:-lost])
    more = collected(path, [*TEXTS, "One two three"])
    assert more[: len(expected)] == expected
    assert [line.count('"text"') for line in path.read_text().splitlines()] == [1, 1, 1]
    assert collected(path) == expected


@pytest.mark.parametrize("line", [b"\xff", b"[" * 100_000, b"[1]", b"{}"])
def test_a_file_that_holds_no_examples_is_named(tmp_path, line):
    path = tmp_path / "examples.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(ValueError, match=r"must hold examples .*examples.jsonl, line 1"):
        collected(path)


@pytest.mark.parametrize("between", ["\u2028", "\x85", "\x0c", "\u2029"])
@pytest.mark.parametrize("name", ["texts.txt", "texts.jsonl"])
def test_a_text_ends_at_a_newline_and_nowhere_else(tmp_path, name, between):
    text = f"One two{between}three"
    written = text if name == "texts.txt" else json.dumps(text, ensure_ascii=False)
    (tmp_path / name).write_bytes(f"{written}\r\n{written}\n".encode())
    assert read_texts(tmp_path / name) == [Text("One", text[3:])] * 2


def test_a_byte_order_mark_is_no_text(tmp_path):
    for name, written in (("texts.txt", "One two"), ("texts.jsonl", '"One two"')):
        (tmp_path / name).write_text(written, encoding="utf-8-sig")
        assert read_texts(tmp_path / name) == [Text("One", " two")]


def test_json_that_is_too_deep_is_named(tmp_path):
    (tmp_path / "texts.jsonl").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"texts.jsonl, line 1, must be JSON"):
        read_texts(tmp_path / "texts.jsonl")


def test_a_member_without_tokens_for_any_text_cannot_be_calibrated():
    holes = member("llama", byte_level_tokenizer(missing_bytes=MISSING_BYTES), name="holes")
    with pytest.raises(ValueError, match="texts must hold a token that holes can read"):
        calibrate(holes, [("The", "q")], progress=False)


def test_what_is_no_member_is_named():
    with pytest.raises(TypeError, match="member must be a Member, got str"):
        calibrate("llama", TEXTS)
    for use in (sweep, collect_examples):
        with pytest.raises(TypeError, match="draft must be a Member, got str"):
            use("llama", ASSISTANT, TEXTS)
        with pytest.raises(TypeError, match="assistant must be a Member, got NoneType"):
            use(DRAFT, None, TEXTS)


@pytest.mark.parametrize("temperature", [1e-300, 1e300, 0, -1.0])
def test_temperatures_that_no_run_can_use_are_refused_at_once(tmp_path, temperature):
    with pytest.raises(ValueError, match=r"temperatures\[1\] must be from 1e-37 to 1e\+37"):
        CoSD(DRAFT, ASSISTANT, temperatures=[1.0, temperature])
    path = tmp_path / "calibration.json"
    calibrate(DRAFT, TEXTS, progress=False).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"temperature": temperature}))
    with pytest.raises(ValueError, match=r"temperature must be from 1e-37 to 1e\+37"):
        Calibration.load(path)


def test_a_route_returns_ints():
    with pytest.raises(ValueError, match=r"select must return distinct places .* got \[0.0\]"):
        CoSD(DRAFT, ASSISTANT, select=lambda prompt: [0.0]).generate(PROMPT)


def test_a_tree_has_a_node():
    with pytest.raises(ValueError, match=r"tree.nodes must hold at least one node"):
        Tree([])


@pytest.mark.parametrize(
    ("examples", "options", "error", "says"),
    [
        (EXAMPLES, {"seed": -1}, ValueError, "seed must be from 0 to 4294967295, got -1"),
        (EXAMPLES, {"seed": 1.5}, TypeError, "seed must be an int, got float"),
        (EXAMPLES, {"held_out": 1}, ValueError, "held_out must be from 0 to below 1, got 1"),
        ([*EXAMPLES, (0.1, 0.2)], {}, TypeError, r"examples\[40\] must be two probabilities"),
        ([1, 2], {}, TypeError, r"examples\[0\] must be two probabilities"),
        ([(float("nan"), 0.1, True)], {}, ValueError, r"examples\[0\] must have probabilities"),
    ],
)
def test_what_a_tree_cannot_be_trained_on_is_named(examples, options, error, says):
    pytest.importorskip("sklearn")
    with pytest.raises(error, match=says):
        fit_tree(examples, **options)


@pytest.mark.parametrize(
    "flags", [["--held-out", "2"], ["--seed", "-1"], ["--max-depth", "0"]], ids=lambda f: f[0]
)
def test_how_to_train_is_checked_before_the_models_are_read(tmp_path, capsys, flags):
    pytest.importorskip("sklearn")
    texts = tmp_path / "texts.txt"
    texts.write_text("One two\n")
    models = ["--model", "nowhere/a", "--model", "nowhere/b"]
    files = ["--texts", str(texts), "-o", str(Path(tmp_path, "tree.json"))]
    assert main(["train-tree", *models, *files, *flags]) == 2
    assert flags[0][2:].replace("-", "_") + " must be " in capsys.readouterr().err
