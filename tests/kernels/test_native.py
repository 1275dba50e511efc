"""The native library: that it is the one of this tree, and that its kernels run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ensemble_kernels
from ensemble_kernels import _native

from .test_operators import REGISTERED, sample

if _native.MISSING is not None and not os.environ.get("CI"):
    pytest.skip(_native.MISSING, allow_module_level=True)

NATIVE = torch.ops.ensemble_kernels_native
ISAS = ("portable", "avx2", "avx512", "avx512_bf16")
OF_THIS_MACHINE = ISAS[: ISAS.index(NATIVE.cpu_isa()) + 1]


def in_a_process(program, **environment):
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_the_library_of_this_tree_is_loaded():
    tree = Path(__file__).parents[2] / "ensemble_kernels"
    assert Path(ensemble_kernels.__file__).parent == tree
    assert _native.MISSING is None
    assert str(tree / "libensemble_kernels.so") in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("name", REGISTERED)
def test_the_operator_on_the_cpu_is_the_native_kernel(name):
    assert ensemble_kernels.backends()[name]["cpu"] is None
    operator, args, kwargs = sample(name, 0)
    before = NATIVE.calls(name)
    operator(*args, **kwargs)
    assert NATIVE.calls(name) == before + 1


def test_a_named_back_end_is_the_one_that_runs():
    logits, ids = torch.randn(2, 5), torch.tensor([1, 2])
    before = NATIVE.calls("token_statistics")
    ensemble_kernels.token_statistics(logits, ids, backend="reference")
    assert NATIVE.calls("token_statistics") == before
    ensemble_kernels.token_statistics(logits, ids, backend="cpu")
    assert NATIVE.calls("token_statistics") == before + 1
    with pytest.raises(ValueError, match=r"backend='cpu' .* needs tensors on .* cpu, got meta"):
        ensemble_kernels.token_statistics(logits.to("meta"), ids.to("meta"), backend="cpu")


def test_the_environment_names_the_default_back_end():
    program = """
import torch, ensemble_kernels
ensemble_kernels.token_statistics(torch.randn(2, 5), torch.tensor([1, 2]))
print(torch.ops.ensemble_kernels_native.calls("token_statistics"))
"""
    assert in_a_process(program, ENSEMBLE_KERNELS_BACKEND="reference").stdout == "0\n"
    assert in_a_process(program, ENSEMBLE_KERNELS_BACKEND="").stdout == "1\n"


@pytest.mark.parametrize("isa", OF_THIS_MACHINE)
def test_an_instruction_set_can_be_forced(isa):
    program = "import torch, ensemble_kernels; print(torch.ops.ensemble_kernels_native.cpu_isa())"
    assert in_a_process(program, ENSEMBLE_KERNELS_CPU_ISA=isa).stdout == f"{isa}\n"


def test_an_unknown_instruction_set_falls_back_with_its_reason():
    program = "import ensemble_kernels; print(ensemble_kernels.backends()['compact_kv_']['cpu'])"
    done = in_a_process(program, ENSEMBLE_KERNELS_CPU_ISA="mmx")
    assert "ENSEMBLE_KERNELS_CPU_ISA must be one that this machine has" in done.stdout
    assert "got 'mmx'" in done.stdout
