"""The report of the operators on a GPU: the whole of it on the CPU, and that it needs a GPU."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import check
from benchmarks.gpu.case import back_ends
from benchmarks.gpu.catalogue import catalogue
from benchmarks.gpu_report import OPERATORS, main
from ensemble_kernels import _cuda, _triton
from tests.kernels import emulated

ROOT = Path(__file__).parents[1]
# The kernels of each operator. `segment_attention` has one for the prefix, one for the segments.
KERNELS = {
    "compact_kv_": {"compact_kv_kernel"},
    "mix_distributions": {"softmax_chunks_kernel", "mix_chunks_kernel", "normalise_kernel"},
    "segment_attention": {"prefix_kernel", "segment_kernel"},
    "segment_mean": {"segment_mean_kernel"},
    "sharpen_prefixes": {"copy_and_sum_kernel", "sharpen_kernel"},
    "token_statistics": {"chunk_statistics_kernel", "merge_chunks_kernel"},
    "top_k_union": {"chunk_keys_kernel", "candidate_scores_kernel"},
}


def report(*arguments, **environment):
    own = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "TRITON_"))}
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_report", *arguments],
        cwd=ROOT,
        env={**own, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.skipif(_triton.import_error() is not None, reason=str(_triton.import_error()))
def test_a_dry_run(tmp_path):
    """With a compute-sanitizer that finds nothing, and without what a machine that has a GPU may
    lack. One run, and so one test: workers of pytest-xdist share none."""
    program = tmp_path / "compute-sanitizer"
    program.write_text(
        f'#!/bin/sh\nwhile [ "$1" != "{sys.executable}" ]; do shift; done\nexec "$@"\n'
    )
    program.chmod(0o755)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    for package in ("hypothesis", "pytest", "pytest_benchmark", "rich"):
        (hidden / f"{package}.py").write_text(f"raise ImportError('no {package} here')\n")
    modules = [str(hidden), str(ROOT), str(ROOT / "python"), os.environ.get("PYTHONPATH")]
    record = tmp_path / "report.json"
    ran = report(
        *("--dry-run", "--json", str(record)),
        PATH=os.pathsep.join([str(tmp_path), os.environ["PATH"]]),
        PYTHONPATH=os.pathsep.join(filter(None, modules)),
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    results = json.loads(record.read_text())
    assert results["dry_run"] is True
    assert ran.stdout.startswith("DRY RUN")
    assert results["machine"]["torch"] == torch.__version__
    assert results["machine"]["gpu"] is None
    assert results["failures"] == []
    assert results["left_out"] == []
    for operator in OPERATORS:
        its_kernels_ran_and_were_right(results, operator)
        it_was_timed(results, ran.stdout, operator)
    the_sanitizer_covered_every_kernel(results["sanitizer"])
    rates = results["ceilings"]
    assert set(rates["products"]) == {"float32", "float16", "bfloat16"}
    assert all(rate > 0 for rate in (*rates["products"].values(), rates["read"], rates["copy"]))
    rounds_were_counted(results["rounds"], ran.stdout)
    the_choices_can_be_pasted(results["dispatch"], ran.stdout)


def its_kernels_ran_and_were_right(results, operator):
    own = [verdict for verdict in results["checks"] if verdict["operator"] == operator]
    ran = {verdict["back_end"]: set() for verdict in own}
    for verdict in own:
        assert verdict["ok"]
        assert 0 <= verdict["error"] <= 1
        ran[verdict["back_end"]] |= set(verdict["kernels"])
    assert list(ran) == ours_of(operator)
    assert ran == {name: set() for name in ran} | {"triton": KERNELS[operator]}


def ours_of(operator):
    """The back ends of a dry run, in their order."""
    emulated_too = emulated.AVAILABLE and _cuda.FASTEST[operator] == "cuda"
    return ["triton", *["cuda"] * emulated_too, "reference"]


def the_sanitizer_covered_every_kernel(sanitizer):
    assert set(sanitizer) == {"memcheck", "racecheck"}
    for found in sanitizer.values():
        assert found["result"] == "clean"
        assert found["covered"] == [f"{operator}, triton" for operator in OPERATORS]


def it_was_timed(results, output, operator):
    rows = results["timings"][operator]
    for case in {row["case"] for row in rows}:
        own = [row for row in rows if row["case"] == case]
        assert sum(row.get("ours", False) for row in own) == 1
        ours = [row["alternative"] for row in own if row["back_end"]]
        assert ours == ours_of(operator)
        assert len(own) > len(ours)
    for row in rows:
        assert row["alternative"] in output
        assert row["floor_us"] > 0
        if "refused" in row:  # by what is not installed or supported, not by a mistake here
            assert row["alternative"].startswith("flash-attn")
            continue
        for kind in ("eager", "graph"):
            assert row[kind]["us"] > 0
            assert row[kind]["floor_share"] == pytest.approx(row["floor_us"] / row[kind]["us"])
            assert row[kind]["ratio"] > 0


def rounds_were_counted(rounds, output):
    assert set(rounds) == {"triton", "reference"}
    assert rounds["triton"]["ms_per_round"] > 0
    assert rounds["triton"]["triton_launches"] > 0
    assert {"segment_attention", "token_statistics"} <= set(rounds["triton"]["operators"])
    assert rounds["reference"]["triton_launches"] == 0
    assert "ms a round" in output


def the_choices_can_be_pasted(dispatch, output):
    assert set(dispatch) == {"eager", "graph"}
    for kind, name in (("eager", "FASTEST"), ("graph", "FASTEST_IN_GRAPHS")):
        pasted = output[output.index(f"{name} = {{") :]
        pasted = pasted[: pasted.index("\n}") + 2]
        choices = ast.literal_eval(pasted.removeprefix(f"{name} = "))
        assert choices == dispatch[kind]
        assert set(choices) == set(OPERATORS)


def test_without_a_gpu_it_says_so():
    ran = report(CUDA_VISIBLE_DEVICES="")
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr == "gpu_report: PyTorch finds no GPU here; --dry-run needs none\n"


@pytest.mark.parametrize("wrong", [("--only", "attention"), ("--json", "no/folder/x.json")])
def test_wrong_options_are_refused_at_once(wrong, capsys):
    with pytest.raises(SystemExit) as status:
        main(wrong)
    assert status.value.code == 2
    assert wrong[0] in capsys.readouterr().err


@pytest.mark.parametrize("cases", catalogue(tiny=False), ids=lambda cases: cases.operator)
def test_what_a_gpu_is_held_against(cases):
    """The smaller cases of a real run: the definitions in float64 agree with the references."""
    small = [case for case in cases.checked if case.bytes_each <= 1 << 18]
    assert small
    for case in small:
        buffer = case.buffers(torch.device("cpu"), 1)[0]
        found = check.verdict(case, "reference", buffer, list(case.expected(buffer)))
        assert found.reason is None, found.line()
        assert 0 <= found.error < 1


@pytest.mark.parametrize("tiny", [True, False])
def test_the_catalogue_has_every_operator_once(tiny):
    cases = catalogue(tiny)
    assert tuple(own.operator for own in cases) == OPERATORS
    for own in cases:
        assert "reference" in back_ends(own.operator)
        for several in (own.checked, own.timed):
            assert {case.operator for case in several} == {own.operator}
            names = [case.name for case in several]
            assert len(set(names)) == len(names) > 0
