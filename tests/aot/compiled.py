"""Compiles the Triton kernels without a GPU, and reads what they need.

What a launcher launches is recorded, and compiled as Triton would for those arguments: with its
assumptions of 16 bytes for pointers and of divisibility by 16 for integers.
"""

import importlib
import pkgutil
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from ensemble_kernels import _triton

from . import calls as calls_package

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
_POINTERS = {
    torch.bool: "*i1",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
}
_OPTIONS = ("num_warps", "num_stages", "maxnreg")
ANY_STRIDES = ", any strides"  # ends the label of a call whose rows are not contiguous
_ALWAYS = {"enable_fp_fusion": True}  # as `_triton.launch` says
MODULES = [
    importlib.import_module(module.name)
    for module in pkgutil.iter_modules(calls_package.__path__, calls_package.__name__ + ".")
]
IN_TESTS = {label for module in MODULES for label in module.IN_TESTS}
CHECKS = {kernel: checks for module in MODULES for kernel, checks in module.CHECKS.items()}


@dataclass(frozen=True)
class Launch:
    kernel: object
    label: str
    arguments: dict
    options: dict

    @property
    def name(self):
        return self.kernel.__name__

    @property
    def in_tests(self):
        return self.label in IN_TESTS


@dataclass(frozen=True)
class Resources:
    registers: int
    """Of a thread."""
    local: int
    """Bytes of local memory of a thread: there registers are spilled to."""
    shared: int
    """Bytes of shared memory of a block."""
    code: str


def launches():
    """Every kernel in every specialisation that ships, each once."""
    found = []
    for module in MODULES:
        for operator, labelled in module.calls().items():
            for label, (args, kwargs) in labelled.items():
                found += _launches_of(operator, label, args, kwargs)
    distinct = {}
    for launch in found:
        key = launch.name, repr(_specialised(launch)), repr(launch.options)
        distinct.setdefault(key, launch)
    return list(distinct.values())


def _launches_of(operator, label, args, kwargs):
    found = []

    def record(kernel, grid):
        def launch(*values, **named):
            options = {name: named.pop(name) for name in _OPTIONS if name in named}
            arguments = dict(zip(kernel.arg_names, values, strict=False)) | named
            assert set(arguments) == set(kernel.arg_names)
            found.append(Launch(kernel, label, arguments, options))

        return launch

    with patch.object(_triton, "launch", record):
        _triton._launcher(operator)(*args, **kwargs)
    assert found, f"{operator} launched nothing for {label}"
    return found


def _specialised(launch):
    """Types, constants and attributes of the arguments, as Triton's launch derives them: those of
    the members of a tuple stand at their places in it."""
    signature, constants, attributes = {}, {}, {}

    def specialise(value, path, plain):
        if isinstance(value, tuple):  # Triton specialises what is in it whatever it is told
            return tuple(specialise(item, (*path, i), False) for i, item in enumerate(value))
        if value is None or (type(value) is int and value == 1 and not plain):
            constants[path] = value
            return "constexpr"
        if isinstance(value, torch.Tensor):
            kind, divisible = _POINTERS[value.dtype], True
        elif isinstance(value, float):
            kind, divisible = "fp32", False
        else:
            kind = "i32" if -(2**31) <= value < 2**31 else "i64"
            divisible = value % 16 == 0 and not plain
        if divisible:
            attributes[path] = [["tt.divisibility", 16]]
        return kind

    for index, parameter in enumerate(launch.kernel.params):
        value = launch.arguments[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name], constants[(index,)] = "constexpr", value
        else:
            plain = parameter.do_not_specialize
            signature[parameter.name] = specialise(value, (index,), plain)
    return signature, constants, attributes


def compiled(launch, target):
    signature, constants, attributes = _specialised(launch)
    source = ASTSource(launch.kernel, signature, constexprs=constants, attrs=attributes)
    binary = triton.compile(source, target=TARGETS[target], options=launch.options | _ALWAYS)
    shared = binary.metadata.shared
    if "cubin" in binary.asm:
        return _nvidia(binary.asm, shared)
    return _amd(binary.asm["amdgcn"], shared)


def _nvidia(asm, shared):
    """What is spilled lies in local memory, which is a stack."""
    target = int(re.search(r"\.target sm_(\d+)", asm["ptx"])[1])
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "kernel.cubin")
        cubin.write_bytes(asm["cubin"])
        command = Path(get_ptxas(target).path).with_name("cuobjdump"), "-res-usage", cubin
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", usage)
    registers, stack, local = map(int, found.groups())
    return Resources(registers, stack + local, shared, asm["ptx"])


def _amd(code, shared):
    def count(name):
        return int(re.search(rf"\.{name}:\s*(\d+)", code)[1])

    # Scalars are spilled into lanes of vector registers.
    spilled = 4 * count("vgpr_spill_count")
    local = max(spilled, count("private_segment_fixed_size"))
    return Resources(count("vgpr_count"), local, shared, code)


def faults(launch, resources):
    """What is wrong with a compiled kernel."""
    found = [f"{resources.local} bytes of local memory"] if resources.local else []
    checks = () if launch.label.endswith(ANY_STRIDES) else CHECKS[launch.name]
    checked = (check(launch, resources.code) for check in checks)
    return found + [fault for fault in checked if fault]
