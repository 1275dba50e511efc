"""The command line, `ensemble-decode`. Only the standard library is imported here; what a command
needs is loaded when it runs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .cli_output import READER_LEFT, fail, print_run, print_what_there_is

if TYPE_CHECKING:
    from .member import Member

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
_EXTRAS = {
    "decoding": ("transformers", "tokenizers", "rich", "gguf", "accelerate", "safetensors"),
    "plot": ("matplotlib",),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; 0 if it went well, 2 on bad input, 1 if decoding failed, 130 on Ctrl-C, 141
    if the reader of its output left."""
    options = _parser().parse_args(arguments)
    print_what_there_is()
    try:
        return options.run(options)
    except ModuleNotFoundError as error:
        module = (error.name or "").split(".")[0]
        for extra, modules in _EXTRAS.items():
            if module in modules:
                package = f"ensemble-kernels[{extra}]"
                return fail(f"{module} is not installed: pip install '{package}' brings it")
        raise
    except BrokenPipeError:
        return READER_LEFT
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        return fail(error)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        sys.exit(fail(message))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ensemble-decode", description="Decode with several language models at once."
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    _add_specem(commands)
    plot = commands.add_parser("plot", help="draw the weights and winners of a trace")
    plot.add_argument("trace", type=Path, help="what specem --trace wrote")
    plot.add_argument("-o", "--output", type=Path, required=True, help="a .png, .svg or .pdf")
    plot.set_defaults(run=_plot)
    demo = commands.add_parser("demo", help="two small real models answer together, round by round")
    demo.add_argument("--prompt", help="another prompt than the demo's own")
    demo.add_argument("--max-new-tokens", type=int, default=50, metavar="N")
    demo.set_defaults(run=_demo)
    models = commands.add_parser("models", help="the small real models of the demo and the tests")
    actions = models.add_subparsers(required=True, metavar="action")
    fetch = actions.add_parser("fetch", help="download, check and convert them (once)")
    fetch.set_defaults(run=_fetch_models)
    return parser


def _add_specem(commands: Any) -> None:
    specem = commands.add_parser(
        "specem",
        help="draft, verify and commit segment by segment (SpecEM)",
        description="The prompt comes from --prompt, --messages or standard input.",
    )
    add = specem.add_argument
    add(
        "--model",
        action="append",
        required=True,
        help="hub id, folder, GGUF file, or the name of a demo model; once for each member",
    )
    add("--prompt", help="the prompt as text")
    add("--messages", type=Path, metavar="FILE", help="a JSON list of {role, content} objects")
    add("--verifier", action="append", default=[], help="a further model that only judges")
    add("--segment-length", type=int, default=10, metavar="L", help="tokens that each model drafts")
    add("--segment-boundary", default="character", help="character, or word: drop partial words")
    add("--learning-rate", type=float, default=1.0, metavar="R", help="0 keeps the weights equal")
    add(
        "--feedback",
        default="wins",
        choices=("wins", "score", "none"),
        help="what moves the weights",
    )
    add("--score", default="logprob", help="logprob, or logit as in the released code")
    add("--exit-threshold", type=float, metavar="X", help="a member under X/K leaves the run")
    _add_generation(specem)
    add("--dtype", default="auto", help="dtype of the weights, for example bfloat16")
    add("--device", help="where the models are put, for example cuda:0")
    add("--stream", action="store_true", help="print the text as it is committed")
    add("--trace", type=Path, metavar="FILE", help="write the trace of all rounds as JSON")
    add("--json", action="store_true", help="print the whole result as JSON")
    specem.set_defaults(run=_specem)


def _add_generation(command: argparse.ArgumentParser) -> None:
    """Options under Hugging Face's names; what is not given is not handed on."""
    group = command.add_argument_group("generation")
    add = partial(group.add_argument, default=argparse.SUPPRESS)
    add("--max-new-tokens", type=int, metavar="N", help="in the first model's tokens (256)")
    add("--do-sample", action="store_true", help="draft by chance instead of greedily")
    for name, kind in (("temperature", float), ("top-k", int), ("top-p", float), ("min-p", float)):
        add(f"--{name}", type=kind, metavar="X", help="with --do-sample")
    add("--repetition-penalty", type=float, metavar="X")
    add("--seed", type=int, metavar="N", help="the same seed gives the same text")
    add("--stop", dest="stop_strings", action="append", metavar="TEXT", help="end behind this text")


def _specem(options: argparse.Namespace) -> int:
    if len(options.model) < 2:
        raise ValueError(f"--model must be given at least twice, got {len(options.model)}")
    request = _read_request(options)
    if options.trace is not None and (
        options.trace.is_dir() or not options.trace.absolute().parent.is_dir()
    ):
        raise ValueError(f"--trace must be a file in a folder that exists, got {options.trace}")
    generation = {name: vars(options)[name] for name in _GENERATION if name in options}
    method_options = {
        "segment_length": options.segment_length,
        "segment_boundary": options.segment_boundary,
        "learning_rate": options.learning_rate,
        "feedback": None if options.feedback == "none" else options.feedback,
        "score": options.score,
        "exit_threshold": options.exit_threshold,
    }
    # Before the models are loaded, which takes a while.
    from .generation import check_request
    from .options import GenerationOptions
    from .specem import SpecEM
    from .specem_options import check_method

    check_request(**request)
    check_method(**method_options)
    GenerationOptions.resolve(generation)
    options.dtype, options.device = _dtype(options.dtype), _device(options.device)
    method = SpecEM(
        [_load_member(name, options) for name in options.model],
        verifiers=[_load_member(name, options) for name in options.verifier],
        **method_options,
    )
    return print_run(method.stream(**request, **generation), options)


def _read_request(options: argparse.Namespace) -> dict[str, Any]:
    """The prompt or the messages, from whichever of the three places has them."""
    if options.prompt is not None and options.messages is not None:
        raise ValueError("--prompt and --messages exclude each other, got both")
    if options.messages is not None:
        try:
            messages = json.loads(options.messages.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(
                f"--messages must be a file that can be read, got {options.messages}: "
                f"{error.strerror}"
            ) from error
        except ValueError as error:
            raise ValueError(f"--messages must be JSON, got {options.messages}: {error}") from error
        return {"messages": messages}
    if options.prompt is not None:
        return {"prompt": options.prompt}
    if sys.stdin is None or sys.stdin.isatty():
        raise ValueError("a prompt must come from --prompt, --messages or standard input, got none")
    try:
        prompt = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"standard input must be text, got bytes that are none: {error}"
        ) from error
    # The newline that ends the last line, as `echo` writes it, is not the prompt's.
    return {"prompt": prompt.removesuffix("\n")}


def _load_member(name: str, options: argparse.Namespace) -> Member:
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


def _plot(options: argparse.Namespace) -> int:
    from .plot import save_plot

    save_plot(options.trace, options.output)
    return 0


def _demo(options: argparse.Namespace) -> int:
    from .demo import run_demo

    run_demo(options.prompt, max_new_tokens=options.max_new_tokens)
    return 0


def _fetch_models(options: argparse.Namespace) -> int:
    from .demo_models import fetch

    fetch(report=partial(print, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
