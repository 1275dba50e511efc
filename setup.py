"""The native build: one shared library of operators, loaded by `ensemble_kernels._native`.

It uses LibTorch's stable ABI, so that one library serves all torch versions from 2.11 on, and knows
nothing of Python. torch is neither imported nor a build requirement: its headers are looked up in
the environment that is installed into. ENSEMBLE_KERNELS_BUILD says what to build:

    auto (or unset)  the best that is possible; what was skipped, and why, is kept in the package
    cpu              the CPU kernels alone, or the install fails
    cuda             the CPU and the CUDA kernels, or the install fails
    none             nothing: a pure Python package that works through the references and Triton

The CUDA kernels need nvcc (CUDA_HOME, CUDA_PATH, the path or /usr/local/cuda) but neither a GPU nor
a torch with CUDA: nvcc compiles them to plain objects, which bring the CUDA runtime along.
TORCH_CUDA_ARCH_LIST says for which architectures.

CXX, CXXFLAGS, LDFLAGS and MAX_JOBS are heeded. Without ninja everything is compiled each time.
"""

import json
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
LIBRARY, RECORD = "libensemble_kernels.so", "_native_build.json"
CSRC = ROOT / "csrc"
SOURCES = sorted([*CSRC.glob("*.cpp"), *CSRC.glob("cpu/*.cpp")])
CUDA_SOURCES = sorted([*CSRC.glob("cuda/*.cu"), *CSRC.glob("cuda/*.cpp")])
ARCHITECTURES = "8.0;9.0;10.0+PTX"
OLDEST_TORCH = (2, 11)
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
# GCC 12 sees uninitialised values in its own intrinsics, and warns of vectors as arguments although
# all of those functions are inlined.
FLAGS += ["-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Wno-psabi"]
FLAGS += ["-Wno-unknown-warning-option"]  # for compilers that do not know these
FLAGS += [f"-DTORCH_TARGET_VERSION=0x{OLDEST_TORCH[0]:02x}{OLDEST_TORCH[1]:02x}000000000000"]


class Unbuildable(Exception):
    """Why there is no native build."""


def wanted() -> str:
    choice = os.environ.get("ENSEMBLE_KERNELS_BUILD", "") or "auto"
    if choice not in ("auto", "cpu", "cuda", "none"):
        sys.exit(f"ENSEMBLE_KERNELS_BUILD must be auto, cpu, cuda or none, got {choice!r}")
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
        headers = torch / "include" / "torch" / "csrc" / "stable" / "tensor.h"
        if headers.exists() and torch_version(torch) >= OLDEST_TORCH:
            return torch
    raise Unbuildable("no torch of version 2.11 or later was there to build against")


def torch_version(torch: Path) -> tuple[int, ...]:
    """Read, since importing torch takes seconds and may fail in an isolated build."""
    found = re.search(r"__version__ = '(\d+)\.(\d+)", (torch / "version.py").read_text())
    return tuple(map(int, found.groups())) if found else (0,)


def compiler() -> list[str]:
    named = shlex.split(os.environ.get("CXX", ""))
    for candidate in [named] if named else [["c++"], ["g++"], ["clang++"]]:
        if shutil.which(candidate[0]):
            return candidate
    raise Unbuildable(f"no C++ compiler was there ({named[0] if named else 'c++'})")


def nvcc() -> str:
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if named:
        found = shutil.which("nvcc", path=str(Path(named) / "bin"))
    else:
        found = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if not found:
        raise Unbuildable(f"no nvcc was there ({named or 'nvcc'})")
    return found


def code_options() -> list[str]:
    """What nvcc is told of the architectures in TORCH_CUDA_ARCH_LIST."""
    options = []
    for name in re.split(r"[; ]+", os.environ.get("TORCH_CUDA_ARCH_LIST") or ARCHITECTURES):
        found = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", name)
        if not found:
            sys.exit(f"TORCH_CUDA_ARCH_LIST must be as {ARCHITECTURES}, got {name!r}")
        number = "".join(found.group(1, 2, 3))
        kinds = ["sm", "compute"] if found.group(4) else ["sm"]
        options += [f"-gencode=arch=compute_{number},code={kind}_{number}" for kind in kinds]
    return options


def runtime_options(compiler: str) -> list[str]:
    """How the static CUDA runtime is linked; nvcc, which may be a script elsewhere, knows where."""
    said = run([compiler, "--dryrun", "-c", "nothing.cu", "-o", "nothing.o"]).stdout
    folders = re.search(r"LIBRARIES=(.*)", said)
    if not folders:
        raise Unbuildable("nvcc does not tell where its libraries are")
    hidden = "-Wl,--exclude-libs,libcudart_static.a"
    return [*shlex.split(folders.group(1)), "-lcudart_static", hidden, "-lrt", "-lpthread", "-ldl"]


class Step(NamedTuple):
    output: Path
    inputs: list[Path]
    command: list[str]


def steps(folder: Path, library: Path, with_cuda: bool) -> tuple[list[Step], Step]:
    """The compilations, and the link behind them."""
    cxx, torch = compiler(), torch_folder()
    includes = [f"-I{CSRC}", f"-I{CSRC / 'include'}"]
    flags = [*FLAGS, *includes, "-isystem", str(torch / "include")]
    flags += shlex.split(os.environ.get("CXXFLAGS", ""))
    commands, runtime = {".cpp": [*cxx, *flags]}, []
    if with_cuda:
        cuda, commands[".cpp"] = nvcc(), [*commands[".cpp"], "-DEK_WITH_CUDA"]
        host = [f"-ccbin={cxx[0]}", *(f"-Xcompiler={option}" for option in cxx[1:])]
        host.append("-Xcompiler=-fPIC,-fvisibility=hidden,-Wall")
        commands[".cu"] = [cuda, "-std=c++17", "-O3", *host, *code_options(), *includes]
        runtime = runtime_options(cuda)
    compilations = []
    # The CUDA sources take longest: first, so that none is left alone at the end.
    for source in [*(CUDA_SOURCES if with_cuda else []), *SOURCES]:
        output = folder / f"{'-'.join(source.relative_to(CSRC).parts)}.o"
        files = ["-MD", "-MF", f"{output}.d", "-c", str(source), "-o", str(output)]
        compilations.append(Step(output, [source], [*commands[source.suffix], *files]))
    objects = [step.output for step in compilations]
    # The package imports torch before the library. macOS must be told that its symbols come later;
    # elsewhere the linker checks them.
    macos = sys.platform == "darwin"
    link = ["-undefined", "dynamic_lookup"] if macos else [f"-L{torch / 'lib'}", "-ltorch_cpu"]
    link += [*runtime, *shlex.split(os.environ.get("LDFLAGS", "")), "-o", str(library)]
    return compilations, Step(library, objects, [*cxx, *map(str, objects), "-shared", *link])


def jobs() -> int:
    named = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
    if not named.isdecimal() or int(named) < 1:
        sys.exit(f"MAX_JOBS must be a whole number from 1 on, got {named!r}")
    return int(named)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )


def run_with_ninja(ninja: str, folder: Path, compilations: list[Step], link: Step) -> str:
    """Compiles only what has changed. Returns the output."""

    def path(file: Path) -> str:
        return re.sub(r"([$ :])", r"$\1", str(file))

    lines = ["rule compile", "  command = $run", "  depfile = $out.d", "  deps = gcc"]
    lines += ["rule link", "  command = $run"]
    for rule, step in [*(("compile", step) for step in compilations), ("link", link)]:
        lines.append(f"build {path(step.output)}: {rule} {' '.join(map(path, step.inputs))}")
        lines.append(f"  run = {shlex.join(step.command).replace('$', '$$')}")
    (folder / "build.ninja").write_text("\n".join(lines) + "\n")
    return checked(run([ninja, "-C", str(folder), "-j", str(jobs())]))


def run_without_ninja(compilations: list[Step], link: Step) -> str:
    with ThreadPoolExecutor(jobs()) as pool:
        done = list(pool.map(run, [step.command for step in compilations]))
    return "".join(map(checked, done)) + checked(run(link.command))


def checked(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode:
        print(done.stdout)
        errors = [line for line in done.stdout.splitlines() if "error" in line.lower()]
        raise Unbuildable(f"the compiler failed: {(errors or ['see the output above'])[0].strip()}")
    return done.stdout


def build(folder: Path, library: Path, with_cuda: bool) -> None:
    """Raises Unbuildable with the reason in one line."""
    if sys.platform == "win32":
        raise Unbuildable("the native build does not support Windows")
    compilations, link = steps(folder, library, with_cuda)
    folder.mkdir(parents=True, exist_ok=True)
    library.parent.mkdir(parents=True, exist_ok=True)
    # An environment that is not activated has its programs not on the path.
    programs = [sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]
    ninja = shutil.which("ninja", path=os.pathsep.join(programs))
    if ninja:
        print(run_with_ninja(ninja, folder, compilations, link))
    else:
        print(run_without_ninja(compilations, link))


def build_best(folder: Path, library: Path) -> str | None:
    """Builds what the choice allows. Returns why it is without CUDA, None where it is not."""
    if choice == "cpu":
        reason = "installed with ENSEMBLE_KERNELS_BUILD=cpu"
    else:
        try:
            build(folder, library, with_cuda=True)
            return None
        except Unbuildable as error:
            if choice == "cuda":
                raise
            reason = str(error)
    build(folder, library, with_cuda=False)
    return reason


def record(package: Path, reason: str | None, cuda: str | None) -> None:
    """Says for `_native.py` why there is no library, or why it is without CUDA; removes that of an
    earlier build."""
    package.mkdir(parents=True, exist_ok=True)
    if reason is not None:
        (package / LIBRARY).unlink(missing_ok=True)
    told = {"built": reason is None, "reason": reason, "cuda": cuda}
    (package / RECORD).write_text(json.dumps(told) + "\n")


def package_folder(build_lib: str, in_place: bool) -> Path:
    return (ROOT if in_place else Path(build_lib).resolve()) / "ensemble_kernels"


class BuildNative(build_ext):
    def run(self) -> None:
        package = package_folder(self.build_lib, self.inplace)
        try:
            cuda = build_best(Path(self.build_temp).resolve() / "native", package / LIBRARY)
        except Unbuildable as error:
            if choice != "auto":
                sys.exit(f"ENSEMBLE_KERNELS_BUILD={choice}: {error}")
            record(package, str(error), str(error))
            print(f"ensemble-kernels: without native kernels: {error}", file=sys.stderr)
        else:
            record(package, None, cuda)
            if cuda is not None:
                print(f"ensemble-kernels: without CUDA kernels: {cuda}", file=sys.stderr)

    def get_outputs(self) -> list[str]:
        names = [self.build_lib + f"/ensemble_kernels/{name}" for name in (LIBRARY, RECORD)]
        package = package_folder(self.build_lib, self.inplace)
        return [name for name in names if (package / Path(name).name).exists()]

    def get_output_mapping(self) -> dict[str, str]:
        """Where an editable install finds what a wheel would hold."""
        package = package_folder(self.build_lib, True)
        outputs = self.get_outputs() if self.inplace else []
        return {name: str(package / Path(name).name) for name in outputs}


class BuildPython(build_py):
    def run(self) -> None:
        super().run()
        if choice == "none":
            package = package_folder(self.build_lib, self.editable_mode)
            reason = "installed with ENSEMBLE_KERNELS_BUILD=none"
            record(package, reason, reason)


class PlatformWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        """The library knows nothing of Python, so that one wheel serves all its versions."""
        python, abi, platform = super().get_tag()
        return (python, abi, platform) if self.root_is_pure else ("py3", "none", platform)


choice = wanted()
native = Extension("ensemble_kernels._native_library", [])
setup(
    ext_modules=[] if choice == "none" else [native],
    cmdclass={"build_ext": BuildNative, "build_py": BuildPython, "bdist_wheel": PlatformWheel},
)
