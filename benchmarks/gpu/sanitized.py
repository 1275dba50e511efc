"""What runs under compute-sanitizer: python -m benchmarks.gpu.sanitized [--dry-run]

Every operator with a kernel of ours, on small shapes, each kernel of it at least once; PyTorch's
own kernels, which make the inputs, come under the tool as well.
"""

from __future__ import annotations

import os
import sys


def main(dry_run: bool) -> int:
    if dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton, which reads it once
    from benchmarks.gpu.case import back_ends
    from benchmarks.gpu.catalogue import catalogue
    from benchmarks.gpu.clock import GpuClock, HostClock
    from ensemble_kernels import _triton

    clock = HostClock() if dry_run else GpuClock()
    for cases in catalogue(tiny=True):
        for back_end in back_ends(cases.operator):
            if back_end == "reference":
                continue
            for case in cases.checked:
                try:
                    case.call(back_end, case.buffers(clock.device, 1)[0])
                except _triton.Unsupported:
                    continue
                clock.synchronize()
            print(f"ran {cases.operator}, {back_end}")
    return 0


if __name__ == "__main__":
    sys.exit(main("--dry-run" in sys.argv[1:]))
