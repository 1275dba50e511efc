"""The operators on one GPU, checked and timed: python -m benchmarks.gpu_report [--json FILE]

Checks every back end against float64, runs compute-sanitizer where it is there, measures what the
GPU does at most, times operators and peers, and counts what a round of SpecEM launches, all within
six minutes. `--dry-run` takes the same way on the CPU, through Triton's interpreter and the
emulator of the CUDA kernels, on tiny shapes. Exit status: 0, or 1 after a failure, or 2 where it
cannot run: without a GPU, say.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from functools import partial

from benchmarks.output_file import output_file


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        os.environ.pop("TRITON_INTERPRET", None)  # it would time the interpreter
    # Nothing of torch or Triton before this: Triton reads the variable when it is imported.
    import torch

    if options.dry_run:
        try:
            from tests.kernels.interpreter import mend
        except ImportError as error:
            print(f"gpu_report: --dry-run needs Triton: {error}", file=sys.stderr)
            return 2
        torch.set_num_threads(1)
        mend()
        emulate_cuda()
        # Of lanes that a mask discards.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"triton\.runtime")
    elif not torch.cuda.is_available():
        print("gpu_report: PyTorch finds no GPU here; --dry-run needs none", file=sys.stderr)
        return 2
    from benchmarks.gpu.session import Session

    return Session(options.json, options.dry_run, options.only).run()


def emulate_cuda() -> None:
    """The CUDA kernels run on the CPU too, by the emulator of the tests, where it can be built."""
    from ensemble_kernels import _cuda, _dispatch
    from tests.kernels import emulated

    if not emulated.AVAILABLE:
        return
    _cuda.DEVICE_TYPES = ("cuda", "cpu")
    served = [operator for operator in OPERATORS if _cuda.FASTEST[operator] == "cuda"]
    _cuda.missing = lambda operator: None if operator in served else "it is Triton's"
    for operator in served:
        _dispatch.register_cuda(operator, partial(emulated.call, operator))


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    from_summary = (__doc__ or "").split("\n\n", 1)[1]
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_report", description=from_summary)
    parser.add_argument(
        "--json", type=output_file, metavar="FILE", help="where to write all figures"
    )
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, for its code's sake")
    parser.add_argument("--only", metavar="OPERATOR", choices=OPERATORS, help="no other operator")
    return parser.parse_args(arguments)


# As the catalogue has them, which cannot be imported before the environment is set.
OPERATORS = (
    "token_statistics",
    "mix_distributions",
    "compact_kv_",
    "top_k_union",
    "sharpen_prefixes",
    "segment_mean",
    "segment_attention",
)

if __name__ == "__main__":
    sys.exit(main())
