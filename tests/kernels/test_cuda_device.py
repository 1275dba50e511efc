"""The CUDA kernels on a GPU: what the emulator cannot show."""

import pytest
import torch
from torch.utils._pytree import tree_map_only

from ensemble_kernels import _cuda

from .test_operators import EACH, sample

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DEVICE = "cuda"
OF_KERNELS = [each for each in EACH if _cuda.FASTEST[each.values[0]] == "cuda"]


def on(device, values):
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), values)


def named(name):
    return getattr(torch.ops.ensemble_kernels_cuda, name).default


@pytest.mark.parametrize(("name", "index"), OF_KERNELS)
def test_equals_the_cpu(name, index):
    operator, args, kwargs = sample(name, index)
    device_args, device_kwargs = on(DEVICE, args), on(DEVICE, kwargs)
    expected = operator(*args, **kwargs)
    actual = named(name)(*device_args, **device_kwargs)
    tolerance = {"rtol": 2e-5, "atol": 2e-6, "equal_nan": True}
    torch.testing.assert_close(on("cpu", actual), expected, **tolerance)
    torch.testing.assert_close(on("cpu", device_args), args, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("name", "index"), OF_KERNELS)
def test_every_run_has_the_same_bits(name, index):
    _, args, kwargs = sample(name, index)
    runs = []
    for _ in range(20):
        given = on(DEVICE, args)
        runs.append((named(name)(*given, **on(DEVICE, kwargs)), given))
    for again in runs[1:]:
        torch.testing.assert_close(again, runs[0], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", sorted({each.values[0] for each in OF_KERNELS}))
def test_a_captured_graph_replays(name):
    """Which fails where a kernel runs on another stream, or where anything waits for the device."""
    _, args, kwargs = sample(name, 0)
    device_args, device_kwargs = on(DEVICE, args), on(DEVICE, kwargs)
    expected = named(name)(*on(DEVICE, args), **device_kwargs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        actual = named(name)(*device_args, **device_kwargs)
    graph.replay()
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
