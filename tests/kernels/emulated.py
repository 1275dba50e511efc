"""The CUDA operators on the CPU, as a back end of the tests.

Each call is run with the threads in several orders, whose results must be equal bit by bit: one
that depends on the order lacks a barrier.
"""

import copy
import itertools
import platform
import sys
from functools import cache

import torch

from tests.emulator import build

AVAILABLE = sys.platform == "linux" and platform.machine() == "x86_64"
_orders = itertools.count(2)  # the seeds of shuffles


@cache
def _operators():
    library = torch.library.Library("ensemble_kernels_emulated", "DEF")
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, operator = name.partition("::")
        if namespace == "ensemble_kernels_cuda":
            schema = getattr(torch.ops.ensemble_kernels_cuda, operator).default._schema
            library.define(str(schema).partition("::")[2])
    torch.ops.load_library(build.library())
    return library, torch.ops.ensemble_kernels_emulated


def has(operator):
    _operators()
    name = f"ensemble_kernels_emulated::{operator}"
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")


def call(operator, *args, **kwargs):
    """Calls an operator by its name, in three orders."""
    _, operators = _operators()
    run = getattr(operators, operator).default
    outcomes = []
    # With their strides, and once for each run: an operator may write to them.
    copies = args, copy.deepcopy(args), copy.deepcopy(args)
    for given, order in zip(copies, (0, 1, next(_orders)), strict=True):
        operators.set_order(order)
        outcomes.append((run(*given, **kwargs), given))
    operators.set_order(0)
    for outcome in outcomes[1:]:
        torch.testing.assert_close(outcome, outcomes[0], rtol=0, atol=0, equal_nan=True)
    return outcomes[0][0]
