"""Every Triton kernel compiles for every GPU that it ships for, without spilling a register."""

import os
from dataclasses import replace

import pytest

from .compiled import CHECKS, TARGETS, compiled, faults, launches

# One will do for an everyday run: compiling for all takes minutes where Triton's cache is cold.
CHOSEN = TARGETS if os.environ.get("CI") else ("sm_90",)
LAUNCHES = launches()


@pytest.mark.parametrize("target", CHOSEN)
@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: f"{launch.name}, {launch.label}")
def test_compiles_without_spills(launch, target):
    resources = compiled(launch, target)
    assert resources.registers > 0
    assert not faults(launch, resources)


def test_every_kernel_with_checks_is_launched():
    assert {launch.name for launch in LAUNCHES} == set(CHECKS)


def test_a_spill_is_a_fault():
    """The gate itself: with too few registers the mixture of the most models spills."""
    mixtures = [launch for launch in LAUNCHES if launch.name == "mix_chunks_kernel"]
    largest = max(mixtures, key=lambda launch: launch.arguments["MODELS"])
    starved = replace(largest, options=largest.options | {"maxnreg": 24})
    assert faults(starved, compiled(starved, "sm_80"))
