"""Compiles every Triton kernel in every specialisation that ships, on each target, and prints what
it needs and what is wrong with it: `python -m tests.aot.table [--write]`; --write puts the tables
into docs/triton-kernels.md. The exit status is 1 if anything is wrong."""

import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import triton

from .compiled import TARGETS, compiled, faults, launches
from .ptx import signs

DOCUMENT = Path(__file__).parents[2] / "docs" / "triton-kernels.md"
_launches = cache(launches)


def row(index):
    """The module of the kernel, its line of the table, and what is wrong."""
    launch, cells, wrong = _launches()[index], [], []
    for target in TARGETS:
        resources = compiled(launch, target)
        numbers = resources.registers, resources.local, resources.shared, signs(resources.code)
        cells.append(" ".join(map(str, numbers)).strip())
        wrong += [f"{target}: {fault}" for fault in faults(launch, resources)]
    module = launch.kernel.fn.__module__.split(".")[1]
    return module, f"| `{launch.name}` | {launch.label} | {' | '.join(cells)} |", wrong


def write(tables):
    """Each table into its place, which a comment marks, and the version of Triton."""
    text = DOCUMENT.read_text()
    header = [f"| kernel | specialisation | {' | '.join(TARGETS)} |", "|---" * 6 + "|"]
    for name, lines in tables.items():
        table = "\n".join([*header, *lines])
        text, places = re.subn(
            rf"(<!-- table: {name} -->\n).*?(<!-- end -->)",
            rf"\g<1>\n{table}\n\n\g<2>",
            text,
            flags=re.DOTALL,
        )
        assert places == 1, f"{DOCUMENT} has {places} places for the table of {name}"
    DOCUMENT.write_text(re.sub(r"By Triton [\d.]+", f"By Triton {triton.__version__}", text))


def main() -> int:
    tables, faulty = {}, []
    # Spawned: a fork of a process that has threads may hang.
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for module, line, wrong in pool.map(row, range(len(_launches()))):
            print(line, *wrong, flush=True)
            tables.setdefault(module, []).append(line)
            faulty += wrong
    if "--write" in sys.argv[1:]:
        write(tables)
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
