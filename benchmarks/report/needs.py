"""What a report needs besides the native library, looked at before anything is measured."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from benchmarks.end_to_end.models import NAMES
from benchmarks.report.history_cells import decoding_cells, operator_cells
from ensemble_decoding.demo_models import model_path
from ensemble_decoding.package_index import FetchError


class MissingError(Exception):
    """Says in one line what is missing or wrong."""


def check_packages(*, operators: bool) -> None:
    needed = {"matplotlib": "matplotlib", "pytest_benchmark": "pytest-benchmark"}
    for module, package in list(needed.items())[: 2 if operators else 1]:
        if find_spec(module) is None:
            raise MissingError(f"{package} is not installed: pip install {package}")


def check_models(third: str | None) -> None:
    """That the models are there; of the third its configuration and tokenizer."""
    try:
        for name in NAMES:
            model_path(name)
    except FetchError as error:
        raise MissingError(str(error)) from error
    if third is None:
        return
    try:
        AutoConfig.from_pretrained(third)
        AutoTokenizer.from_pretrained(third)
    except Exception as error:  # transformers has many for what is no model
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise MissingError(f"--third: {third} is no model: {lines[0]}") from error


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MissingError(
            f"--output: no folder can be made of {path}: {error.strerror}"
        ) from error


def read_earlier(path: Path) -> dict[str, Any]:
    """The report in a file, with all in it that is compared."""
    try:
        report: dict[str, Any] = json.loads(path.read_text())
        operator_cells(report)
        decoding_cells(report)
        if "size" in report and report["machine"]["processor"]:
            return report
    except OSError as error:
        raise MissingError(f"--against: {path} cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError):
        pass  # no JSON, or JSON of something else
    raise MissingError(f"--against: {path} is not a report.json of benchmarks.report")
