"""What each CUDA kernel takes of a multiprocessor: registers, shared memory, spills, as ptxas says.

`python -m benchmarks.cuda_resources` compiles csrc/cuda for each architecture and writes the table
of docs/cuda-kernels.md anew. It needs nvcc and c++filt, and no GPU.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "cuda-kernels.md"
BEGIN, END = "<!-- resources: begin -->\n", "<!-- resources: end -->\n"
ARCHITECTURES = (80, 90, 100)
_KERNEL = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for 'sm_(?P<architecture>\d+)'.*?"
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


class Resources(NamedTuple):
    kernel: str
    architecture: int
    registers: int
    shared: int
    spills: int


def compile_with_ptxas_output(source: Path) -> str:
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    codes = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in ARCHITECTURES]
    includes = [f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'csrc' / 'include'}"]
    command = [nvcc, "-std=c++17", "-O3", "-Xptxas=-v", *codes, *includes]
    done = subprocess.run(
        [*command, "-c", str(source), "-o", "/dev/null"], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout + done.stderr


def parse(output: str) -> list[Resources]:
    found = list(_KERNEL.finditer(output))
    names = "\n".join(match["name"] for match in found)
    done = subprocess.run(["c++filt"], input=names, capture_output=True, text=True, check=True)
    result = []
    for match, name in zip(found, done.stdout.splitlines(), strict=True):
        shared = re.search(r"(\d+) bytes smem", match["rest"])
        kernel = re.search(r"cuda::(\w+)[<(]", name)
        assert kernel is not None, name
        result.append(
            Resources(
                kernel[1],
                int(match["architecture"]),
                int(match["registers"]),
                int(shared[1]) if shared else 0,
                int(match["stores"]) + int(match["loads"]),
            )
        )
    return result


def table(all_resources: dict[str, list[Resources]]) -> str:
    """A row for each kernel; the span is that of its dtypes."""
    titles = [f"registers, sm_{architecture}" for architecture in ARCHITECTURES]
    lines = [f"| source | kernel | {' | '.join(titles)} | shared memory, bytes | spills, bytes |"]
    lines.append("|---|---|" + "---|" * (len(titles) + 2))
    for source, resources in sorted(all_resources.items()):
        by_kernel = defaultdict(list)
        for one in resources:
            by_kernel[one.kernel].append(one)
        for kernel, ones in sorted(by_kernel.items()):
            cells = [
                span([one.registers for one in ones if one.architecture == architecture])
                for architecture in ARCHITECTURES
            ]
            cells += [span([one.shared for one in ones]), span([one.spills for one in ones])]
            lines.append(f"| `{source}` | `{kernel}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def span(values: list[int]) -> str:
    return str(min(values)) if min(values) == max(values) else f"{min(values)}-{max(values)}"


def main() -> None:
    sources = sorted((ROOT / "csrc" / "cuda").glob("*.cu"))
    with ThreadPoolExecutor(2) as pool:
        outputs = list(pool.map(compile_with_ptxas_output, sources))
    resources = {
        source.name: parsed
        for source, output in zip(sources, outputs, strict=True)
        if (parsed := parse(output))
    }
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + table(resources) + END + after)


if __name__ == "__main__":
    main()
