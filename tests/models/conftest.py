import os
from pathlib import Path

import pytest

from ensemble_decoding.demo_models import MODELS, FetchError, model_path


@pytest.fixture(scope="session")
def real_models() -> dict[str, Path]:
    """The folders of the two small real models, by name."""
    try:
        return {name: model_path(name) for name in MODELS}
    except FetchError as error:
        # A laptop without the models may run the rest; in CI they must be there.
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
