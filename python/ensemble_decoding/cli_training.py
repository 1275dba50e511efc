"""The commands `train-tree`, `calibrate` and `sweep`. As in `cli`, only the standard library is
imported here."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cli_common import add_devices, check_devices, check_output, load_member, read_file

if TYPE_CHECKING:
    from .teacher_forcing import Text

_MODEL = "hub id, folder, GGUF file, or the name of a demo model"


def add_commands(commands: Any) -> None:
    _add_train_tree(commands)
    calibrate = commands.add_parser(
        "calibrate", help="fit a temperature with which a model's probabilities can be believed"
    )
    add = calibrate.add_argument
    add("--model", required=True, help=_MODEL)
    _add_texts(calibrate)
    add("-o", "--output", type=Path, required=True, help="the calibration, as JSON")
    add("--plot", type=Path, metavar="FILE", help="the reliability diagram: .png, .svg or .pdf")
    add_devices(calibrate)
    calibrate.set_defaults(run=_calibrate)
    sweep = commands.add_parser("sweep", help="what CoSD's rule would do to known texts")
    add = sweep.add_argument
    add("--model", action="append", required=True, help=f"{_MODEL}; the drafter, the assistant")
    _add_texts(sweep)
    add("--alpha", dest="alphas", type=float, action="append", help="once for each value")
    add("--beta", dest="betas", type=float, action="append", help="once for each value")
    add("--plot", type=Path, metavar="FILE", help="two heat maps: .png, .svg or .pdf")
    add_devices(sweep)
    sweep.set_defaults(run=_sweep)


def _add_train_tree(commands: Any) -> None:
    train = commands.add_parser("train-tree", help="learn from known texts when CoSD replaces")
    add = train.add_argument
    add("--model", action="append", required=True, help=f"{_MODEL}; the drafter, the assistant")
    _add_texts(train)
    add("-o", "--output", type=Path, required=True, help="the tree, as JSON")
    add("--examples", type=Path, metavar="FILE", help="keep the examples there; goes on with them")
    add("--held-out", type=float, default=0.2, metavar="SHARE", help="for the accuracy (0.2)")
    add("--max-depth", type=int, default=4, metavar="N", help="of the tree (4)")
    add("--seed", type=int, default=0, metavar="N")
    add_devices(train)
    train.set_defaults(run=_train_tree)


def _add_texts(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--texts",
        type=Path,
        required=True,
        metavar="FILE",
        help="one text a line; in .jsonl a text, or a prompt and its continuation",
    )


def _train_tree(options: argparse.Namespace) -> int:
    texts = _texts(options, models=2)
    import sklearn  # noqa: F401  before the models are read

    from .examples import collect_examples
    from .tree import check_training, fit_tree

    check_training(options.held_out, options.seed, options.max_depth)
    draft, assistant = (load_member(name, options) for name in options.model)
    examples = collect_examples(draft, assistant, texts, options.examples)
    tree = fit_tree(
        examples, held_out=options.held_out, seed=options.seed, max_depth=options.max_depth
    )
    tree.save(options.output)
    print(tree)
    tested = math.ceil(options.held_out * len(examples))
    accuracy = f", accuracy {tree.accuracy:.1%} on {tested} held out" if tested else ""
    print(f"{len(examples)} examples{accuracy}")
    return 0


def _calibrate(options: argparse.Namespace) -> int:
    options.model = [options.model]
    texts = _texts(options, models=1)
    from .calibration import calibrate

    calibration = calibrate(load_member(options.model[0], options), texts)
    calibration.save(options.output)
    if options.plot is not None:
        calibration.plot(options.plot)
    print(calibration)
    return 0


def _sweep(options: argparse.Namespace) -> int:
    texts = _texts(options, models=2)
    from .rule_sweep import ALPHAS, BETAS, check_grid, sweep

    grid = (options.alphas or ALPHAS, options.betas or BETAS)
    check_grid(*grid)
    draft, assistant = (load_member(name, options) for name in options.model)
    found = sweep(draft, assistant, texts, *grid)
    if options.plot is not None:
        found.plot(options.plot)
    print(found)
    return 0


def _texts(options: argparse.Namespace, models: int) -> list[Text]:
    """The texts, with everything checked that can be before the models are read."""
    if len(options.model) != models:
        raise ValueError(f"--model must be given {models} times, got {len(options.model)}")
    for name in ("output", "plot", "examples"):
        check_output(f"--{name}", getattr(options, name, None))
    if getattr(options, "plot", None) is not None:
        from .calibration_plot import check_path

        check_path(options.plot)
    from .teacher_forcing import read_texts

    texts = read_file("--texts", options.texts, read_texts)
    check_devices(options)
    return texts
