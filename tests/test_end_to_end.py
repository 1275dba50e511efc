"""The end-to-end benchmarks: their peers, and that a cell of each kind runs."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.end_to_end import measure, naive_cosd, naive_specem, naive_union
from benchmarks.end_to_end import models as loading
from benchmarks.end_to_end.cells import CELLS, NAIVE, Cell
from benchmarks.end_to_end.checks import same_ids, same_rounds, same_tokens
from benchmarks.end_to_end.measure import alternatives_of, time_cell
from benchmarks.end_to_end.methods import SEGMENTS, Piece
from benchmarks.end_to_end.naive_specem import NaiveCandidate, NaiveRound
from benchmarks.end_to_end.naive_union import NaiveToken
from benchmarks.end_to_end.peers import NAIVE_PEERS
from benchmarks.end_to_end.text import english
from tests.tiny_loaded_models import tiny_models


@pytest.fixture(scope="module")
def models():
    return tiny_models()


@pytest.mark.parametrize("peer", [naive_specem, naive_cosd, naive_union])
def test_naive_peers_use_nothing_of_ours(peer):
    tree = ast.parse(Path(peer.__file__).read_text())
    names = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    names += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    assert names
    assert not [name for name in names if name.startswith("ensemble")]


def test_a_prompt_has_as_many_tokens_as_asked_for(models):
    tokenizer = models[0].tokenizer
    least = len(tokenizer(english(tokenizer, 0))["input_ids"])
    for asked in (least, least + 1, 1000):
        assert len(tokenizer(english(tokenizer, asked))["input_ids"]) == asked
    assert english(tokenizer, 1000) == english(tokenizer, 1000)


def naive_round(*texts, winner=0, scores=(0.6, 0.4), ids=((1,), (1,))):
    candidates = [NaiveCandidate(text, False) for text in texts]
    return NaiveRound(candidates, [[1], [1]], [list(i) for i in ids], list(scores), winner, 1)


def our_round(*texts, winner=0):
    candidates = [SimpleNamespace(data=text, ended=False) for text in texts]
    return SimpleNamespace(candidates=candidates, winner=winner, data=texts[winner])


def test_other_rounds_are_told_from_near_ties(models):
    same = [naive_round(b"a", b"b")], [our_round(b"a", b"b")]
    assert same_rounds(models[:2], *same) == ("all 1 rounds", True)
    far = same_rounds(models[:2], same[0], [our_round(b"a", b"b", winner=1)])
    assert not far.excused
    assert "0 of 1 rounds" in far.text
    near = [naive_round(b"a", b"b", scores=(0.5, 0.499999))]
    assert same_rounds(models[:2], near, [our_round(b"a", b"b", winner=1)]).excused
    # Other drafts, of models that were in no doubt.
    assert not same_rounds(models[:2], same[0], [our_round(b"a", b"c")]).excused
    assert not same_rounds(models[:2], same[0] * 2, same[1]).excused  # fewer


def test_other_tokens_are_told_from_near_ties(models):
    ours = [our_round(b"a"), our_round(b"b")]
    assert same_tokens([NaiveToken(b"a", 0.5, 0.1), NaiveToken(b"b", 0.5, 0.1)], ours).excused
    for gap, excused in ((0.5, False), (1e-6, True)):
        found = same_tokens([NaiveToken(b"a", 0.5, 0.1), NaiveToken(b"c", gap, 0.1)], ours)
        assert found.excused is excused
        assert found.text.startswith("1 of 2 tokens")
    assert not same_tokens([NaiveToken(b"a", 0.5, 0.1)], ours).excused
    assert same_ids([5, 6], [5, 6], models[0], "x").excused
    assert not same_ids([5, 6], [5, 7], models[0], "x").excused


@pytest.fixture(scope="module")
def rows(models):
    """A small cell with everything in it."""
    cell = Cell("float32", 100, 6, 2, naive=NAIVE)
    return {row["method"]: row for row in time_cell(cell, models)}


def test_a_cell_times_all_methods_and_peers(rows, models):
    names = [model.name for model in models]
    assert set(rows) == {
        *Cell._field_defaults["methods"],
        *(f"generate: {name}" for name in names[:2]),
        *(f"assisted: {name}" for name in names[1:]),
        *NAIVE_PEERS,
    }
    for name, row in rows.items():
        assert row["failure"] is None, (name, row["failure"])
        assert row["tokens"] == 6
        assert 1 <= row["first_tokens"] <= 6
        assert len(row["seconds"]) == (1 if name in NAIVE_PEERS else 2)
        assert row["ours"] == (name in SEGMENTS)
        if row["ours"]:
            assert sum(row["shares"].values()) == pytest.approx(1.0)
            assert min(row["shares"].values()) >= 0
            assert 0 < row["outside"] < 1
            assert len(row["passes"]) == 2
    assert rows["TokenEnsemble"]["shares"]["mix"] > 0
    assert rows["TokenEnsemble"]["passes"] == [1.0, 1.0]
    assert rows["SpecEM"]["shares"]["draft"] > 0
    assert rows["SAFE"]["shares"]["tokenizers"] > 0


def test_peers_chose_the_same(rows, models):
    assert rows["naive SpecEM"]["match"] == "all 1 rounds"
    assert rows["naive CoSD"]["match"] == "all 2 rounds"
    assert rows["naive union"]["match"] == "all 6 tokens"
    for model in models[1:]:
        assert rows[f"assisted: {model.name}"]["match"] == "all 6 tokens"


def test_one_member_writes_what_generate_does(models):
    ours, alone = time_cell(Cell("float32", 100, 6, 1, ("SpecEM",), 1), models)
    assert ours["match"] == "all 6 tokens"
    assert (alone["method"], alone["match"]) == (f"generate: {models[0].name}", None)


def test_a_naive_peer_that_chooses_otherwise_is_not_timed(models, monkeypatch):
    def wrong(*arguments):
        yield NaiveToken(b"\x01", 0.9, 0.1)

    monkeypatch.setattr("benchmarks.end_to_end.peers.naive_union", wrong)
    cell = Cell("float32", 100, 2, 1, ("TokenEnsemble",), generate=False, naive=("naive union",))
    ours, naive = time_cell(cell, models)
    assert ours["seconds"]
    assert "seconds" not in naive
    assert naive["failure"].startswith("chooses otherwise: 0 of 1 tokens")
    # In bfloat16 any rounding may part the texts: told, and timed.
    _, naive = time_cell(cell._replace(dtype="bfloat16"), models)
    assert naive["seconds"]
    assert naive["match"].startswith("0 of 1 tokens")


def test_other_drafts_are_told_with_a_third_model_there(models, monkeypatch):
    def wrong(*arguments, **options):
        yield naive_round(b"\x01", b"\x02")

    monkeypatch.setattr("benchmarks.end_to_end.peers.naive_specem", wrong)
    cell = Cell("float32", 100, 2, 1, ("SpecEM",), generate=False, naive=("naive SpecEM",))
    ours, naive = time_cell(cell, models)
    assert ours["seconds"]
    assert naive["failure"].startswith("chooses otherwise: 0 of 1 rounds")


def test_a_peer_that_fails_half_way_leaves_the_others(models, monkeypatch):
    """Behind the warm-up and its first piece; its text is what others are held against."""
    warm = []

    def fails(self, note):
        note(Piece(1, None))
        if self._model is models[0] and self._assistant is None:
            if warm:
                raise RuntimeError("no room")
            warm.append(True)
        note(Piece(2, [1, 2]))

    monkeypatch.setattr(measure.GenerateRun, "run", fails)
    rows = time_cell(Cell("float32", 100, 2, 1, ("SpecEM",)), models)
    assert [row["method"] for row in rows if row["failure"]] == [f"generate: {models[0].name}"]


def test_what_cannot_be_made_leaves_the_others(models, monkeypatch):
    """A method that refuses a model, and a naive peer that does."""

    def refuses(*arguments):
        raise ValueError("not this vocabulary")

    monkeypatch.setattr("benchmarks.end_to_end.peers.NaiveModel", refuses)
    monkeypatch.setattr("benchmarks.end_to_end.methods.CoSD", lambda *_, **options: refuses())
    cell = Cell("float32", 100, 2, 1, ("SpecEM", "CoSD"), generate=False, naive=("naive union",))
    ours, cosd, naive = time_cell(cell, models)
    assert ours["seconds"]
    assert cosd["failure"] == naive["failure"] == "ValueError: not this vocabulary"


def test_a_third_model_has_a_name_of_its_own(monkeypatch):
    monkeypatch.setattr(loading, "model_path", lambda name: name)
    monkeypatch.setattr(loading, "_loaded", lambda name, path, dtype: name)
    for third, name in (("/a/gemma3", "gemma3, the third"), ("/a/b", "b"), ("org/c", "c")):
        assert loading.load(torch.float32, third)[2] == name
    assert loading.load(torch.float32, ".")[2] == Path.cwd().name


def test_helpers_of_the_naive_union_compute_the_last_logits_alone(models, monkeypatch):
    """Who needs no others computes no others; they would be most of a pass."""
    rows, model = [], models[1].model

    def count(module, arguments, keywords, output):
        rows.append(output.logits.shape[1])

    handle = model.register_forward_hook(count, with_kwargs=True)
    tables = [naive_union.NaiveModel(m.model, m.tokenizer) for m in models[:2]]
    list(naive_union.naive_union(tables, "The moon", 2))
    handle.remove()
    assert rows == [1, 1]


def test_segments_are_those_of_the_cell(models):
    cell = Cell("float32", 64, 4, 1, ("SpecEM", "SAFE"), segments=(5, 10, 20), generate=False)
    made = [(one.method, one.segment) for one in alternatives_of(cell, models)]
    # Its own length each method has in the cell of all methods.
    assert made == [("SpecEM", 5), ("SpecEM", 20), ("SAFE", 10), ("SAFE", 20)]


@pytest.mark.parametrize("size", CELLS)
def test_none_of_ours_is_timed_twice(size, models):
    keys = [
        (cell.dtype, one.method, len(one.models), cell.context, one.segment, cell.new)
        for cell in CELLS[size]
        for one in alternatives_of(cell, models)
        if one.ours
    ]
    assert len(keys) == len(set(keys))
