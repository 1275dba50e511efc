"""The operators' benchmarks: their arithmetic, and that each of them still runs."""

import json
import os
import statistics
import subprocess
import sys
from argparse import ArgumentTypeError
from importlib import import_module
from pathlib import Path

import pytest
import torch

from benchmarks.operators.ceilings import Ceilings, Work, highest, last_level_cache
from benchmarks.operators.frame import (
    Alternative,
    Refused,
    back_ends,
    check_equal,
    compiled_peer,
    copies_needed,
    figures,
    in_turns,
    matches_of,
)
from benchmarks.output_file import output_file

ROOT = Path(__file__).parents[1]
CEILINGS = Ceilings(threads=1, products={"float32": 100.0, "bfloat16": 400.0}, read=20.0, copy=10.0)
OPERATORS = [
    "compact_kv_",
    "mix_distributions",
    "segment_attention",
    "segment_mean",
    "sharpen_prefixes",
    "token_statistics",
    "top_k_union",
]


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (Work(20_000), (1.0, "memory")),
        (Work(20_000, copies=True), (2.0, "memory")),
        (Work(20_000, 1e6), (10.0, "products")),
        (Work(20_000, 1e6, torch.bfloat16), (2.5, "products")),
        (Work(200_000, 1e6, torch.bfloat16), (10.0, "memory")),
    ],
)
def test_the_larger_floor_binds(work, expected):
    floor, bound = CEILINGS.floor_us(work)
    assert (floor, bound) == (pytest.approx(expected[0]), expected[1])


def test_fewer_threads_may_reach_more():
    two = Ceilings(threads=2, products={"float32": 150.0, "bfloat16": 300.0}, read=15.0, copy=12.0)
    expected = Ceilings(2, {"float32": 150.0, "bfloat16": 400.0}, read=20.0, copy=12.0)
    assert highest([CEILINGS, two], 2) == expected
    assert highest([CEILINGS, two], 1) == CEILINGS


def test_figures_of_known_times():
    ours, peer = [2e-6, 4e-6, 8e-6], [6e-6, 8e-6, 8e-6]
    found = figures(peer, ours, floor_us=2.0)
    assert found["median_us"] == pytest.approx(8.0)
    assert found["iqr_us"] == pytest.approx(2.0)
    assert found["quartiles_us"] == [pytest.approx(6.0), pytest.approx(8.0)]
    assert found["floor_share"] == pytest.approx(0.25)
    assert found["ratio"] == pytest.approx(2.0)  # of 3, 2 and 1
    # A slow spell that covers both does not count.
    spell = figures([6e-6, 80e-6, 8e-6], [2e-6, 40e-6, 8e-6], floor_us=2.0)
    assert spell["ratio"] == found["ratio"]


def test_results_that_differ_are_an_error():
    values = torch.tensor([1.0, -2.0])
    check_equal("close", [values + 1e-4], [values], 1e-4)
    for wrong in (values + 1e-3, values * torch.nan, values[:1]):
        with pytest.raises(AssertionError, match="peer"):
            check_equal("peer", [wrong], [values], 1e-4)
    with pytest.raises(AssertionError, match="peer"):
        check_equal("peer", [values.long() + 1], [values.long()], 0.5)
    with pytest.raises(AssertionError, match="peer"):
        check_equal("peer", [values.nextafter(values + 1)], [values], 0.0)


def test_the_largest_difference_is_returned():
    ids, values = torch.tensor([3, 5]), torch.tensor([1.0, -2.0])
    assert check_equal("same", [ids, values], [ids, values], 1e-4) == 0.0
    assert check_equal("moved", [values], [values], 0.0) == 0.0
    assert check_equal("zero", [0 * values], [0 * values], 1e-4) == 0.0
    # Of each result over its own largest value: here 2e-4 of 2, and 1e-3 of 100.
    actual = [ids, values + torch.tensor([2e-4, 1e-4]), 50 * values - 1e-3]
    found = check_equal("close", actual, [ids, values, 50 * values], 1e-2)
    assert found == pytest.approx(1e-4, rel=1e-2)


def test_a_row_says_what_was_checked():
    def outcome(_, returned):
        return [returned]

    def rows(tolerance):
        alternatives = [
            Alternative("ours", lambda b: b * 1.0, outcome),
            Alternative("same", lambda b: b + 0.0, outcome),
            Alternative("close", lambda b: b + tolerance / 2, outcome),
            Alternative("other", lambda b: None, None),
        ]
        found = matches_of(alternatives, torch.tensor([0.5, 1.0]), tolerance, in_place=False)
        assert found[1] == {}
        return found[0]

    assert rows(0.0) == {
        "ours": "-",
        "same": "bit for bit",
        "close": "bit for bit",
        "other": "not compared",
    }
    assert rows(1e-2) == {
        "ours": "-",
        "same": "0.0e+00 of 1e-02",
        "close": "5.0e-03 of 1e-02",
        "other": "not compared",
    }


def test_a_broken_peer_leaves_the_others():
    def fails(buffer):
        raise MemoryError("no room")

    alternatives = [
        Alternative("ours", lambda b: b * 1.0, lambda _, returned: [returned]),
        Alternative("fails", fails, lambda _, returned: [returned]),
        Alternative("differs", lambda b: b + 1.0, lambda _, returned: [returned]),
        Alternative("same", lambda b: b + 0.0, lambda _, returned: [returned]),
    ]
    buffer = torch.tensor([0.5, 1.0])
    matches, broken = matches_of(alternatives, buffer, 0.0, in_place=False)
    assert set(matches) == {"ours", "same"}
    assert broken["fails"] == Refused("fails", "MemoryError: no room", broken=True)
    assert broken["differs"].reason.startswith("AssertionError: differs: result 0")
    with pytest.raises(MemoryError):  # without ours there is nothing to hold them against
        matches_of(alternatives[1:], buffer, 0.0, in_place=False)


def test_alternatives_take_turns_and_buffers_rotate(benchmark):
    calls = []
    alternatives = [
        Alternative(name, lambda buffer, name=name: calls.append((name, buffer)), None)
        for name in "abc"
    ]
    seconds = in_turns(benchmark, alternatives, list(range(5)), budget=0.0)
    names = "".join(name for name, _ in calls)
    assert names[:6] == "bcacba"
    assert [buffer for _, buffer in calls] == [i % 5 for i in range(len(calls))]
    if seconds is not None:  # with --benchmark-enable
        assert {len(times) for times in seconds.values()} == {5}
        assert all(statistics.median(times) >= 0 for times in seconds.values())


def test_rotated_buffers_exceed_the_cache():
    assert last_level_cache() > 0
    for size in (1000, 1 << 20, 1 << 30):
        assert copies_needed(size, "full") * size > last_level_cache()


def test_a_peer_that_cannot_run_says_why():
    def broken(function, buffer):
        raise NotImplementedError("not for this dtype\nand much more")

    refused = compiled_peer("peer", torch.neg, broken, None, lambda b, r: [r], marker="cpp")
    assert refused == Refused("peer", "NotImplementedError: not for this dtype")


def test_files_that_cannot_be_written_are_refused_before(tmp_path):
    assert output_file(str(tmp_path / "new.json")) == str(tmp_path / "new.json")
    for path in (tmp_path, tmp_path / "no" / "new.json"):
        with pytest.raises(ArgumentTypeError, match=f"in a folder that exists, got {path}"):
            output_file(str(path))


@pytest.mark.parametrize("module", ["loop", "trace_round"])
def test_the_flags_of_loop_and_trace_round(module, tmp_path, monkeypatch, capsys):
    flags = {"loop": ["--json"], "trace_round": ["--trace", "--picture"]}[module]
    wrong = [[flag, str(tmp_path / "no" / "x.svg")] for flag in flags]
    wrong += [["--picture", str(tmp_path / "x.bmp")]] if module == "trace_round" else []
    for arguments in wrong:
        monkeypatch.setattr("sys.argv", [module, *arguments])
        with pytest.raises(SystemExit) as status:
            import_module(f"benchmarks.{module}").main()
        assert status.value.code == 2
        assert arguments[0] in capsys.readouterr().err


@pytest.mark.slow
def test_each_benchmark_runs(tmp_path):
    """On one small case each, timed, in a process of its own."""
    record = tmp_path / "results.json"
    command = [sys.executable, "-m", "pytest", "benchmarks/operators", "--tiny", "-q"]
    command += ["--benchmark-enable", "--json", str(record), "-p", "no:cacheprovider"]
    # As a process of its own and no worker of pytest-xdist, in which nothing is timed.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    results = json.loads(record.read_text())
    assert results["machine"]["torch"] == torch.__version__
    assert results["last_level_cache"] == last_level_cache()
    assert {ceilings["threads"] for ceilings in results["ceilings"]} == {1, 2}
    assert sorted(results["operators"]) == OPERATORS
    for operator, rows in results["operators"].items():
        assert len({row["case"] for row in rows}) == 1
        names = [row["alternative"] for row in rows]
        ours = back_ends(operator)
        assert names[: len(ours)] == ours
        assert len(names) > len(ours)
        assert [row["ours"] for row in rows] == [True] + [False] * (len(rows) - 1)
        for row in rows:
            assert row["alternative"] in ran.stdout
            assert row["floor_us"] > 0
            if "refused" in row:  # by what is not installed or supported, not by a mistake here
                assert not row["refused"].startswith(("TypeError", "AttributeError", "NameError"))
            else:
                assert row["median_us"] > 0
                low, high = row["quartiles_us"]
                assert low <= row["median_us"] <= high
                assert row["iqr_us"] == pytest.approx(high - low)
                assert row["match"] in ran.stdout
                assert (row["match"] == "-") == row["ours"]
                assert row["ratio"] > 0
