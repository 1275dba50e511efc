"""With ENSEMBLE_KERNELS_NVTX=1 each call of an operator is a range of NVTX, recorded here."""

import pytest
import torch

from ensemble_kernels import _dispatch, compact_kv_, profiling, token_statistics


@pytest.fixture
def recorded(monkeypatch):
    events = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", events.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: events.append("pop"))
    return events


@pytest.mark.parametrize("backend", [None, "reference"])
def test_each_call_is_a_range(recorded, monkeypatch, backend):
    monkeypatch.setattr(profiling, "_NVTX", True)
    logits, ids = torch.randn(2, 9), torch.tensor([1, 2])
    token_statistics(logits, ids, vocab_size=9, backend=backend)
    assert recorded == ["token_statistics", "pop"]
    compact_kv_(torch.zeros(4, 1), torch.tensor([1]), 0, backend=backend)
    assert recorded[2:] == ["compact_kv_", "pop"]


def test_a_range_ends_where_the_operator_raises(recorded, monkeypatch):
    monkeypatch.setattr(profiling, "_NVTX", True)
    with pytest.raises(ValueError, match="token_ids"):
        token_statistics(torch.randn(1, 4), torch.tensor([7]), vocab_size=4)
    assert recorded == ["token_statistics", "pop"]


def test_elsewhere_the_operator_itself_is_called(recorded):
    def operator():
        raise AssertionError

    assert _dispatch.select("token_statistics", None, operator) is operator
    token_statistics(torch.randn(1, 4), torch.tensor([1]), vocab_size=4)
    assert recorded == []


def test_a_compiled_graph_has_no_ranges(recorded, monkeypatch):
    monkeypatch.setattr(profiling, "_NVTX", True)

    @torch.compile(fullgraph=True, backend="eager")
    def highest(logits, ids):
        return token_statistics(logits, ids, vocab_size=9).argmax

    highest(torch.randn(2, 9), torch.tensor([1, 2]))
    assert recorded == []
