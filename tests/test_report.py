"""The report of a benchmark: its text and its pictures, from made-up figures."""

import math
import re

import pytest

pytest.importorskip("matplotlib")

from benchmarks.report import history, plots
from benchmarks.report.cells import sweep
from benchmarks.report.history import compare
from benchmarks.report.markdown import render, short_table
from benchmarks.report.plots import draw
from tests.made_up_report import alone, line_of, made_up, plain, run, tables

PNG = b"\x89PNG\r\n"


@pytest.fixture(scope="module")
def text():
    report = made_up()
    return render(report, compare(report, made_up()), ["context.png"], earlier=made_up())


def test_tables_are_well_formed(text):
    found = tables(text)
    assert len(found) > 10
    for lines in found:
        assert {len(line) for line in lines} == {len(lines[0])}
        assert all(line[0] == line[-1] == "" for line in lines)
        assert all(re.fullmatch("---:?", cell) for cell in lines[1][1:-1])
        assert all(cell for line in lines[2:] for cell in line[1:-1])  # a figure or a dash
    # A table begins behind an empty line, or it is text.
    assert not re.search(r"^[^|\n][^\n]*\n\|", text, re.MULTILINE)


def test_everything_measured_is_told(text):
    shown, report = plain(text), made_up()
    for operator, rows in report["operators"]["operators"].items():
        assert f"### `{operator}`" in text
        for found in rows:
            assert found["case"] in shown
            assert found["alternative"] in shown
            assert found.get("refused", "") in shown
    for found in report["end_to_end"]["runs"]:
        assert found["method"] in shown
        assert " ".join((found["failure"] or "").split()) in shown
    for fact in ("A processor", "0123abc, with uncommitted changes", "2026-11-30", "avx512"):
        assert fact in shown
    assert "python -m benchmarks.report --quick" in text
    assert "](context.png)" in text


def test_figures_of_the_default_setting(text):
    found = line_of(text, "float32", "SpecEM", "64")
    # 64 tokens in 9, 9.18 and 9.45 s, the first segment in a quarter of that; naive takes 30 s.
    assert found[3:6] == ["6.97 (6.77–7.11)", "2.29 (2.25–2.36)", "3.27"]
    assert found[6:] == ["1.3 %", "1.04, 0.29", "1,234", "1.20", "same tokens as naive"]
    # Naive code is not held against itself, nor a single model against it.
    for method, new in (("naive union", "24"), ("generate: smollm2", "64")):
        assert line_of(text, "float32", method, new)[5] == "–"
    lost = line_of(text, "float64", "CoSD", "64")
    assert lost[3] == "failed"
    assert plain(lost[-1]) == "MemoryError: a | b of <class 'x'>"


def test_sweeps_tell_times_and_growth(text):
    # Behind the first segment are 54 tokens and three quarters of 9.18, 12.24 and 24.48 s.
    lines = [line for found in tables(text) for line in found if line[2] == "SpecEM"]
    assert any(line[-2] == "2.67 (8,192 over 512)" and "170" in line[4] for line in lines)
    # By members: of 9.18, 12 and 16 s.
    assert any(line[-2] == "1.74 (4 over 2)" for line in lines)
    # The shorter segment, of 9 s, 54 tokens behind the first piece in one, 59 in the other.
    assert sum("over 5)" in line[-2] for line in lines) == 2
    failed = [line for found in tables(text) for line in found if "failed" in line]
    assert any("naive SpecEM" in line for line in failed)


def test_an_operator_is_held_against_its_best_peer_that_does_the_work():
    short = short_table(made_up())
    found = line_of(short, "`compact_kv_`")  # not against the memcpy
    assert found[1:] == ["1", "1.30–1.30, median 1.30", "1 of 1", "20.0 % to 20.0 %"]
    report = made_up()
    del report["operators"]["operators"]["compact_kv_"][-1]["match"]
    assert short_table(report) == short
    found = line_of(short, "`token_statistics`")
    assert found[1:] == ["2", "0.90–2.40, median 1.65", "1 of 2", "20.0 % to 33.3 %"]


def test_naive_code_is_compared_at_its_own_length():
    short = short_table(made_up())
    assert line_of(short, "SpecEM", "float32")[3] == "3.27 times"
    # 20 s of naive code and 4 s of ours for 24 tokens, which is not the default length.
    assert line_of(short, "TokenEnsemble", "float32")[3] == "5.00 times (24 new tokens)"
    assert line_of(short, "SAFE", "float32")[3] == "–"
    # Against naive code of its own, 25 s, where ours takes 11.475.
    assert line_of(short, "CoSD", "float32")[3] == "2.18 times"
    assert line_of(short, "CoSD", "float64")[2] == "failed"


def test_goals_are_met_or_missed(text):
    assert line_of(text, "little outside")[2:] == ["1.30 %", "met"]
    assert line_of(text, "much faster")[-1] == "**missed**"


def test_busy_moments_are_named(text):
    part = text.split("Measured at a load average above 3", 1)[1].split("##", 1)[0]
    assert re.findall("^- (.*)$", part, re.MULTILINE) == [
        "assisted decoding, float32, 2 models, context 512, 64 new",
        "assisted decoding, bfloat16, 2 models, context 512, 64 new",
        "token_statistics, bfloat16-v49152-r1",
    ]
    quiet = made_up()
    quiet["machine"]["threads"] = 4
    assert "Nothing was measured at a load average above 5" in render(quiet, None, [])


@pytest.mark.parametrize("missing", ["operators", "end_to_end"])
def test_one_part_alone(missing, tmp_path):
    report = made_up()
    del report[missing]
    changes = compare(report, made_up())
    text = render(report, changes, draw(report, tmp_path))
    assert ("## Operators" in text) == (missing != "operators")
    assert ("## Decoding" in text) == (missing != "end_to_end")
    assert all(len({len(line) for line in lines}) == 1 for lines in tables(text))
    gone = [change for change in changes if change.verdict == history.GONE]
    assert len(gone) == 1  # the part, not each of its cells
    assert gone[0].part == {"operators": "operators", "end_to_end": "end to end"}[missing]
    assert {path.name for path in tmp_path.iterdir()} == set(draw(report, tmp_path))
    assert ("operators.png" in draw(report, tmp_path)) == (missing != "operators")


def test_pictures_are_written(tmp_path):
    names = draw(made_up(), tmp_path)
    assert names == ["context.png", "members.png", "stages.png", "operators.png"]
    for name in names:
        data = (tmp_path / name).read_bytes()
        assert data.startswith(PNG)
        assert len(data) > 10_000


def test_a_text_that_ended_before_says_so():
    made = made_up()
    made["end_to_end"]["runs"][0]["tokens"] = 31
    assert made["end_to_end"]["runs"][0]["method"] == "SpecEM"
    assert line_of(render(made, None, []), "float32", "SpecEM", "31 of 64")


def test_names_are_no_formulas(tmp_path):
    made = made_up()
    made["end_to_end"]["runs"] += [alone(r"a$\bad$", context=context) for context in (512, 2048)]
    assert "context.png" in draw(made, tmp_path)


def test_axes_say_what_was_changed_and_failures_are_gaps():
    made = made_up()
    failed = next(
        one
        for one in made["end_to_end"]["runs"]
        if (one["method"], one["dtype"], one["context"]) == ("SpecEM", "float32", 2048)
    )
    failed |= {"failure": "no room", "seconds": None}
    for make, label in ((plots.context, "tokens of the prompt"), (plots.members, "models")):
        figure = make(made)
        assert {axes.get_xlabel() for axes in figure.axes} == {label}
    (line,) = (
        one for one in plots.context(made).axes[0].get_lines() if one.get_label() == "SpecEM"
    )
    assert [math.isnan(time) for time in line.get_ydata()] == [False, True, False]


def test_no_picture_without_a_sweep(tmp_path):
    report = made_up()
    report["end_to_end"]["runs"] = [run("SpecEM"), alone("smollm2")]
    assert draw(report, tmp_path) == ["stages.png", "operators.png"]


def test_a_sweep_leaves_the_rest_at_the_default():
    found = sweep(made_up(), "context")
    assert list(found["float32", "SpecEM"]) == [512, 2048, 8192]
    chosen = found["float32", "SpecEM"].values()
    assert {(r["members"], r["segment"], r["new"]) for r in chosen} == {(2, 10, 64)}
    assert ("float32", "naive union") not in found  # was run at one length
    assert list(sweep(made_up(), "segment")["float32", "SpecEM"]) == [5, 10]
