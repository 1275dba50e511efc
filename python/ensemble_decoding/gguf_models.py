"""Models and tokenizers from GGUF files: transformers' own loader, mended where it falls short.

Three things are mended. The weights always come out dense: newer transformers keep them packed
where a kernel for that is installed, and packed weights can be neither saved nor cast. What marks
the model as quantized is removed, so that it can be saved. And the tokenizer gets the split that
the file asks for where transformers does not know it.
"""

from __future__ import annotations

import gc
import importlib.metadata
import io
import os
import shutil
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
import transformers
from packaging.version import Version
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from .checkpoint import check_complete

# What says where files come from; everything else in `hf_kwargs` is for the model alone.
_HUB_OPTIONS = (
    "cache_dir",
    "force_download",
    "local_files_only",
    "proxies",
    "revision",
    "subfolder",
    "token",
)

# Rebuilt by older ones, Gemma's tokenizer adds no BOS; before 5.18 it also cuts words differently,
# and SmolLM2's gets a wrong end-of-text token.
_OLDEST_TRANSFORMERS = Version("5.23")

# Verbosity, progress bars, stderr and the garbage collector belong to the whole process: of two
# loads at the same time, the second would take the first one's silence for the user's setting.
_one_load_at_a_time = threading.RLock()


def load_gguf(
    folder_or_repo: str | os.PathLike[str],
    gguf_file: str,
    *,
    dtype: torch.dtype | str,
    **hf_kwargs: Any,
) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer from a GGUF file.

    `folder_or_repo` is a local folder or a repository of the Hub and `gguf_file` the file's name in
    it. The weights are dense, in `dtype`; the model can be saved with `save_pretrained` and reloads
    from there with the same bits, in a small part of the time. `hf_kwargs` go to
    `AutoModelForCausalLM.from_pretrained`, those that say where files come from (`revision`,
    `token`, ...) to the tokenizer too.

    Raises ModuleNotFoundError where `gguf` or `accelerate` is missing, RuntimeError where
    transformers is older than 5.23, and ValueError, naming the file and the cause, for a file that
    is missing, broken, or of an architecture that transformers does not read.
    """
    require_gguf_packages()
    hub_options = {name: hf_kwargs.pop(name) for name in _HUB_OPTIONS if name in hf_kwargs}
    path = _resolve(folder_or_repo, gguf_file, hub_options)
    # From here on everything is local. The absolute path counts: transformers prefers a file of the
    # same name in the working directory to the one in the folder.
    source: dict[str, Any] = {"pretrained_model_name_or_path": path.parent, "gguf_file": str(path)}
    if "trust_remote_code" in hf_kwargs:
        source["trust_remote_code"] = hf_kwargs.pop("trust_remote_code")
    with _quiet():
        with _errors_named(path, "it is broken or not supported"):
            config = AutoConfig.from_pretrained(**source)
        with _errors_named(path, "its tokenizer cannot be rebuilt"):
            tokenizer = AutoTokenizer.from_pretrained(**source, config=config)
            _mend_pre_tokenizer(tokenizer, path)
        with _errors_named(path, "its weights cannot be loaded"):
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                **source,
                config=config,
                dtype=dtype,
                output_loading_info=True,
                **_dense_weights(),
                **hf_kwargs,
            )
            model, loading_info = loaded
            _check_complete(model, loading_info)
    _forget_quantization(model)
    return model, tokenizer


def convert_gguf(path: Path, folder: Path, *, dtype: torch.dtype) -> None:
    """Write the model and the tokenizer of the GGUF file `path` to `folder`, as safetensors.

    `AutoModelForCausalLM` and `AutoTokenizer` load the folder as they load any other. Raises what
    `load_gguf` raises.
    """
    model, tokenizer = load_gguf(path.parent, path.name, dtype=dtype)
    with _quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    for weights in folder.glob("*.safetensors"):
        # They come out readable by their owner alone, whatever the umask says.
        shutil.copymode(folder / "config.json", weights)


def require_gguf_packages() -> None:
    """Raise ModuleNotFoundError if a package for GGUF files is missing, RuntimeError if too old."""
    for package in ("gguf", "accelerate"):
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise ModuleNotFoundError(
                f"GGUF files need the package {package}: pip install 'ensemble-kernels[decoding]'",
                name=package,
            ) from None
    if Version(transformers.__version__) < _OLDEST_TRANSFORMERS:
        raise RuntimeError(
            f"GGUF files need transformers {_OLDEST_TRANSFORMERS} or later, "
            f"{transformers.__version__} is installed"
        )


def _resolve(
    folder_or_repo: str | os.PathLike[str], gguf_file: str, hub_options: dict[str, Any]
) -> Path:
    folder = Path(folder_or_repo)
    if folder.is_dir() or folder.is_absolute():
        path = folder / hub_options.get("subfolder", "") / gguf_file
        if not path.is_file():
            raise ValueError(f"the GGUF file {path} does not exist")
        return path.absolute()
    try:
        cached = cached_file(os.fspath(folder_or_repo), gguf_file, **hub_options)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"the GGUF file {gguf_file} cannot be had from the repository {folder_or_repo}: "
            f"{_first_line(error)}"
        ) from error
    assert cached is not None  # only where missing files are allowed
    return Path(cached).absolute()


@contextmanager
def _errors_named(path: Path, what: str) -> Iterator[None]:
    """Turn whatever a reader throws at a bad file into one ValueError that names the file."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise  # says nothing about the file
    except Exception as error:
        raise ValueError(f"the GGUF file {path}: {what}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' warnings and progress bars; what goes wrong is raised all the same.

    Standard error is held back as well, since one of the bars knows no switch. Garbage collection
    pauses: the reader makes millions of small objects, and walking over them again and again was
    a third of the time for a vocabulary of 262,144.
    """
    with _one_load_at_a_time, redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        verbosity = transformers_logging.get_verbosity()
        bars = transformers_logging.is_progress_bar_enabled()
        collecting = gc.isenabled()
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        gc.disable()
        try:
            yield
        finally:
            transformers_logging.set_verbosity(verbosity)
            if bars:
                transformers_logging.enable_progress_bar()
            if collecting:
                gc.enable()


def _dense_weights() -> dict[str, Any]:
    # Before transformers knew packed GGUF weights it always unpacked them, and had no such class.
    config_class = getattr(transformers, "GgufConfig", None)
    return {} if config_class is None else {"quantization_config": config_class(dequantize=True)}


def _check_complete(model: transformers.PreTrainedModel, loading_info: dict[str, Any]) -> None:
    check_complete(loading_info)
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            raise ValueError(f"the weight {name} stayed packed ({parameter.dtype})")


def _forget_quantization(model: transformers.PreTrainedModel) -> None:
    # The weights are dense now; as long as these are there, `save_pretrained` refuses.
    for holder, mark in ((model, "hf_quantizer"), (model.config, "quantization_config")):
        if hasattr(holder, mark):
            delattr(holder, mark)


def _mend_pre_tokenizer(tokenizer: transformers.PreTrainedTokenizerBase, path: Path) -> None:
    """Give the tokenizer the split into single digits if the file asks for "smollm".

    A plain ByteLevel is what transformers leaves where it does not know the file's split (as of
    5.24 it does not know this one); only then is it worth the seconds to read the file's word.
    """
    backend = tokenizer.backend_tokenizer
    if not isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel):
        return
    if _pre_tokenizer_name(path) == "smollm":
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )


def _pre_tokenizer_name(path: Path) -> str | None:
    from gguf import GGUFReader  # optional: its absence has its own message

    field = GGUFReader(path).get_field("tokenizer.ggml.pre")
    return None if field is None else field.contents()
