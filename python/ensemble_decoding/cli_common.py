"""What the commands that decode have in common: flags, the prompt, the members. As in `cli`, only
the standard library is imported here."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from .member import Member

_Read = TypeVar("_Read")

_GENERATION = (
    "max_new_tokens",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "seed",
    "stop_strings",
)


def add_decoder(
    commands: Any, name: str, summary: str, order: str = "once for each member"
) -> argparse.ArgumentParser:
    """A command that decodes, with the flags for its members and its prompt; `order` says which
    models are to be given."""
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description="The prompt comes from --prompt, --messages or standard input.",
    )
    add = command.add_argument
    add(
        "--model",
        action="append",
        required=True,
        help=f"hub id, folder, GGUF file, or the name of a demo model; {order}",
    )
    add("--prompt", help="the prompt as text")
    add("--messages", type=Path, metavar="FILE", help="a JSON list of {role, content} objects")
    return command


def add_weights(command: argparse.ArgumentParser) -> None:
    """The flag for the members' weights in a mixture."""
    command.add_argument(
        "--weight",
        dest="weights",
        type=float,
        action="append",
        metavar="W",
        help="once for each model (all equal)",
        default=argparse.SUPPRESS,
    )


def add_run(command: argparse.ArgumentParser) -> None:
    """The flags of a run: generation, devices, and what is printed."""
    _add_generation(command)
    add = command.add_argument
    add_devices(command)
    add("--stream", action="store_true", help="print the text as it is committed")
    add("--trace", type=Path, metavar="FILE", help="write the trace of all rounds as JSON")
    add("--json", action="store_true", help="print the whole result as JSON")


def add_devices(command: argparse.ArgumentParser) -> None:
    """Where the models are put, and how."""
    add = command.add_argument
    add("--dtype", default="auto", help="dtype of the weights, for example bfloat16")
    add("--device", help="where the models are put, for example cuda:0")


def _add_generation(command: argparse.ArgumentParser) -> None:
    """Options under Hugging Face's names; what is not given is not handed on."""
    group = command.add_argument_group("generation")
    add = partial(group.add_argument, default=argparse.SUPPRESS)
    add("--max-new-tokens", type=int, metavar="N", help="in the first model's tokens (256)")
    add("--do-sample", action="store_true", help="choose by chance instead of greedily")
    for name, kind in (("temperature", float), ("top-k", int), ("top-p", float), ("min-p", float)):
        add(f"--{name}", type=kind, metavar="X", help="with --do-sample")
    add("--repetition-penalty", type=float, metavar="X")
    add("--seed", type=int, metavar="N", help="the same seed gives the same text")
    add("--stop", dest="stop_strings", action="append", metavar="TEXT", help="end behind this text")


def checked_request(
    options: argparse.Namespace, *, models: int = 2
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The prompt or messages and the generation options that the flags give, checked before the
    models are loaded, which takes a while; `models` are to be given at least."""
    if len(options.model) < models:
        raise ValueError(f"--model must be given at least twice, got {len(options.model)}")
    request = _read_request(options)
    check_output("--trace", options.trace)
    generation = {name: vars(options)[name] for name in _GENERATION if name in options}
    from .request import check_request

    check_request(**request)
    return request, generation


def check_output(flag: str, path: Path | None) -> None:
    """That the file that a flag names can be written when all work is done."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ValueError(f"{flag} must be a file in a folder that exists, got {path}")


def check_devices(options: argparse.Namespace) -> None:
    """Turns `--dtype` and `--device` into what torch knows."""
    options.dtype, options.device = _dtype(options.dtype), _device(options.device)


def read_file(flag: str, path: Path, read: Callable[[Path], _Read]) -> _Read:
    """What `read` makes of the file that a flag names; errors name the flag."""
    try:
        return read(path)
    except OSError as error:
        raise ValueError(
            f"{flag} must be a file that can be read, got {path}: {error.strerror}"
        ) from error
    except ValueError as error:
        argument, _, rest = str(error).partition(" ")
        if argument not in ("path", flag.removeprefix("--")):
            raise
        raise ValueError(f"{flag} {rest}") from error


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"path must be JSON, got {path}: {error}") from error


def _read_request(options: argparse.Namespace) -> dict[str, Any]:
    """The prompt or the messages, from whichever of the three places has them."""
    if options.prompt is not None and options.messages is not None:
        raise ValueError("--prompt and --messages exclude each other, got both")
    if options.messages is not None:
        return {"messages": read_file("--messages", options.messages, _read_json)}
    if options.prompt is not None:
        return {"prompt": options.prompt}
    if sys.stdin is None or sys.stdin.isatty():
        raise ValueError("a prompt must come from --prompt, --messages or standard input, got none")
    try:
        prompt = sys.stdin.read()
        prompt.encode()  # fails where Python took what it could not decode for surrogates
    except UnicodeError as error:
        raise ValueError(
            f"standard input must be text, got bytes that are none: {error}"
        ) from error
    # The newline that ends the last line, as `echo` writes it, is not the prompt's.
    return {"prompt": prompt.removesuffix("\n")}


def load_member(name: str, options: argparse.Namespace) -> Member:
    from transformers.utils import logging

    from .demo_models import MODELS, model_path
    from .member import Member

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    path = model_path(name) if name in MODELS and not Path(name).exists() else name
    return Member.from_pretrained(
        path, dtype=options.dtype, device=options.device, name=Path(name).name
    )


def _dtype(name: str) -> Any:
    import torch

    dtype = getattr(torch, name, None)
    if name != "auto" and not isinstance(dtype, torch.dtype):
        raise ValueError(f"--dtype must be auto or the name of a torch dtype, got {name!r}")
    return dtype or name


def _device(name: str | None) -> str | None:
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # the latter from a torch without CUDA
        raise ValueError(
            f"--device must be a device that is here, got {name!r}: {error}"
        ) from error
    return name
