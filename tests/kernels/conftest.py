"""Every test of an operator runs on each back end of this machine."""

import pytest

from ensemble_kernels import _dispatch

# These call the registered operators, whose dispatcher picks the back end, or none at all.
ONCE = {"test_operators", "test_vocabulary_alignment", "test_native"}
BACKENDS = ("cpu", "reference")


def pytest_generate_tests(metafunc):
    if metafunc.module.__name__.rpartition(".")[2] not in ONCE:
        metafunc.fixturenames.append("default_backend")
        metafunc.parametrize("default_backend", BACKENDS, indirect=True)


@pytest.fixture
def default_backend(request, monkeypatch):
    """The back end of calls that name none."""
    monkeypatch.setattr(_dispatch, "default_backend", request.param)
