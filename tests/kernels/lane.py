"""The lane of Triton's interpreter: a process that sets TRITON_INTERPRET=1 before any import runs
the same tests on the Triton kernels, on the CPU, with fewer and smaller cases: an operation of a
kernel costs some 30 us there, a launch 1 ms."""

import os

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def examples(count):
    """Of hypothesis."""
    return max(count // 8, 5) if INTERPRETED else count


def few(usual, interpreted):
    """Sizes to test with."""
    return interpreted if INTERPRETED else usual
