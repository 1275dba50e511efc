"""The arithmetic of the GPU report: its time, its figures, the work of attention, its tables."""

import ast
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
import torch

from benchmarks.gpu import clock, rounds, session, tables
from benchmarks.gpu.attention import FLASH, Attention, flash_peer, visible
from benchmarks.gpu.budget import Budget
from benchmarks.gpu.figures import (
    allowed_error,
    copies_needed,
    dispatch,
    fastest,
    figures,
    literal,
    spread,
)
from benchmarks.operators.attention_peers import Visibility
from benchmarks.operators.frame import Refused

CPU = torch.device("cpu")


class Now:
    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


class TestBudget:
    def test_a_part_ends_with_the_whole(self):
        now = Now()
        budget = Budget(10.0, now)
        now.seconds = 4.0
        assert budget.part("long", 100.0).left() == 6.0
        assert budget.part("short", 2.0).left() == 2.0

    def test_what_does_not_fit_is_left_out_with_a_line(self):
        now = Now()
        budget = Budget(10.0, now)
        part = budget.part("rounds", 5.0)
        assert part.fits(5.0, "a")
        now.seconds = 2.0
        assert not part.fits(4.0, "b")
        assert budget.left_out == ["rounds: b: left out, 3 s left of what may take 4 s"]
        now.seconds = 12.0
        assert not part.fits(0.0)

    def test_cases_are_taken_as_long_as_the_longest_would_fit(self):
        now = Now()
        budget = Budget(100.0, now)
        taken = []
        for seconds in budget.part("timing", 10.0).each([1, 4, 2, 4, 5]):
            taken.append(seconds)
            now.seconds += seconds
        assert taken == [1, 4, 2]  # 3 seconds are left, and one has taken 4
        assert budget.left_out == ["timing: the last 2 of 5 left out for want of time"]

    def test_without_time_nothing_is_begun(self):
        budget = Budget(0.0, Now())
        assert list(budget.part("timing", 10.0).each([1])) == []
        assert len(budget.left_out) == 1

    def test_the_parts_together_stay_below_six_minutes(self):
        assert sum(session.SECONDS.values()) <= 345
        shares = [
            session.SHARES.get(c.operator, session.OTHER_SHARE) for c in session.catalogue(True)
        ]
        assert sum(shares) == pytest.approx(1)


class TestFigures:
    def test_known_times(self):
        found = figures([6.0, 8.0, 8.0], [2.0, 4.0, 8.0], floor_us=2.0)
        assert found == {"us": 8.0, "iqr_us": 2.0, "floor_share": 0.25, "ratio": 2.0}
        assert figures([6.0], [3.0], floor_us=3.0)["ratio"] == 2.0
        assert spread([5.0]) == (5.0, 5.0, 5.0)

    def test_only_what_is_clearly_faster_is_preferred(self):
        assert fastest({"reference": 9.9, "triton": 10.0}) == "triton"
        assert fastest({"reference": 9.0, "triton": 10.0}) == "reference"
        assert fastest({"cuda": 9.5, "reference": 9.4, "triton": 10.0}) == "cuda"

    def test_choices_can_be_pasted(self):
        def row(case, name, us, graph=None, back_end=True):
            found = {"eager": {"us": us}, "graph": graph and {"us": graph}}
            return {"case": case, "alternative": name, "back_end": back_end, **found}

        timings = {
            "operator": [
                row("small", "triton", 10.0, 2.0),
                row("small", "reference", 5.0, 4.0),
                row("small", "a peer", 1.0, 1.0, back_end=False),
                row("large", "triton", 10.0),
                row("large", "reference", 20.0),
                row("alone", "triton", 10.0),
                {"case": "alone", "alternative": "reference", "back_end": True, "refused": "no"},
            ],
            "not timed": [],
        }
        eager = {"operator": {"small": "reference", "large": "triton"}}
        assert dispatch(timings, "eager") == eager
        assert dispatch(timings, "graph") == {"operator": {"small": "triton"}}
        assert ast.literal_eval(literal("FASTEST", eager).removeprefix("FASTEST = ")) == eager

    def test_rotated_buffers_exceed_the_cache(self):
        assert copies_needed(1 << 20, 50 << 20, most=512) == 100
        assert copies_needed(1 << 40, 50 << 20, most=512) == 2
        assert copies_needed(1, 50 << 20, most=512) == 512

    def test_allowed_errors(self):
        assert allowed_error(1e-3, 7.0, torch.finfo(torch.float32).eps) == pytest.approx(2.02e-3)
        assert allowed_error(0.0, 8.0, 2**-7) == 2**-4
        assert allowed_error(0.0, 0.5, 2**-7) == 2**-7


class TestAttention:
    @pytest.mark.parametrize("window", [None, 1, 3, 9, 20, 100])
    @pytest.mark.parametrize(("prefix", "lengths"), [(0, (3, 2)), (16, (5, 1, 7)), (4, (12,))])
    def test_what_is_visible_is_counted_without_a_mask(self, prefix, lengths, window):
        mask = Visibility.of(prefix, lengths, window).mask()
        assert visible(prefix, lengths, window) == (int(mask.sum()), int(mask.any(0).sum()))

    def test_the_floor(self):
        case = Attention(4, 2, 8, None, 10, (2, 3), torch.bfloat16)
        work = case.work()
        assert work.bytes == 2 * 15 * 2 * 8 * 2 + 2 * 5 * 4 * 8 * 2 + 4 * 5 * 4
        assert work.flops == 4 * 4 * 8 * (5 * 10 + 3 + 6)
        assert case.bytes_each == 2 * 15 * 2 * 8 * 2

    @pytest.mark.parametrize("window", [None, 5])
    def test_flash_attention_is_asked_for_the_same(self, window, monkeypatch):
        """Where it is installed: here by a stand-in that does as it documents."""

        def varlen(query, key, value, rows, slots, longest_rows, longest, causal, window_size):
            assert causal
            assert longest_rows == int(rows.diff().max())
            assert longest == int(slots.diff().max())
            outs = []
            for i in range(rows.shape[0] - 1):
                own = query[rows[i] : rows[i + 1]].transpose(0, 1)
                cache = [s[slots[i] : slots[i + 1]].transpose(0, 1) for s in (key, value)]
                ahead = torch.arange(own.shape[1])[:, None] - torch.arange(cache[0].shape[1])
                ahead = ahead + cache[0].shape[1] - own.shape[1]  # ends at the last slot
                mask = (ahead >= 0) & ((ahead <= window_size[0]) | (window_size[0] < 0))
                attend = torch.nn.functional.scaled_dot_product_attention
                out = attend(own[None], *(s[None] for s in cache), attn_mask=mask, enable_gqa=True)
                outs.append(out[0].transpose(0, 1))
            return torch.cat(outs)

        module = ModuleType("flash_attn")
        module.flash_attn_varlen_func = varlen
        monkeypatch.setitem(sys.modules, "flash_attn", module)
        case = Attention(4, 2, 16, window, 9, (3, 4), torch.bfloat16)
        buffers = case.buffers(CPU, 2)
        peer = flash_peer(case, buffers)
        expected = case.expected(buffers[1])[0]
        torch.testing.assert_close(peer.call(buffers[1]).double(), expected, atol=3e-2, rtol=3e-2)
        assert isinstance(flash_peer(replace(case, dtype=torch.float32), buffers), Refused)

    def test_without_flash_attention_the_peer_is_refused(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "flash_attn", None)
        case = Attention(4, 2, 16, None, 9, (3, 4), torch.bfloat16)
        refused = flash_peer(case, case.buffers(CPU, 1))
        assert refused.name == FLASH
        assert "cannot be imported" in refused.reason


class TestRounds:
    def test_what_a_round_launches_is_counted(self):
        def event(name, us=0.0, on_device=False, **more):
            kind = torch.autograd.DeviceType.CUDA if on_device else torch.autograd.DeviceType.CPU
            span = SimpleNamespace(elapsed_us=lambda: us)
            return SimpleNamespace(name=name, device_type=kind, time_range=span, **more)

        found = rounds.counts(
            [
                event("cudaLaunchKernelExC"),
                event("cuLaunchKernelEx"),
                event("cudaStreamSynchronize"),
                event("ensemble_kernels::token_statistics"),
                event("aten::mm"),
                event("prefix_kernel", 1500.0, on_device=True),
                event("Memcpy HtoD (Pageable -> Device)", 500.0, on_device=True),
                event("draft", 9000.0, on_device=True, is_user_annotation=True),
            ]
        )
        assert found == {
            "launches": 2,
            "waits": 1,
            "kernels": 1,
            "copies": 1,
            "device_ms": 2.0,
            "operators": {"token_statistics": 1},
        }

    def test_without_transformers_it_says_so(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "ensemble_decoding", None)
        found = rounds.measure(clock.HostClock(), Budget().part("rounds", 1.0), tiny=True)
        assert "the decoder cannot be imported" in found["skipped"]
        assert rounds.lines(found) == [f"SpecEM: left out, {found['skipped']}"]


class TestTables:
    def test_with_rich(self):
        rows = [("a", "long name", "1"), ("", "b", "20")]
        text = tables.render("title", ("case", "what", "µs"), rows)
        assert text.startswith("title")
        assert "long name" in text
        assert text.count("├") == 0  # rows of one case stay together

    def test_without_rich(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "rich.console", None)
        text = tables.render(
            "title", ("case", "what", "µs"), [("a", "long name", "1"), ("", "b", "20")]
        )
        assert text == (
            "title\n"
            "case  what       µs\n"
            "----  ---------  --\n"
            "a     long name   1\n"
            "      b          20\n"
        )
