"""The command `specem`. As in `cli`, only the standard library is imported here."""

from __future__ import annotations

import argparse
from typing import Any

from .cli_common import add_decoder, add_run, check_devices, checked_request, load_member
from .cli_output import print_run


def add_commands(commands: Any) -> None:
    specem = add_decoder(commands, "specem", "draft, verify and commit segment by segment (SpecEM)")
    add = specem.add_argument
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
    add_run(specem)
    specem.set_defaults(run=_specem)


def _specem(options: argparse.Namespace) -> int:
    request, generation = checked_request(options, models=1)
    method_options = {
        "segment_length": options.segment_length,
        "segment_boundary": options.segment_boundary,
        "learning_rate": options.learning_rate,
        "feedback": None if options.feedback == "none" else options.feedback,
        "score": options.score,
        "exit_threshold": options.exit_threshold,
    }
    # Before the models are loaded, which takes a while.
    from .options import GenerationOptions
    from .specem import SpecEM
    from .specem_options import check_method

    check_method(**method_options)
    GenerationOptions.resolve(generation)
    check_devices(options)
    method = SpecEM(
        [load_member(name, options) for name in options.model],
        verifiers=[load_member(name, options) for name in options.verifier],
        **method_options,
    )
    return print_run(method.stream(**request, **generation), options)
