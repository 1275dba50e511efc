"""Builds the CUDA operators for the emulator: one library for torch, kept until a source changes.

EMULATOR_FLAGS adds options of the compiler, say those of a sanitizer.
"""

import fcntl
import hashlib
import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
CSRC, HERE = ROOT / "csrc", Path(__file__).parent
SOURCES = sorted(
    [
        *CSRC.glob("cuda/*.cu"),
        *(path for path in CSRC.glob("cuda/*.cpp") if path.name != "device.cpp"),
        *(path for path in CSRC.glob("*.cpp") if path.name != "registration.cpp"),
        *HERE.glob("operators/*.cpp"),
    ]
)
TORCH = Path(torch.__file__).parent
FLAGS = [
    *("-std=c++17", "-O2", "-g1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"),
    *("-fno-strict-aliasing", "-Wno-unknown-pragmas", "-Wno-maybe-uninitialized"),
    *(f"-I{HERE}", f"-I{CSRC}", f"-I{CSRC / 'include'}", "-isystem", str(TORCH / "include")),
    "-DTORCH_TARGET_VERSION=0x020b000000000000",
    *shlex.split(os.environ.get("EMULATOR_FLAGS", "")),
]


def library() -> Path:
    folder = ROOT / "build" / "emulator" / _key()
    path = folder / "libensemble_kernels_emulated.so"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:  # workers of pytest-xdist come at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        failure = folder / "failure"
        if failure.exists():  # the same for every test
            raise RuntimeError(failure.read_text())
        if not path.exists():
            try:
                _build(folder, path)
            except RuntimeError as error:
                failure.write_text(str(error))
                raise
    return path


def _key() -> str:
    inputs = [*CSRC.rglob("*"), *HERE.rglob("*")]
    read = hashlib.sha256(repr([*FLAGS, torch.__version__]).encode())
    for path in sorted(inputs):
        if path.suffix in (".cu", ".cuh", ".cpp", ".hpp", ".h"):
            read.update(str(path).encode() + path.read_bytes())
    return read.hexdigest()[:16]


def _build(folder: Path, path: Path) -> None:
    objects = [folder / ("-".join(source.parts[-2:]) + ".o") for source in SOURCES]
    commands = [
        ["c++", *FLAGS, "-x", "c++", "-c", str(source), "-o", str(output)]
        for source, output in zip(SOURCES, objects, strict=True)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_run, commands))
    finished = folder / "linked.so"
    link = [f"-L{TORCH / 'lib'}", "-ltorch_cpu", "-o", str(finished)]
    _run(["c++", *FLAGS, *map(str, objects), "-shared", *link])
    finished.rename(path)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}\n{done.stderr}")
