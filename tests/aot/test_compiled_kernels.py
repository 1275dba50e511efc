"""The Triton kernels, compiled for GPUs that are not here: nothing is spilled, and the instructions
that each is for are there."""

import pytest

pytest.importorskip("triton")

from .compiled import TARGETS, compiled, faults, launches

# Each needs a second or so; `python -m tests.aot.table` compiles all that ship.
LAUNCHES = [launch for launch in launches() if launch.in_tests]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: f"{launch.name}, {launch.label}")
def test_nothing_is_spilled_and_the_instructions_are_there(launch, target):
    assert faults(launch, compiled(launch, target)) == []
