"""The commands `unite`, `gac` and `average`. As in `cli`, only the standard library is imported
here."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from .cli_common import (
    add_decoder,
    add_run,
    add_weights,
    check_devices,
    checked_request,
    load_member,
)
from .cli_output import print_run

_METHODS = {
    "unite": ("top_k", "mix the models' likeliest tokens, token by token (UniTE)"),
    "gac": ("union", "mix the models' distributions over all tokens, token by token (GaC)"),
    "average": ("identity", "mix models that share a tokenizer, token by token"),
}


def add_commands(commands: Any) -> None:
    for name, (alignment, summary) in _METHODS.items():
        command = add_decoder(commands, name, summary)
        add = partial(command.add_argument, default=argparse.SUPPRESS)
        if alignment == "top_k":
            add("--k", type=int, metavar="K", help="likeliest tokens of each model (10)")
        add_weights(command)
        add("--mean", help="arithmetic (the default), or geometric")
        add(
            "--threshold",
            type=float,
            metavar="P",
            help="the first model alone chooses where its best token has at least this probability",
        )
        add_run(command)
        command.set_defaults(run=_run, alignment=alignment)


def _run(options: argparse.Namespace) -> int:
    request, generation = checked_request(options)
    names = ("alignment", "k", "weights", "mean", "threshold")
    method_options = {name: vars(options)[name] for name in names if name in options}
    from .options import GenerationOptions
    from .token_ensemble import TokenEnsemble
    from .token_ensemble_options import check_method

    check_method(members=len(options.model), **method_options)
    GenerationOptions.resolve(generation)
    check_devices(options)
    members = [load_member(name, options) for name in options.model]
    method = TokenEnsemble(members, **method_options)
    return print_run(method.stream(**request, **generation), options)
