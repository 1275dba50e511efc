"""The Triton kernels, compiled for GPUs that are not here: nothing is spilled, and the instructions
that each is for are there."""

from dataclasses import replace

import pytest

pytest.importorskip("triton")

from .compiled import CHECKS, TARGETS, compiled, faults, launches

# Each needs a second or so; `python -m tests.aot.table` compiles all that ship.
LAUNCHES = [launch for launch in launches() if launch.in_tests]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: f"{launch.name}, {launch.label}")
def test_nothing_is_spilled_and_the_instructions_are_there(launch, target):
    assert faults(launch, compiled(launch, target)) == []


def test_every_kernel_is_compiled():
    assert {launch.name for launch in LAUNCHES} == set(CHECKS)


def test_a_spill_is_a_fault():
    """The gate itself: with too few registers the mixture of the most models spills."""
    mixtures = [launch for launch in LAUNCHES if launch.name == "mix_chunks_kernel"]
    largest = max(mixtures, key=lambda launch: launch.arguments["MODELS"])
    starved = replace(largest, options=largest.options | {"maxnreg": 24})
    assert faults(starved, compiled(starved, "sm_80"))
