"""Prints what every Triton kernel needs on each target: `python -m tests.aot.table [--write]` puts
the table into docs/triton-kernels.md."""

import sys
from pathlib import Path

import triton

from .compiled import TARGETS, compiled, faults, launches

DOCUMENT = Path(__file__).parents[2] / "docs" / "triton-kernels.md"


def rows():
    for launch in launches():
        cells, wrong = [], []
        for target in TARGETS:
            resources = compiled(launch, target)
            cells.append(f"{resources.registers} / {resources.local} / {resources.shared}")
            wrong += [f"{target}: {fault}" for fault in faults(launch, resources)]
        yield f"| `{launch.name}` | {launch.label} | {' | '.join(cells)} |", wrong


def main() -> int:
    lines = [
        "# The Triton kernels, compiled",
        "",
        f"By Triton {triton.__version__}, without a GPU: registers of a thread / bytes of its",
        "local memory, where spilled registers go / bytes of shared memory of a block. Made by",
        "`python -m tests.aot.table --write`.",
        "",
        f"| kernel | specialisation | {' | '.join(TARGETS)} |",
        "|---" * (2 + len(TARGETS)) + "|",
    ]
    faulty = []
    for line, wrong in rows():
        print(line, *wrong, flush=True)
        lines.append(line)
        faulty += wrong
    if "--write" in sys.argv[1:]:
        DOCUMENT.write_text("\n".join(lines) + "\n")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
