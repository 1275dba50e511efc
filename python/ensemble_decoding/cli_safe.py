"""The command `safe`. As in `cli`, only the standard library is imported here."""

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


def add_commands(commands: Any) -> None:
    summary = "one model drafts, all are mixed where it is needed and safe (SAFE)"
    safe = add_decoder(commands, "safe", summary, "the drafter first, then the verifiers")
    add = partial(safe.add_argument, default=argparse.SUPPRESS)
    add("--draft-length", type=int, metavar="N", help="tokens that are drafted at once (5)")
    add(
        "--when",
        dest="ensemble_when",
        help="safe (the default), always, or never: the drafter alone",
    )
    add("--alignment", help="auto (the default), union, top_k or identity")
    add("--k", type=int, metavar="K", help="with top_k: likeliest tokens of each model (10)")
    add_weights(safe)
    add("--sharpen", help="prefix (the default), geometric or none")
    add_run(safe)
    safe.set_defaults(run=_safe)


def _safe(options: argparse.Namespace) -> int:
    request, generation = checked_request(options)
    names = ("draft_length", "ensemble_when", "alignment", "k", "weights", "sharpen")
    method_options = {name: vars(options)[name] for name in names if name in options}
    if method_options.get("sharpen") == "none":
        method_options["sharpen"] = None
    # Before the models are loaded, which takes a while.
    from .options import GenerationOptions
    from .safe import SAFE
    from .safe_options import check_method

    check_method(verifiers=len(options.model) - 1, **method_options)
    GenerationOptions.resolve(generation)
    check_devices(options)
    drafter, *verifiers = [load_member(name, options) for name in options.model]
    method = SAFE(drafter, verifiers, **method_options)
    return print_run(method.stream(**request, **generation), options)
