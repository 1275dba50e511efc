import json
import tempfile
import warnings
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble_kernels import VocabularyAlignment
from ensemble_kernels.vocabulary_mixture import column_maps

from .oracles.vocabulary_mixture import END, union
from .vocabulary_strategies import align, models

pytestmark = pytest.mark.filterwarnings("ignore:little overlap")


@given(models())
@settings(deadline=None)
def test_columns_and_maps_are_those_of_the_dicts(drawn):
    alignment = align(drawn)
    keys = union(drawn)
    text = [k for k in keys if k is not END]
    assert alignment.tokens == tuple(text)
    assert alignment.size == len(keys)
    assert alignment.end_of_text == (len(text) if END in keys else None)
    maps = alignment.maps("cpu")
    for column, key in enumerate(keys):
        if key is not END:
            assert alignment.column(key) == column
            inside = [i for i, t in enumerate(text) if t.startswith(key)]
            assert list(range(column, maps.prefix_end[column])) == inside
        else:
            assert maps.prefix_end[column] == column + 1
        for m, model in enumerate(drawn):
            ids = [i for i in range(len(model.table)) if model.key(i) == key]
            start, end = maps.offsets[m][column : column + 2].tolist()
            assert maps.ids[m][start:end].tolist() == ids
            assert alignment.token_id(m, column) == (ids[0] if ids else None)
    for m, model in enumerate(drawn):
        own = [t for t in text if t in model.keys]
        assert [text[c] for c in alignment.model_columns(m).tolist()] == own
        assert alignment.missing_tokens(m) == [t for t in text if t not in own]
    assert alignment.column(b"") is None
    assert alignment.column(b"no such token") is None


def test_ids_of_a_column_ascend_in_a_large_table():
    table = [b"%d" % (i % 100) for i in range(5000)]
    maps = VocabularyAlignment.from_token_bytes([table]).maps("cpu")
    assert maps.offsets[0].tolist() == list(range(0, 5001, 50))
    assert bool((maps.ids[0].reshape(100, 50).diff() == 100).all())


def test_byte_alphabets_meet():
    gpt2 = {chr(c): b for b, c in enumerate([*range(256, 289), *range(33, 127)])}
    level = [bytes(gpt2[c] for c in token) for token in ("Ġal", "ĠĠĠ", "Ċ")] + [b"\xff"]
    pieces = [t.replace("▁", " ").encode() for t in ("▁al", "▁▁▁")] + [b"\n", b"\xff"]
    tiktoken = [b"\xff", b"\n", b"   ", b" al"]
    alignment = VocabularyAlignment.from_token_bytes([level, pieces, tiktoken])
    assert alignment.tokens == (b"\n", b"   ", b" al", b"\xff")


def test_parts_of_characters_stay_distinct_and_the_empty_token_is_left_out():
    parts = [bytes([b]) for b in range(0x80, 0xC0)]
    alignment = VocabularyAlignment.from_token_bytes([[*parts, b"", b"\xf0\x9f"]])
    assert alignment.tokens == (*parts, b"\xf0\x9f")
    assert alignment.end_of_text is None


def test_canonical_id_is_fed_back_else_the_lowest():
    table = [b" ", b"a", b" ", b"a", b"b"]
    alignment = VocabularyAlignment.from_token_bytes([table, [b"b"]], None, [{b"a": 3}, {}])
    ids = {t: alignment.token_id(0, alignment.column(t)) for t in (b" ", b"a", b"b")}
    assert ids == {b" ": 0, b"a": 3, b"b": 4}
    assert alignment.token_id(1, alignment.column(b"a")) is None


def test_end_of_text_is_one_column_and_not_its_bytes():
    alignment = VocabularyAlignment.from_token_bytes(
        [[b"<end>", b"a", b"<stop>", None], [b"a", b"<end>"]], [[3, 2, 0], []]
    )
    assert alignment.tokens == (b"<end>", b"a")
    assert alignment.end_of_text == 2
    assert alignment.token_id(0, 2) == 0
    assert alignment.token_id(1, 2) is None
    assert alignment.token_id(0, 0) is None
    only_end = VocabularyAlignment.from_token_bytes([[None, None]], [[1]])
    assert (only_end.size, only_end.end_of_text, only_end.token_id(0, 0)) == (1, 0, 1)


@given(models(), st.data())
@settings(max_examples=25, deadline=None)
def test_fingerprint_is_that_of_the_tables(drawn, data):
    alignment = align(drawn)
    assert align(drawn).fingerprint == alignment.fingerprint
    tables, ends = [list(m.table) for m in drawn], [m.ends for m in drawn]
    alignment.check_tables(tables, ends)
    changed = data.draw(st.integers(0, len(drawn) - 1))
    position = data.draw(st.integers(0, len(tables[changed]) - 1))
    tables[changed][position] = (tables[changed][position] or b"") + b"!"
    with pytest.raises(ValueError, match=f"another tokenizer of model {changed}"):
        alignment.check_tables(tables, ends)
    with pytest.raises(ValueError, match="models"):
        alignment.check_tables([*tables, [b"a"]], [*ends, []])


def test_fingerprint_tells_bytes_ends_and_canonical_ids_apart():
    make = VocabularyAlignment.from_token_bytes
    prints = [
        make([[b"ab", b"c", b"c"]]),
        make([[b"a", b"bc", b"c"]]),
        make([[b"ab", b"c", b"c"]], [[0]]),
        make([[b"ab", b"c", b"c"]], None, [{b"c": 1}]),
        make([[b"ab", b"c", None]]),
        make([[b"ab", b"c", b""]]),
        make([[b"ab"], [b"c"]]),
    ]
    assert len({alignment.fingerprint for alignment in prints}) == len(prints)


@given(models())
@settings(max_examples=25, deadline=None)
def test_saved_and_loaded_is_the_same(drawn):
    alignment = align(drawn)
    alignment = alignment.with_first_subtokens(
        [dict.fromkeys(alignment.missing_tokens(m), len(d.table) - 1) for m, d in enumerate(drawn)]
    )
    with tempfile.TemporaryDirectory() as folder:
        alignment.save(f"{folder}/alignment.json")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loaded = VocabularyAlignment.load(f"{folder}/alignment.json")
    assert loaded.fingerprint == alignment.fingerprint
    assert loaded.tokens == alignment.tokens
    torch.testing.assert_close(tuple(loaded.maps("cpu")), tuple(alignment.maps("cpu")))
    assert loaded.models_without_subtokens == []


def test_loaded_keeps_canonical_ids_and_the_want_of_subtokens(tmp_path):
    path = tmp_path / "alignment.json"
    VocabularyAlignment.from_token_bytes([[b"a", b"a"], [b"b"]], None, [{b"a": 1}, {}]).save(path)
    loaded = VocabularyAlignment.load(path)
    assert loaded.token_id(0, 0) == 1
    assert loaded.models_without_subtokens == [0, 1]


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "alignment.json"
    VocabularyAlignment.from_token_bytes([[b"a", b"b"]], [[1]]).save(path)
    whole = json.loads(path.read_text())
    for damage in (
        {"token_bytes": [["a", "c"]]},
        {"end_of_text_ids": [[2]]},
        {"token_bytes": [[1, 2]]},
        {"token_bytes": [["a", "€"]]},
        {"format": "other"},
    ):
        path.write_text(json.dumps(whole | damage))
        with pytest.raises(ValueError, match=r"alignment\.json is no intact VocabularyAlignment"):
            VocabularyAlignment.load(path)
    for content in ("", "[]", "{}", "null", json.dumps(whole)[:-5]):
        path.write_text(content)
        with pytest.raises(ValueError, match="no intact"):
            VocabularyAlignment.load(path)
    with pytest.raises(FileNotFoundError):
        VocabularyAlignment.load(tmp_path / "absent.json")


def test_report_covers_pairs_by_count_and_by_mass():
    alignment = VocabularyAlignment.from_token_bytes(
        [[b"a", b"b", b"c", b"a"], [b"a", None, b"d"]], [[], [1]]
    )
    pairs = {(p.model, p.other): p for p in alignment.report().pairs}
    assert (pairs[0, 1].shared, pairs[0, 1].columns, pairs[0, 1].by_mass) == (1, 3, None)
    assert pairs[1, 0].by_count == 1 / 3
    first = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.0], [0.3, 0.2, 0.1, 0.4, 0.0]])
    report = alignment.report([first, torch.tensor([0.25, 0.75])])
    by_mass = {(p.model, p.other): p.by_mass for p in report.pairs}
    assert by_mass == pytest.approx({(0, 1): 0.6, (1, 0): 0.25})
    assert "33.3% of the 3 tokens of model 0, 60.0% by mass" in str(report)
    with pytest.raises(ValueError, match="distributions must have 2"):
        alignment.report([first])
    with pytest.raises(TypeError, match=r"distributions\[1\]"):
        alignment.report([first, [0.5]])


@pytest.mark.filterwarnings("default:little overlap")
def test_little_overlap_is_said_once():
    apart = [[bytes([b]) for b in range(start, start + 20)] for start in (0, 100, 200)]
    with pytest.warns(UserWarning, match=r"models \[\(0, 1\), \(0, 2\), \(1, 2\)\]") as caught:
        VocabularyAlignment.from_token_bytes(apart)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        VocabularyAlignment.from_token_bytes([apart[0], [bytes([b]) for b in range(256)]])


def test_first_subtokens_are_checked():
    alignment = VocabularyAlignment.from_token_bytes([[b"a", b"b", None], [b"ab"]], [[2], []])
    assert alignment.models_without_subtokens == [0, 1]
    extended = alignment.with_first_subtokens([{b"ab": 0, b"a": 1}, {}])
    assert alignment.models_without_subtokens == [0, 1]
    scores = [s.tolist() for s in extended.maps("cpu").score_columns]
    assert scores == [[0, 0, 2, 3], [-1, 1, -1, -1]]
    for tables, error, match in (
        ([{}], ValueError, "tables must have 2"),
        ([[b"a"], {}], TypeError, r"tables\[0\] must map bytes to ids, got list"),
        ([{b"x": 0}, {}], ValueError, r"tables\[0\] must hold tokens of the union, got b'x'"),
        ([{b"ab": 3}, {}], ValueError, r"tables\[0\]\[b'ab'\] must be an id from 0 to 2, got 3"),
        ([{b"ab": 2}, {}], ValueError, "must be the id of a text token, got 2"),
        ([{b"ab": 0.0}, {}], TypeError, "must be an int, got float"),
    ):
        with pytest.raises(error, match=match):
            alignment.with_first_subtokens(tables)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (([],), ValueError, "token_bytes must hold one table per model"),
        (([[]],), ValueError, r"token_bytes\[0\] must hold the bytes of at least one token"),
        (([[b"a"], [None, b""]],), ValueError, r"token_bytes\[1\]"),
        (([["a"]],), TypeError, r"token_bytes\[0\] must hold bytes or None, got str"),
        (([[b"a"]], []), ValueError, "end_of_text_ids must have 1 entries"),
        (([[b"a"]], [[1]]), ValueError, r"end_of_text_ids\[0\]\[0\] must be an id from 0 to 0"),
        (([[b"a"]], [[-1]]), ValueError, "got -1"),
        (([[b"a"]], [[True]]), TypeError, "must be an int, got bool"),
        (([[b"a"]], None, []), ValueError, "canonical_ids must have 1 entries"),
        (([[b"a", b"b"]], None, [{b"a": 1}]), ValueError, r"canonical_ids\[0\]\[b'a'\]"),
        (([[b"a", b"b"]], [[0]], [{b"a": 0}]), ValueError, "must be an id of these bytes"),
        (([[b"a", b"b"]], None, [{b"a": 2}]), ValueError, "must be an id from 0 to 1"),
    ],
)
def test_bad_tables(arguments, error, match):
    with pytest.raises(error, match=match):
        VocabularyAlignment.from_token_bytes(*arguments)


def test_models_and_columns_out_of_range():
    alignment = VocabularyAlignment.from_token_bytes([[b"a"]])
    for model, column in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        with pytest.raises(ValueError, match="must be an id from 0 to 0"):
            alignment.token_id(model, column)
    with pytest.raises(ValueError, match="model"):
        alignment.model_columns(1)


@given(models())
@settings(max_examples=30, deadline=None)
def test_cached_is_the_same(drawn):
    tables = [m.table for m in drawn], [m.ends for m in drawn]
    with tempfile.TemporaryDirectory() as folder:
        made = VocabularyAlignment.cached(*tables, folder=folder)
        (file,) = Path(folder).iterdir()
        with patch.object(column_maps, "union_tokens", side_effect=AssertionError("made anew")):
            again = VocabularyAlignment.cached(*tables, folder=folder)
        assert file.stem == made.fingerprint == again.fingerprint
        assert again.tokens == made.tokens
        assert (again.size, again.end_of_text) == (made.size, made.end_of_text)
        for one, other in zip(again.maps("cpu"), made.maps("cpu"), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("damage", [b"", b"not a file of torch", None])
def test_a_damaged_cache_is_made_anew(tmp_path, damage):
    tables = [[b"a", b"b"], [b"b", b"c"]]
    made = VocabularyAlignment.cached(tables, folder=tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:200] if damage is None else damage)
    assert VocabularyAlignment.cached(tables, folder=tmp_path).tokens == made.tokens
    with patch.object(column_maps, "union_tokens", side_effect=AssertionError("made anew")):
        assert VocabularyAlignment.cached(tables, folder=tmp_path).tokens == made.tokens


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    alignment = VocabularyAlignment.cached([[b"a"]], folder=tmp_path / "file" / "folder")
    assert alignment.tokens == (b"a",)
