"""What the figures depend on besides the operators' code."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import installed_version, machine

ROOT = Path(__file__).parents[2]
PACKAGES = ("triton", "flash-attn", "transformers", "tokenizers")
QUERIED = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit")
# Of chips that PyTorch does not know the cache of: twice that is still beyond an H100's 50 MiB.
CACHE_WHERE_UNKNOWN = 64 << 20
TINY_CACHE = 1024


def facts(device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = {
        **machine(),
        **{package: installed_version(package) for package in PACKAGES},
        "platform": platform.platform(),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "commit": commit(),
        "backend_variable": os.environ.get("ENSEMBLE_KERNELS_BACKEND"),
        "gpu": None,
    }
    if device.type == "cuda":
        of_it = torch.cuda.get_device_properties(device)
        found["gpu"] = {
            "name": of_it.name,
            "capability": list(torch.cuda.get_device_capability(device)),
            "multiprocessors": of_it.multi_processor_count,
            "memory": of_it.total_memory,
            "l2_cache": l2_cache(device),
            "nvidia-smi": smi(),
        }
    return found


def l2_cache(device: torch.device) -> int:
    """Bytes; a dry run has a tiny one, so that its buffers stay few."""
    if device.type != "cuda":
        return TINY_CACHE
    of_it = torch.cuda.get_device_properties(device)
    return int(getattr(of_it, "L2_cache_size", 0)) or CACHE_WHERE_UNKNOWN


def smi() -> dict[str, str] | None:
    """The driver and the clocks, of the first GPU that this process may use."""
    program = shutil.which("nvidia-smi")
    if program is None:
        try:
            module = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
        except (OSError, IndexError):
            return None
        return {"driver_version": module}
    command = [program, f"--query-gpu={','.join(QUERIED)}", "--format=csv,noheader"]
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    answer = output([*command, "-i", first] if first else command)
    lines = (answer or "").splitlines()
    return dict(zip(QUERIED, lines[0].split(", "), strict=False)) if lines else None


def commit() -> str | None:
    """That of the working tree, with a + where files differ from it; None outside of git."""
    git = ["git", "-C", str(ROOT)]
    revision = output([*git, "rev-parse", "HEAD"])
    if revision is None:
        return None
    return revision + "+" * bool(output([*git, "status", "--porcelain", "--untracked-files=no"]))


def output(command: list[str], seconds: float = 20.0) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
