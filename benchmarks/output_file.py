"""Files that a benchmark writes in the end. Imports no torch, which `gpu_report` must not yet."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path


def output_file(path: str) -> str:
    """A flag's type: refuses what could not be written before anything is measured."""
    if Path(path).is_dir() or not Path(path).absolute().parent.is_dir():
        raise ArgumentTypeError(f"must be a file in a folder that exists, got {path}")
    return path
