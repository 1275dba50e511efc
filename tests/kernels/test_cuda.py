"""The CUDA back end where there is no GPU: what is registered, and what is said of the rest."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

import ensemble_kernels
from ensemble_kernels import _cuda, _dispatch, _native

KERNELS = sorted(name for name, backend in _cuda.FASTEST.items() if backend == "cuda")
BUILT = _native.cuda_missing() is None


@pytest.mark.skipif(
    not (shutil.which("nvcc") or os.environ.get("CUDA_HOME")), reason="needs nvcc at install time"
)
@pytest.mark.parametrize("name", KERNELS)
def test_where_there_is_nvcc_the_kernels_are_registered(name):
    """Also beside a torch without CUDA."""
    assert _native.cuda_missing() is None
    for namespace in ("ensemble_kernels", "ensemble_kernels_cuda"):
        operator = f"{namespace}::{name}"
        assert torch._C._dispatch_has_kernel_for_dispatch_key(operator, "CUDA")


def test_every_operator_has_its_implementation_on_cuda_devices():
    assert sorted(_cuda.FASTEST) == sorted(_dispatch._references)
    for name, backend in _cuda.FASTEST.items():
        assert hasattr(torch.ops.ensemble_kernels_cuda, name) == (backend == "cuda")


@pytest.mark.parametrize("name", sorted(_cuda.FASTEST))
def test_why_there_is_no_cuda_is_said(name):
    reason = ensemble_kernels.backends()[name]["cuda"]
    if name not in KERNELS:
        assert "on a GPU it is Triton's" in reason
    elif not BUILT:
        assert "built without CUDA kernels" in reason
    elif not torch.cuda.is_available():
        assert "sees no CUDA device" in reason
    else:
        assert reason is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is said without a GPU")
def test_a_named_back_end_that_is_not_there_raises():
    with pytest.raises(ValueError, match="backend='cuda' is not available for token_statistics"):
        ensemble_kernels.token_statistics(
            torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64), backend="cuda"
        )


def test_why_the_build_left_cuda_out_is_kept(monkeypatch, tmp_path):
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"built": True, "reason": None, "cuda": "no nvcc was there"}))
    monkeypatch.setattr(_native, "_RECORD", record)
    monkeypatch.setattr(_native, "MISSING", None)
    monkeypatch.setattr(_native, "registered", lambda *_: False)
    reason = ensemble_kernels.backends()["compact_kv_"]["cuda"]
    assert reason == "built without CUDA kernels, no nvcc was there: reinstall where there is nvcc"


def test_named_operators_are_fake_tensors_too():
    logits = torch.empty(3, 9, device="meta")
    ids = torch.empty(3, device="meta", dtype=torch.int64)
    named = torch.ops.ensemble_kernels_cuda.token_statistics.default
    assert [tuple(field.shape) for field in named(logits, ids, vocab_size=9, temperature=1.0)] == [
        (3,)
    ] * 5


@pytest.mark.skipif(not BUILT, reason="needs nvcc at install time")
def test_import_loads_no_driver():
    program = """
import ensemble_kernels
maps = open("/proc/self/maps").read()
assert "libensemble_kernels.so" in maps
print("libcuda.so" in maps)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
