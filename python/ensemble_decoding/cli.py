"""The command line, `ensemble-decode`. Only the standard library is imported here; what a command
needs is loaded when it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from . import cli_cosd, cli_safe, cli_specem, cli_token_ensembles, cli_training
from .cli_output import READER_LEFT, fail, print_what_there_is

_EXTRAS = {
    "decoding": ("transformers", "tokenizers", "rich", "gguf", "accelerate", "safetensors"),
    "plot": ("matplotlib",),
    "tree": ("sklearn",),
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
    for module in (cli_specem, cli_cosd, cli_safe, cli_token_ensembles, cli_training):
        module.add_commands(commands)
    plot = commands.add_parser("plot", help="draw the weights and winners of a trace")
    plot.add_argument("trace", type=Path, help="what --trace wrote")
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
