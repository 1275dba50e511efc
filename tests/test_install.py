"""Installing: with the native library, without a compiler, without it by choice, and from an sdist.

Nothing is downloaded: each new environment borrows the packages of the one that the tests run in.
"""

import json
import os
import shutil
import site
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
SOURCES = ("ensemble_kernels", "python", "csrc")
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
LIBRARY, RECORD = "ensemble_kernels/libensemble_kernels.so", "ensemble_kernels/_native_build.json"
USES_OPERATORS = """
import json, torch, ensemble_kernels as ek
from ensemble_kernels import _native
ids, offsets = torch.tensor([1, 2]), torch.tensor([0, 2, 3], dtype=torch.int32)
ek.token_statistics(torch.randn(2, 5), ids)
ek.segment_mean(torch.randn(3), offsets)
ek.compact_kv_(torch.randn(1, 1, 6, 2), torch.tensor([3, 5]), 1)
names = ("token_statistics", "segment_mean", "compact_kv_")
native = _native.MISSING is None
calls = {n: torch.ops.ensemble_kernels_native.calls(n) for n in names} if native else {}
available = ek.backends()["token_statistics"]
print(json.dumps({"missing": _native.MISSING, "calls": calls, "at": ek.__file__,
                  "cpu": available["cpu"], "cuda": available["cuda"],
                  "cuda_missing": _native.cuda_missing()}))
"""
NVCC = bool(shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin"))
pytestmark = pytest.mark.slow


def environment(**changes):
    """That of this process without what would change a build or hide an installed package."""
    ours = ("PYTHONPATH", "CXX", "CXXFLAGS", "LDFLAGS", "CUDA_HOME", "CUDA_PATH")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ours and not name.startswith("ENSEMBLE_KERNELS")
    }
    # One architecture, since what is asked here is the same of all.
    return {**kept, "TORCH_CUDA_ARCH_LIST": "9.0", **changes}


def copy_of_the_tree(folder):
    """Without builds: what lies in a tree must not get into the package of another."""
    for name in SOURCES:
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "_native_build.json")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    return folder


class Venv:
    """A new environment whose packages are links to those of this one, ours left out."""

    def __init__(self, folder):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.bin = folder / "bin"
        self.packages = next((folder / "lib").glob("python*")) / "site-packages"
        for origin in dict.fromkeys(
            [str(Path(torch.__file__).parents[1]), *site.getsitepackages()]
        ):
            for entry in Path(origin).iterdir():
                link = self.packages / entry.name
                if "ensemble" not in entry.name and entry.suffix != ".pth" and not link.exists():
                    link.symlink_to(entry)

    def pip(self, *arguments, **changes):
        path = os.pathsep.join([str(self.bin), os.environ["PATH"]])
        return subprocess.run(
            [self.bin / "python", "-m", "pip", "--disable-pip-version-check", *arguments],
            env=environment(**{"PATH": path, **changes}),
            capture_output=True,
            text=True,
        )

    def install(self, *arguments, **changes):
        done = self.pip("install", "--no-deps", "--no-build-isolation", *arguments, **changes)
        assert done.returncode == 0, done.stdout + done.stderr

    def use_each_operator(self):
        done = subprocess.run(
            [self.bin / "python", "-c", USES_OPERATORS],
            env=environment(),
            cwd=self.bin,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def venv(tmp_path):
    return Venv(tmp_path / "venv")


@pytest.fixture
def tree(tmp_path):
    """In a folder with a space, which no step may trip over."""
    return copy_of_the_tree(tmp_path / "a tree")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Of an sdist, whose files must suffice."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = copy_of_the_tree(folder / "tree")
    (tree / LIBRARY).write_text("not to be packed")
    (tree / RECORD).write_text("not to be packed")
    program = "import setuptools.build_meta as b; print(b.build_sdist('..'))"
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=tree,
        env=environment(),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
        archive.extractall(folder, filter="data")
    assert not [name for name in names if name.endswith((LIBRARY, RECORD))]
    return build_wheel(folder / sdist.name.removesuffix(".tar.gz"), folder)


def build_wheel(tree, folder, **changes):
    done = pip_wheel(tree, folder, **changes)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def pip_wheel(tree, folder, **changes):
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    return subprocess.run(
        [*pip, "--wheel-dir", folder, tree],
        env=environment(**changes),
        capture_output=True,
        text=True,
    )


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def without_compiler(tmp_path):
    """A path with the programs of this environment alone, of which none is a compiler."""
    empty = tmp_path / "no programs"
    empty.mkdir()
    return str(empty)


def test_the_wheel_of_an_sdist_holds_the_library_and_serves_every_python(wheel, venv):
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    files = contents(wheel)
    assert files[LIBRARY].startswith(b"\x7fELF") or sys.platform == "darwin"
    expected = None if NVCC else "no nvcc was there (nvcc)"
    assert json.loads(files[RECORD]) == {"built": True, "reason": None, "cuda": expected}
    venv.install(str(wheel))
    used = venv.use_each_operator()
    assert used["missing"] is None
    assert used["calls"] == {"token_statistics": 1, "segment_mean": 1, "compact_kv_": 1}
    assert (used["cuda_missing"] is None) == NVCC
    assert Path(used["at"]).is_relative_to(venv.packages)


def test_an_editable_install_follows_what_it_is_built_with(tree, venv, tmp_path):
    venv.install("-e", str(tree), CXXFLAGS="-O0 -DUNUSED='a $b'")
    used = venv.use_each_operator()
    assert used["missing"] is None
    assert used["calls"]["token_statistics"] == 1
    assert Path(used["at"]).is_relative_to(tree)
    # No library of the first install may stay behind the second.
    venv.install("-e", str(tree), ENSEMBLE_KERNELS_BUILD="none")
    assert not (tree / LIBRARY).exists()
    used = venv.use_each_operator()
    assert "installed with ENSEMBLE_KERNELS_BUILD=none" in used["missing"]
    assert used["cpu"] == used["missing"]


def test_without_a_compiler_the_references_serve_and_the_reason_is_kept(tree, venv, tmp_path):
    venv.install(str(tree), PATH=without_compiler(tmp_path))
    used = venv.use_each_operator()
    assert "no C++ compiler was there (c++)" in used["missing"]
    assert used["cpu"] == used["missing"]


def test_without_nvcc_the_cpu_kernels_are_built_and_the_reason_is_kept(tree, venv, tmp_path):
    venv.install(str(tree), CXXFLAGS="-O0", CUDA_HOME=str(tmp_path))
    used = venv.use_each_operator()
    assert used["missing"] is None
    assert used["calls"]["compact_kv_"] == 1
    assert f"built without CUDA kernels, no nvcc was there ({tmp_path})" in used["cuda"]


def test_an_nvcc_that_fails_leaves_the_cpu_kernels(tree, venv, tmp_path):
    (tmp_path / "bin").mkdir()
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\necho '#$ LIBRARIES='\necho error: unsupported >&2\nexit 1\n")
    nvcc.chmod(0o755)
    venv.install(str(tree), CXXFLAGS="-O0", CUDA_HOME=str(tmp_path))
    used = venv.use_each_operator()
    assert used["missing"] is None
    assert "the compiler failed: error: unsupported" in used["cuda"]


def test_without_torch_the_reason_is_kept(tree, venv, tmp_path):
    torch_folder = (venv.packages / "torch").resolve()
    (venv.packages / "torch").unlink()
    venv.install(str(tree))
    (venv.packages / "torch").symlink_to(torch_folder)
    used = venv.use_each_operator()
    assert "no torch of version 2.11 or later was there to build against" in used["missing"]


def test_a_build_of_none_is_a_pure_package(tree, tmp_path):
    wheel = build_wheel(tree, tmp_path, ENSEMBLE_KERNELS_BUILD="none")
    assert wheel.name.endswith("-py3-none-any.whl")
    files = contents(wheel)
    assert LIBRARY not in files
    assert json.loads(files[RECORD])["reason"] == "installed with ENSEMBLE_KERNELS_BUILD=none"


@pytest.mark.parametrize("choice", ["cpu", "cuda"])
def test_a_build_that_must_be_fails_with_its_reason(tree, tmp_path, choice):
    if choice == "cpu":
        changes = {"PATH": without_compiler(tmp_path)}
        reason = "no C++ compiler was there (c++)"
    else:
        changes, reason = {"CUDA_HOME": str(tmp_path)}, f"no nvcc was there ({tmp_path})"
    done = pip_wheel(tree, tmp_path, ENSEMBLE_KERNELS_BUILD=choice, **changes)
    assert done.returncode != 0
    lines = (done.stdout + done.stderr).splitlines()
    told = [line.strip() for line in lines if f"ENSEMBLE_KERNELS_BUILD={choice}" in line]
    assert told == [f"ENSEMBLE_KERNELS_BUILD={choice}: {reason}"]
    assert not any("Traceback" in line for line in lines)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ENSEMBLE_KERNELS_BUILD", "gpu", "must be auto, cpu, cuda or none, got 'gpu'"),
        ("MAX_JOBS", "many", "must be a whole number from 1 on, got 'many'"),
        pytest.param(
            "TORCH_CUDA_ARCH_LIST",
            "Hopper",
            "must be as 8.0;9.0;10.0+PTX, got 'Hopper'",
            marks=pytest.mark.skipif(not NVCC, reason="needs nvcc at install time"),
        ),
    ],
)
def test_a_word_that_is_unknown_fails_with_one_line(tree, tmp_path, name, value, message):
    done = pip_wheel(tree, tmp_path, **{name: value})
    assert done.returncode != 0
    lines = (done.stdout + done.stderr).splitlines()
    assert [line.strip() for line in lines if name in line] == [f"{name} {message}"]


def test_without_ninja_the_compiler_is_run_all_the_same(tree, venv, tmp_path):
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))))
    venv.install(
        str(tree),
        ENSEMBLE_KERNELS_BUILD="cpu",
        CXX=f"'{compiler}' -pipe",
        CXXFLAGS="-O0",
        PATH=path_without(tmp_path, "ninja"),
    )
    assert not list(tree.rglob("build.ninja"))
    assert venv.use_each_operator()["missing"] is None


def path_without(tmp_path, program):
    """The path of this process, each folder as links to all of its programs but one."""
    links = tmp_path / f"without {program}"
    links.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for entry in Path(folder).iterdir() if Path(folder).is_dir() else ():
            link = links / entry.name
            if entry.name != program and not link.is_symlink():
                link.symlink_to(entry)
    return str(links)
