"""The choice of the Triton back end, where there is no GPU."""

import os
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import ensemble_kernels
from ensemble_kernels import _cuda, _dispatch, _library, _native, _triton

from .test_operators import sample
from .test_triton_interpreted import OPERATORS

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("name", OPERATORS)
def test_tensors_on_a_gpu_have_a_kernel(name):
    assert _native.registered(name, "CUDA")


@pytest.mark.parametrize("name", OPERATORS)
def test_the_dispatcher_calls_triton_for_tensors_on_a_gpu(name, monkeypatch):
    """Without a GPU: what is registered for the key where there is no CUDA kernel is called by
    hand."""
    called = []

    def run(operator, *args, **kwargs):
        called.append(operator)
        return _dispatch._references[operator](*args, **kwargs)

    monkeypatch.setattr(_triton, "import_error", lambda: None)
    monkeypatch.setattr(_triton, "run", run)
    _, args, kwargs = sample(name, 0)
    _library._fastest_without_cuda[name](*args, **kwargs)
    assert called == [name]


@pytest.mark.parametrize("name", OPERATORS)
def test_it_is_what_the_dispatcher_has_where_there_is_no_cuda_kernel(name, monkeypatch):
    operator, args, kwargs = sample(name, 0)
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    called = []
    monkeypatch.setattr(_triton, "import_error", lambda: called.append(name) or "not installed")
    if _native.cuda_missing() is None and _cuda.FASTEST[name] == "cuda":
        with pytest.raises(RuntimeError, match="device"):  # it wants a GPU
            operator.redispatch(key, *args, **kwargs)
        assert not called
    else:
        operator.redispatch(key, *args, **kwargs)
        assert called == [name]


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("cause", ["not installed", "unsupported"])
def test_the_reference_serves_what_triton_cannot(name, cause, monkeypatch):
    def refuse(*_, **__):
        raise _triton.Unsupported

    if cause == "not installed":
        monkeypatch.setattr(_triton, "import_error", lambda: "triton is not installed")
    else:
        monkeypatch.setattr(_triton, "import_error", lambda: None)
        monkeypatch.setattr(_triton, "run", refuse)
    operator, args, kwargs = sample(name, 0)
    _, theirs, _ = sample(name, 0)
    got = _library._fastest_without_cuda[name](*args, **kwargs)
    if name in _cuda.OF_MODELS:
        named = _library.operator_without_cuda(name)
        torch.testing.assert_close(named(*args, **kwargs), got)
    expected = operator(*theirs, **kwargs)
    torch.testing.assert_close((got, args), (expected, theirs))


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("namespace", ["ensemble_kernels", "ensemble_kernels_triton"])
def test_fake_tensors_on_a_gpu(name, namespace):
    _, args, kwargs = sample(name, 0)
    operator = getattr(getattr(torch.ops, namespace), name).default
    with FakeTensorMode() as mode:

        def on_a_gpu(value):
            if isinstance(value, list):
                return [on_a_gpu(item) for item in value]
            if not isinstance(value, torch.Tensor):
                return value
            return torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device="cuda"
            )

        result = operator(*(on_a_gpu(value) for value in args), **kwargs)
    for tensor in () if result is None else result if isinstance(result, tuple) else (result,):
        assert tensor.device.type == "cuda"
        assert tensor.fake_mode is mode


def test_without_triton_the_reason_is_named(monkeypatch):
    monkeypatch.setattr(_triton, "import_error", lambda: "triton is not installed")
    assert ensemble_kernels.backends()["compact_kv_"]["triton"] == "triton is not installed"
    with pytest.raises(ValueError, match="compact_kv_: triton is not installed"):
        ensemble_kernels.compact_kv_(torch.zeros(4, 1), torch.tensor([1]), 0, backend="triton")


def test_a_broken_triton_is_told_from_none(tmp_path):
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("import no_such_module")
    program = "from ensemble_kernels import _triton; print(_triton.import_error())"
    path = os.pathsep.join([str(tmp_path), ROOT])
    done = python("-c", program, PYTHONPATH=path)
    assert done.stdout == "triton cannot be imported: No module named 'no_such_module'\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_reason_is_named():
    with pytest.raises(ValueError, match=r"no GPU is available, and TRITON_INTERPRET is not set"):
        ensemble_kernels.compact_kv_(torch.zeros(4, 1), torch.tensor([1]), 0, backend="triton")


def test_tensors_elsewhere_are_refused(monkeypatch):
    monkeypatch.setattr(_triton, "missing", lambda operator: None)
    with pytest.raises(ValueError, match=r"'triton' .* needs tensors on .* type cuda, got cpu"):
        ensemble_kernels.compact_kv_(torch.zeros(4, 1), torch.tensor([1]), 0, backend="triton")


@pytest.mark.slow
@pytest.mark.skipif(_triton.import_error() is not None, reason=str(_triton.import_error()))
def test_the_kernels_run_in_the_interpreter():
    """A part of the lane, which CI runs in full."""
    done = python(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/kernels"),
        *("-k", "interpreted or bad_input or padding"),
        TRITON_INTERPRET="1",
    )
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout
