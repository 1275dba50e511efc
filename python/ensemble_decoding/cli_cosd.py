"""The command `cosd`. As in `cli`, only the standard library is imported here."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from .cli_common import (
    add_decoder,
    add_run,
    check_devices,
    checked_request,
    load_member,
    read_file,
)
from .cli_output import print_run


def add_commands(commands: Any) -> None:
    summary = "one model drafts, others correct the tokens it doubts (CoSD)"
    cosd = add_decoder(commands, "cosd", summary, "the drafter first, then the assistants")
    add = partial(cosd.add_argument, default=argparse.SUPPRESS)
    add("--draft-length", type=int, metavar="N", help="tokens that are drafted at once (5)")
    add("--alpha", type=float, metavar="P", help="a token with less is doubted (0.5)")
    add(
        "--beta", type=float, metavar="X", help="the assistant must have more than X times it (0.5)"
    )
    add("--tree", type=Path, metavar="FILE", help="what train-tree wrote, instead of the rule")
    add("--select", help="most_confident (the default), or cascade")
    add("--unsure-below", type=float, metavar="P", help="with cascade: ask the next one (0.5)")
    add("--max-entropy", type=float, metavar="NATS", help="no replacement above")
    add("--second-look", action="store_true", help="keep a replacement only if the text gains")
    add(
        "--calibration",
        type=Path,
        action="append",
        metavar="FILE",
        help="what calibrate wrote, once for each model",
    )
    add_run(cosd)
    cosd.set_defaults(run=_cosd)


def _cosd(options: argparse.Namespace) -> int:
    request, generation = checked_request(options)
    names = ("draft_length", "alpha", "beta", "select", "unsure_below", "max_entropy")
    method_options = {
        name: vars(options)[name] for name in (*names, "second_look") if name in options
    }
    # Before the models are loaded, which takes a while.
    from .calibration import Calibration
    from .cosd import CoSD
    from .cosd_options import check_method
    from .options import GenerationOptions
    from .tree import Tree

    if "tree" in options:
        method_options["tree"] = read_file("--tree", options.tree, Tree.load)
    if "calibration" in options:
        read = [read_file("--calibration", path, Calibration.load) for path in options.calibration]
        method_options["temperatures"] = [one.temperature for one in read]
    check_method(assistants=len(options.model) - 1, **method_options)
    GenerationOptions.resolve(generation)
    check_devices(options)
    draft, *assistants = [load_member(name, options) for name in options.model]
    return print_run(
        CoSD(draft, assistants, **method_options).stream(**request, **generation), options
    )
