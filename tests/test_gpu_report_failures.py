"""What the GPU report does where something fails, is missing or cannot be recorded."""

import json

import pytest
import torch

from benchmarks.gpu import check, clock, sanitizer, session, tables, timing
from benchmarks.gpu.budget import Budget
from benchmarks.gpu.case import Cases
from benchmarks.gpu.rows import Mean, Statistics
from benchmarks.operators.ceilings import Ceilings
from benchmarks.operators.frame import Alternative
from ensemble_kernels import _triton

CPU = torch.device("cpu")
CEILINGS = Ceilings(1, dict.fromkeys(("float32", "float16", "bfloat16"), 100.0), 20.0, 10.0)


class Wrong(Mean):
    """A mean that is off by the least that counts, or fails otherwise."""

    off = 1.0

    def call(self, back_end, buffer):
        if isinstance(self.off, Exception):
            raise self.off
        return super().call("reference", buffer) + self.off


MEAN = ((5, 4), torch.float32)


class TestCheck:
    def field(self, got, exact, same_dtype=None):
        tensors = (None if t is None else torch.tensor(t) for t in (got, exact, same_dtype))
        return check.field_error(*tensors)

    def test_errors_are_shares_of_what_is_allowed(self):
        assert self.field([1.0, 2.0], [1.0, 2.0]) == 0
        assert self.field([1.00001], [1.0]) == pytest.approx(0.5, rel=0.02)
        assert self.field([1.1], [1.0], [1.1]) == pytest.approx(0.5, rel=1e-3)
        assert self.field([-torch.inf, 1.0], [-torch.inf, 1.0]) == 0
        for got, exact in (
            ([1.0], [1.0, 2.0]),
            ([torch.nan], [1.0]),
            ([1.0], [-torch.inf]),
            ([torch.inf], [-torch.inf]),
            ([1], [2]),
            ([True], [False]),
        ):
            assert self.field(got, exact) == torch.inf

    def verdict(self, off, monkeypatch, back_end="reference"):
        monkeypatch.setattr(Wrong, "off", off)
        case = Wrong(*MEAN)
        buffer = case.buffers(CPU, 1)[0]
        return check.verdict(case, back_end, buffer, case.expected(buffer))

    def test_a_wrong_result_fails(self, monkeypatch):
        assert self.verdict(0.0, monkeypatch).reason is None
        assert "times the error" in self.verdict(1e-3, monkeypatch).reason
        assert "inf" in self.verdict(torch.nan, monkeypatch).reason
        assert self.verdict(ValueError("first\nsecond"), monkeypatch).reason == "ValueError: first"

    def test_a_back_end_may_decline(self, monkeypatch):
        found = self.verdict(_triton.Unsupported("not this dtype"), monkeypatch)
        assert found.reason is None
        assert found.declined == "not this dtype"

    def test_triton_must_have_launched_something(self, monkeypatch):
        assert "no kernel" in self.verdict(0.0, monkeypatch, "triton").reason

    def test_the_record_has_no_infinity(self, monkeypatch):
        rows = check.as_json([self.verdict(torch.nan, monkeypatch)])
        assert rows[0]["error"] is None
        assert rows[0]["ok"] is False
        json.dumps(rows, allow_nan=False)

    def test_rows_behind_the_reach_of_32_bits_are_the_last(self):
        case = Statistics(50, 9, torch.bfloat16, tail=2)
        buffer = case.buffers(CPU, 1)[0]
        found = check.verdict(case, "reference", buffer, case.expected(buffer))
        assert found.reason is None
        assert {field.shape[0] for field in case.expected(buffer)} == {2}


class TestTiming:
    def test_blocks_are_per_call_and_buffers_rotate(self):
        calls = []
        one = Alternative("a", calls.append, None)
        plan = timing.Plan(blocks=3, block_us=0.0, most_calls=4, launch_bound_us=0.0)
        times = timing.in_turns(timing._calls([one], [0, 1, 2]), clock.HostClock(), plan)
        assert len(times["a"]) == 3
        assert calls == [i % 3 for i in range(len(calls))]

    def test_what_cannot_be_recorded_says_why(self):
        class Waits(clock.HostClock):
            def graph(self, call, buffers):
                raise RuntimeError("called a synchronizing CUDA operation\nmore")

        rows = timing.time_case(Mean(*MEAN), Waits(), CEILINGS, 100, timing.TINY)
        assert {row["graph"] for row in rows} == {None}
        assert {row["graph_refused"] for row in rows} == {
            "RuntimeError: called a synchronizing CUDA operation"
        }
        assert "segment_reduce" in tables.timings("segment_mean", rows)

    def test_a_peer_that_does_other_work_is_not_timed(self):
        class Other(Mean):
            def peers(self, buffers):
                return [Alternative("sum", lambda b: b[0].sum(), lambda _, made: [made[None]])]

        rows = timing.time_case(Other(*MEAN), clock.HostClock(), CEILINGS, 100, timing.TINY)
        refused = next(row for row in rows if row["alternative"] == "sum")
        assert "AssertionError" in refused["refused"]


class Cuda:
    """Of `torch.cuda` what records a graph; it keeps what was asked for, in order."""

    def __init__(self, monkeypatch):
        self.asked = []
        outer = self

        class CUDAGraph:
            def capture_begin(self):
                outer.asked.append("begin")

            def capture_end(self):
                outer.asked.append("end")

            def replay(self):
                outer.asked.append("replay")

        monkeypatch.setattr(torch.cuda, "CUDAGraph", CUDAGraph)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
        monkeypatch.setattr(torch.cuda, "stream", lambda _: torch.no_grad())
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", self.asked.append)


class TestGraphs:
    def test_all_calls_are_recorded_once(self, monkeypatch):
        cuda = Cuda(monkeypatch)
        clock.GpuClock().graph(cuda.asked.append, ["a", "b"])()
        expected = ["error", "a", "default", "begin", "a", "b", "end", "replay"]
        assert cuda.asked == expected

    def test_a_call_that_waits_is_never_recorded(self, monkeypatch):
        cuda = Cuda(monkeypatch)

        def waits(buffer):
            raise RuntimeError

        with pytest.raises(RuntimeError):
            clock.GpuClock().graph(waits, ["a"])
        assert cuda.asked == ["error", "default"]

    def test_a_recording_that_fails_is_ended(self, monkeypatch):
        cuda = Cuda(monkeypatch)

        def fails(buffer):
            if cuda.asked[-1] == "begin":
                raise RuntimeError

        with pytest.raises(RuntimeError):
            clock.GpuClock().graph(fails, ["a"])
        assert cuda.asked == ["error", "default", "begin", "end"]


class TestSanitizer:
    def found(self, tmp_path, monkeypatch, script):
        program = tmp_path / "compute-sanitizer"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return sanitizer.sanitize(Budget().part("sanitizer", 60.0), dry_run=True)["memcheck"]

    def test_findings_fail(self, tmp_path, monkeypatch):
        script = 'echo "========="; echo "========= Invalid __global__ read"; exit 86'
        found = self.found(tmp_path, monkeypatch, script)
        assert found["failed"]
        assert found["lines"] == ["========= Invalid __global__ read"]

    def test_a_program_that_cannot_run_says_nothing_of_the_kernels(self, tmp_path, monkeypatch):
        found = self.found(tmp_path, monkeypatch, 'echo "no permission" >&2; exit 1')
        assert not found["failed"]
        assert found["result"] == "exit status 1: no permission"

    def test_a_gpu_that_refuses_the_tool_is_no_finding(self, tmp_path, monkeypatch):
        script = 'echo "========= Error: Device not supported"; exit 86'
        found = self.found(tmp_path, monkeypatch, script)
        assert found == {
            "result": "cannot run here: Error: Device not supported",
            "failed": False,
        }

    def test_too_slow(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sanitizer, "SECONDS", 0.1)
        found = self.found(tmp_path, monkeypatch, "exec sleep 20")
        assert found == {"result": "not finished in 0 s", "failed": False}

    def test_none(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        found = sanitizer.sanitize(Budget().part("sanitizer", 60.0), dry_run=True)
        assert found == {"skipped": "compute-sanitizer is not on PATH"}


class TestSession:
    @pytest.fixture
    def quick(self, monkeypatch):
        good, bad = Mean(*MEAN), Wrong(*MEAN)
        bad_cases = Cases("segment_mean", [bad], [bad])
        good_cases = Cases("token_statistics", [good], [good])  # under another name
        monkeypatch.setattr(Mean, "operator", "token_statistics")
        monkeypatch.setattr(Wrong, "operator", "segment_mean")
        monkeypatch.setattr(session, "catalogue", lambda tiny: [good_cases, bad_cases])
        monkeypatch.setattr(session.sanitizer, "sanitize", lambda part, dry_run: {"skipped": "-"})
        monkeypatch.setattr(session.rounds, "measure", lambda clock, part, tiny: {"skipped": "-"})

    def test_an_operator_that_fails_is_not_timed(self, quick, tmp_path, capsys):
        path = tmp_path / "report.json"
        assert session.Session(str(path), True, None).run() == 1
        output = capsys.readouterr().out
        assert "segment_mean: not timed, since a check has failed" in output
        assert "FAILED: segment_mean float32-t9-n2, reference:" in output
        results = json.loads(path.read_text())
        assert list(results["timings"]) == ["token_statistics"]
        assert len(results["failures"]) == 1

    def test_only_one_operator(self, quick):
        assert session.Session(None, True, "token_statistics").run() == 0

    def test_what_breaks_takes_nothing_else_with_it(self, quick, monkeypatch, tmp_path, capsys):
        def broken(*_):
            raise RuntimeError("an illegal memory access was encountered")

        monkeypatch.setattr(session.check, "check", broken)
        path = tmp_path / "report.json"
        assert session.Session(str(path), True, None).run() == 1
        results = json.loads(path.read_text())
        assert results["failures"][0].startswith("check: RuntimeError: an illegal memory access")
        assert results["timings"] == {}  # what is not checked is not timed
        assert results["ceilings"]["read"] > 0
        assert "it could not be checked" in capsys.readouterr().out
