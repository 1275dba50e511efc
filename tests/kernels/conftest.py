"""Every test of an operator runs on each back end of this machine, or, where TRITON_INTERPRET=1 is
set, on the Triton kernels alone."""

import os

import pytest

from ensemble_kernels import _dispatch, _native, _triton

from .guards import guarded
from .lane import INTERPRETED

# These call the registered operators, whose dispatcher picks the back end, or none at all.
ONCE = {
    "test_operators",
    "test_operator_ranges",
    "test_vocabulary_alignment",
    "test_native",
    "test_mixture_kernel",
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
    if metafunc.module.__name__.rpartition(".")[2] not in ONCE:
        metafunc.parametrize("default_backend", BACKENDS, indirect=True)


# Of its own accord: a name that is only added to those of a test is never set up.
@pytest.fixture(autouse=True)
def default_backend(request, monkeypatch):
    """The back end of calls that name none."""
    if hasattr(request, "param"):
        # What the dispatcher picks: test_native shows that this is the kernel.
        named = None if request.param == "cpu" else request.param
        monkeypatch.setattr(_dispatch, "default_backend", named)
    if INTERPRETED:
        monkeypatch.setattr(_triton, "run", guarded(_triton.run))


@pytest.fixture
def dispatched(default_backend, monkeypatch):
    """For what only the registered operators can do: compiled graphs and meta tensors."""
    monkeypatch.setattr(_dispatch, "default_backend", None)
