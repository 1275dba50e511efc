"""The report of the operators on a GPU: the whole of it on the CPU, and that it needs a GPU."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.case import back_ends
from benchmarks.gpu.catalogue import catalogue
from benchmarks.gpu_report import OPERATORS, main

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


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory):
    """The results and the output, with a compute-sanitizer that finds nothing, and without what a
    machine that has a GPU may lack."""
    folder = tmp_path_factory.mktemp("report")
    hidden = tmp_path_factory.mktemp("hidden")
    for package in ("hypothesis", "pytest", "pytest_benchmark", "rich"):
        (hidden / f"{package}.py").write_text(f"raise ImportError('no {package} here')\n")
    modules = [str(hidden), str(ROOT), str(ROOT / "python"), os.environ.get("PYTHONPATH")]
    program = folder / "compute-sanitizer"
    program.write_text('#!/bin/sh\n[ "$3" = --error-exitcode ] || exit 3\nshift 4\nexec "$@"\n')
    program.chmod(0o755)
    record = folder / "report.json"
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    modules = os.pathsep.join(filter(None, modules))
    ran = report("--dry-run", "--json", str(record), PATH=path, PYTHONPATH=modules)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(record.read_text()), ran.stdout


@pytest.mark.slow
class TestDryRun:
    def test_it_says_that_it_is_one(self, dry_run):
        results, output = dry_run
        assert results["dry_run"] is True
        assert output.startswith("DRY RUN")
        assert results["machine"]["torch"] == torch.__version__
        assert results["machine"]["gpu"] is None
        assert results["failures"] == []

    def test_every_operator_is_checked_and_its_kernels_ran(self, dry_run):
        results, output = dry_run
        assert [verdict for verdict in results["checks"] if not verdict["ok"]] == []
        for operator in OPERATORS:
            own = [verdict for verdict in results["checks"] if verdict["operator"] == operator]
            ran = {verdict["back_end"]: set() for verdict in own}
            for verdict in own:
                assert 0 <= verdict["error"] <= 1
                ran[verdict["back_end"]] |= set(verdict["kernels"])
            assert ran == {"triton": KERNELS[operator], "reference": set()}
            assert operator in output

    def test_the_sanitizer_covers_every_kernel(self, dry_run):
        results, _ = dry_run
        assert set(results["sanitizer"]) == {"memcheck", "racecheck"}
        for found in results["sanitizer"].values():
            assert found["result"] == "clean"
            assert found["covered"] == [f"{operator}, triton" for operator in OPERATORS]

    def test_ceilings(self, dry_run):
        results, _ = dry_run
        ceilings = results["ceilings"]
        assert set(ceilings["products"]) == {"float32", "float16", "bfloat16"}
        assert all(rate > 0 for rate in (*ceilings["products"].values(), ceilings["read"]))
        assert ceilings["copy"] > 0

    @pytest.mark.parametrize("operator", OPERATORS)
    def test_timings(self, dry_run, operator):
        results, output = dry_run
        rows = results["timings"][operator]
        for case in {row["case"] for row in rows}:
            own = [row for row in rows if row["case"] == case]
            assert sum(row.get("ours", False) for row in own) == 1
            ours = [row["alternative"] for row in own if row["back_end"]]
            assert ours == ["triton", "reference"]
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

    def test_rounds(self, dry_run):
        results, output = dry_run
        triton, reference = (results["rounds"][name] for name in ("triton", "reference"))
        assert triton["ms_per_round"] > 0
        assert triton["triton_launches"] > 0
        assert {"segment_attention", "token_statistics"} <= set(triton["operators"])
        assert reference["triton_launches"] == 0
        assert "ms a round" in output

    def test_the_table_of_choices_can_be_pasted(self, dry_run):
        results, output = dry_run
        assert set(results["dispatch"]) == {"eager", "graph"}
        for kind, name in (("eager", "FASTEST"), ("graph", "FASTEST_IN_GRAPHS")):
            pasted = output[output.index(f"{name} = {{") :]
            pasted = pasted[: pasted.index("\n}") + 2]
            choices = ast.literal_eval(pasted.removeprefix(f"{name} = "))
            assert choices == results["dispatch"][kind]
            assert set(choices) == set(OPERATORS)


def test_without_a_gpu_it_says_so():
    ran = report(CUDA_VISIBLE_DEVICES="")
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr == "gpu_report: PyTorch finds no GPU here; --dry-run needs none\n"


def test_an_unknown_operator_is_refused(capsys):
    with pytest.raises(SystemExit) as status:
        main(["--only", "attention"])
    assert status.value.code == 2
    assert "--only" in capsys.readouterr().err


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
