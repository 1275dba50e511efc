import pytest


@pytest.fixture(autouse=True, scope="module")
def cache_of_its_own(tmp_path_factory):
    """Nothing that a test computes is kept in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.getbasetemp() / "cache"
        patch.setenv("ENSEMBLE_KERNELS_CACHE", str(folder))
        yield
