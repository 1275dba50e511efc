"""What a report needs, without a run."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.report import needs

ROOT = Path(__file__).parents[1]


def test_it_starts_without_matplotlib():
    program = "import sys; sys.modules['matplotlib'] = None; import benchmarks.report.__main__"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_models_are_looked_for_first(monkeypatch, tmp_path):
    monkeypatch.setenv("ENSEMBLE_KERNELS_CACHE", str(tmp_path))
    with pytest.raises(needs.MissingError, match="ensemble-decode models fetch"):
        needs.check_models(None)
    monkeypatch.setattr(needs, "model_path", lambda name: tmp_path)
    with pytest.raises(needs.MissingError, match=f"--third: {tmp_path} is no model: "):
        needs.check_models(str(tmp_path))
