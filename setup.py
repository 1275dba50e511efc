"""The native build: one shared library of operators, loaded by `ensemble_kernels._native`.

It uses LibTorch's stable ABI, so that one library serves all torch versions from 2.11 on, and knows
nothing of Python. torch is neither imported nor a build requirement: its headers are looked up in
the environment that is installed into. ENSEMBLE_KERNELS_BUILD says what to build:

    auto (or unset)  the best that is possible; what was skipped, and why, is kept in the package
    cpu              the CPU kernels, or the install fails
    cuda             not there yet
    none             nothing: a pure Python package that works through the references and Triton
"""

import json
import os
import shutil
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
LIBRARY = "libensemble_kernels.so"
SOURCES = [*sorted((ROOT / "csrc" / "cpu").glob("*.cpp")), ROOT / "csrc" / "registration.cpp"]
OLDEST_TORCH = "0x020b000000000000"  # 2.11
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
# GCC 12 sees uninitialised values in its own intrinsics, and warns of vectors as arguments although
# all of those functions are inlined.
FLAGS += [
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
    "-Wno-psabi",
    "-Wno-unknown-warning-option",
]


class Unbuildable(Exception):
    """Why there is no native build."""


def wanted() -> str:
    choice = os.environ.get("ENSEMBLE_KERNELS_BUILD", "") or "auto"
    if choice not in ("auto", "cpu", "cuda", "none"):
        sys.exit(f"ENSEMBLE_KERNELS_BUILD must be auto, cpu, cuda or none, got {choice!r}")
    if choice == "cuda":
        sys.exit("ENSEMBLE_KERNELS_BUILD=cuda: there are no CUDA kernels yet")
    return choice


def torch_folder() -> Path:
    """Where the environment that is installed into keeps torch, also under build isolation."""
    folders = [sysconfig.get_path("platlib"), *site.getsitepackages(), *sys.path]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    # A virtual environment that sees the packages of the Python that it was made with.
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    folders.append(sysconfig.get_path("platlib", vars=base))
    for folder in folders:
        torch = Path(folder) / "torch"
        if (torch / "include" / "torch" / "csrc" / "stable" / "tensor.h").exists():
            return torch
    raise Unbuildable("no torch of version 2.11 or later was there to build against")


def compiler() -> list[str]:
    named = os.environ.get("CXX")
    command = named.split() if named else ["c++"]
    for candidate in [command] if named else [command, ["g++"], ["clang++"]]:
        if shutil.which(candidate[0]):
            return candidate
    raise Unbuildable(f"no C++ compiler was there ({command[0]})")


def write_ninja(folder: Path, library: Path) -> None:
    torch, cxx = torch_folder(), " ".join(compiler())
    flags = [*FLAGS, f"-DTORCH_TARGET_VERSION={OLDEST_TORCH}", f"-I{ROOT / 'csrc' / 'include'}"]
    flags += [f"-isystem {torch / 'include'}", os.environ.get("CXXFLAGS", "")]
    link = f"-shared -L{torch / 'lib'} -ltorch_cpu {os.environ.get('LDFLAGS', '')}"
    lines = [
        "rule compile",
        f"  command = {cxx} {' '.join(flags)} -MD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule link",
        f"  command = {cxx} $in {link} -o $out",
    ]
    objects = [f"{source.stem}.o" for source in SOURCES]
    for name, source in zip(objects, SOURCES, strict=True):
        lines.append(f"build {name}: compile {source}")
    lines.append(f"build {library}: link {' '.join(objects)}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "build.ninja").write_text("\n".join(lines) + "\n")


def build(folder: Path, library: Path) -> None:
    """Raises Unbuildable with the reason in one line."""
    if sys.platform == "win32":
        raise Unbuildable("the native build does not support Windows")
    ninja = shutil.which("ninja", path=os.pathsep.join([bin_folder(), os.environ["PATH"]]))
    if ninja is None:
        raise Unbuildable("no ninja was there (pip install ninja)")
    library.parent.mkdir(parents=True, exist_ok=True)
    write_ninja(folder, library.resolve())
    jobs = os.environ.get("MAX_JOBS")
    done = subprocess.run(
        [ninja, "-C", str(folder), *(["-j", jobs] if jobs else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(done.stdout)
    if done.returncode:
        errors = [line for line in done.stdout.splitlines() if "error" in line.lower()]
        raise Unbuildable(f"the compiler failed: {(errors or ['see the output above'])[0]}")


def bin_folder() -> str:
    try:
        from ninja import BIN_DIR
    except ImportError:
        return sysconfig.get_path("scripts")
    return BIN_DIR


class BuildNative(build_ext):
    def run(self) -> None:
        choice = wanted()
        package = "ensemble_kernels" if self.inplace else f"{self.build_lib}/ensemble_kernels"
        package = ROOT / package if self.inplace else Path(package)
        library, reason = package / LIBRARY, None
        try:
            build(Path(self.build_temp).resolve() / "native", library)
        except Unbuildable as error:
            if choice == "cpu":
                sys.exit(f"ENSEMBLE_KERNELS_BUILD=cpu: {error}")
            library.unlink(missing_ok=True)
            reason = str(error)
            print(f"ensemble-kernels: without native kernels: {reason}", file=sys.stderr)
        record = {"built": reason is None, "reason": reason}
        (package / "_native_build.json").write_text(json.dumps(record) + "\n")

    def get_outputs(self) -> list[str]:
        package = Path(self.build_lib) / "ensemble_kernels"
        found = [package / LIBRARY, package / "_native_build.json"]
        return [str(path) for path in found if path.exists()]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class PlatformWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        """The library knows nothing of Python, so that one wheel serves all its versions."""
        python, abi, platform = super().get_tag()
        return (python, abi, platform) if self.root_is_pure else ("py3", "none", platform)


native = wanted() != "none"
if not native:
    # What an earlier build left in the tree would be packed, or loaded by an editable install.
    (ROOT / "ensemble_kernels" / LIBRARY).unlink(missing_ok=True)
    record = {"built": False, "reason": "installed with ENSEMBLE_KERNELS_BUILD=none"}
    (ROOT / "ensemble_kernels" / "_native_build.json").write_text(json.dumps(record) + "\n")

setup(
    ext_modules=[Extension("ensemble_kernels._native_library", [])] if native else [],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel},
)
