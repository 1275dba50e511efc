"""Every test of an operator runs on each back end of this machine, or, where TRITON_INTERPRET=1 is
set, on the Triton kernels alone."""

import os
from functools import partial

import pytest

from ensemble_kernels import _dispatch, _native, _triton
from ensemble_kernels.kv_compaction import api as kv_compaction
from ensemble_kernels.token_statistics import api as token_statistics
from ensemble_kernels.vocabulary_mixture import api as vocabulary_mixture

from . import emulated
from .guards import guarded
from .lane import INTERPRETED

# These call the registered operators, whose dispatcher picks the back end, or none at all.
ONCE = {
    "test_operators",
    "test_operator_ranges",
    "test_vocabulary_alignment",
    "test_native",
    "test_mixture_kernel",
    "test_attention_states",
    "test_cuda",
    "test_cuda_contents",
    "test_cuda_device",
    "test_triton",
    "test_triton_interpreted",
}
# What the interpreter's lane runs.
LANE = {
    "test_kv_compaction",
    "test_mixture_contracts",
    "test_mixture_kernel",
    "test_segment_attention",
    "test_segment_attention_bits",
    "test_segment_attention_contracts",
    "test_segment_attention_sizes",
    "test_sharpen_prefixes",
    "test_token_statistics",
    "test_top_k_union",
    "test_triton_interpreted",
    "test_triton_vocabulary",
    "test_vocabulary_mixture",
}
INTERPRETED_ONLY = {
    "test_segment_attention_bits",
    "test_triton_interpreted",
    "test_triton_vocabulary",
}
# Without a compiler there is only the reference; in CI that is a failure.
NATIVE = _native.MISSING is None or bool(os.environ.get("CI"))
BACKENDS = ("cpu", "reference") if NATIVE else ("reference",)
# The CUDA kernels, on the CPU.
EMULATED = {
    "test_kv_compaction": kv_compaction,
    "test_token_statistics": token_statistics,
    "test_vocabulary_mixture": vocabulary_mixture,
    "test_sharpen_prefixes": vocabulary_mixture,
    "test_top_k_union": vocabulary_mixture,
    "test_mixture_contracts": vocabulary_mixture,
}


# The emulator compares three runs of each call, so that many show nothing more, and take minutes.
# It copies its arguments, which what autograd has computed does not allow.
NOT_EMULATED = {
    "test_bitwise_equal_over_many_runs",
    "test_a_backward_pass_through_moved_slots_is_refused",
}


if INTERPRETED:
    from . import interpreter

    BACKENDS = ("triton",)
    interpreter.mend()


def pytest_ignore_collect(collection_path):
    if collection_path.suffix == ".py" and collection_path.name.startswith("test_"):
        in_lane = collection_path.stem in LANE
        return not in_lane if INTERPRETED else collection_path.stem in INTERPRETED_ONLY
    return None


def pytest_collection_modifyitems(items):
    if INTERPRETED:  # numpy warns of what a GPU computes in silence, log2(0) and 0 · inf
        for item in items:
            item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))


def pytest_generate_tests(metafunc):
    module = metafunc.module.__name__.rpartition(".")[2]
    if module not in ONCE:
        emulates = emulated.AVAILABLE and not INTERPRETED and module in EMULATED
        emulates = emulates and metafunc.function.__name__ not in NOT_EMULATED
        backends = (*BACKENDS, "emulated") if emulates else BACKENDS
        metafunc.parametrize("default_backend", backends, indirect=True)


def select_emulated(operator, backend, default):
    if backend is None and _dispatch.default_backend == "emulated" and emulated.has(operator):
        return partial(emulated.call, operator)
    return _dispatch.select(operator, backend, default)


# Of its own accord: a name that is only added to those of a test is never set up.
@pytest.fixture(autouse=True)
def default_backend(request, monkeypatch):
    """The back end of calls that name none."""
    if hasattr(request, "param") and request.param == "emulated":
        # On a GPU contents are checked on demand only.
        monkeypatch.setenv("ENSEMBLE_KERNELS_DEBUG", "1")
        module = EMULATED[request.module.__name__.rpartition(".")[2]]
        monkeypatch.setattr(module, "select", select_emulated)
        monkeypatch.setattr(_dispatch, "default_backend", "emulated")
    elif hasattr(request, "param"):
        # What the dispatcher picks: test_native shows that this is the kernel.
        named = None if request.param == "cpu" else request.param
        monkeypatch.setattr(_dispatch, "default_backend", named)
    if INTERPRETED:
        monkeypatch.setattr(_triton, "run", guarded(_triton.run))


@pytest.fixture
def dispatched(default_backend, monkeypatch):
    """For what only the registered operators can do: compiled graphs and meta tensors."""
    monkeypatch.setattr(_dispatch, "default_backend", None)
