"""The Triton kernels of every operator that has some, through Triton's interpreter."""

import copy

import pytest
import torch

import ensemble_kernels
from ensemble_kernels import _triton, compact_kv_, segment_attention

from .guards import buffer_of, guarded, view_of
from .test_operators import SAMPLES, check_negated_views

OPERATORS = sorted(_triton.FOLDERS)
EACH = [
    pytest.param(name, index, id=f"{name}-{index}")
    for name in OPERATORS
    for index in range(len(SAMPLES[name]))
]


def sample(namespace, name, index):
    args, kwargs = copy.deepcopy(SAMPLES[name][index])
    return getattr(getattr(torch.ops, namespace), name).default, args, kwargs


def served(name, index):
    """Whether the Triton kernel takes the sample."""
    operator, args, kwargs = sample("ensemble_kernels_triton", name, index)
    try:
        operator(*args, **kwargs)
    except _triton.Unsupported:
        return False
    return True


@pytest.mark.parametrize("name", OPERATORS)
def test_the_named_back_end_launches_its_kernel(name):
    assert ensemble_kernels.backends()[name]["triton"] is None
    operator, args, kwargs = sample("ensemble_kernels_triton", name, 0)
    before = _triton.launches.total()
    operator(*args, **kwargs)
    assert _triton.launches.total() > before


@pytest.mark.parametrize(("name", "index"), EACH)
def test_opcheck(name, index, monkeypatch):
    monkeypatch.undo()  # it takes the place of outputs within guards for a fault of the fake
    if served(name, index):
        torch.library.opcheck(*sample("ensemble_kernels_triton", name, index))


@pytest.mark.parametrize("name", OPERATORS)
def test_the_kernel_takes_some_sample(name):
    assert any(served(name, index) for index in range(len(SAMPLES[name])))


@pytest.mark.parametrize(("name", "index"), EACH)
def test_inputs_come_out_as_the_reference_leaves_them(name, index):
    """Only what the schema says is written to."""
    if not served(name, index):
        return
    operator, args, kwargs = sample("ensemble_kernels_triton", name, index)
    reference, theirs, _ = sample("ensemble_kernels", name, index)
    operator(*args, **kwargs)
    reference(*theirs, **kwargs)
    torch.testing.assert_close(args, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("name", "index"), EACH)
def test_negated_views_are_read_as_what_they_show(name, index):
    if served(name, index):
        check_negated_views(*sample("ensemble_kernels_triton", name, index))


def test_a_call_that_names_no_back_end_stays_native():
    before = _triton.launches.total()
    cache = torch.arange(8.0).view(8, 1)
    torch.ops.ensemble_kernels.compact_kv_(cache, torch.tensor([4]), torch.tensor(1))
    assert cache[1] == 4
    assert _triton.launches.total() == before


def _launch(name, *args, **kwargs):
    return _triton._launcher(name)(*args, **kwargs)


def far(near, strides):
    """`near` in gigabytes that nobody touches, but for its elements."""
    span = sum((size - 1) * step for size, step in zip(near.shape, strides, strict=True))
    try:
        room = near.new_empty(span + 1)
    except RuntimeError:
        pytest.skip(f"no room for {span + 1} elements")
    return room.as_strided(near.shape, strides).copy_(near)


@pytest.mark.parametrize(
    "strides", [(1, 1, 1, 2**29 + 16), (1, 1, 2**28 + 16, 1)], ids=["columns", "slots"]
)
def test_offsets_of_attention_beyond_32_bits(strides, monkeypatch):
    # Without guards, whose copies would touch all of it.
    monkeypatch.setattr(_triton, "run", _launch)
    size, slots = (5, 2) if strides[3] > 1 else (1, 9)
    query, key, value = (torch.randn(1, 1, n, size).half() for n in (1, slots, slots))
    offsets = torch.tensor([0, 1], dtype=torch.int32)
    expected = segment_attention(query, key, value, offsets)
    # The kernel rounds its weights, whose sum is 1, and both round the mean of the values.
    tolerance = 3 * 2**-11 * value.abs().max().item()
    for which in range(3):
        given = [query, key, value]
        given[which] = far(given[which], strides)
        out = segment_attention(*given, offsets, backend="triton")
        torch.testing.assert_close(out, expected, rtol=0, atol=tolerance)


def test_offsets_of_kept_slots_beyond_32_bits(monkeypatch):
    monkeypatch.setattr(_triton, "run", _launch)
    cache = torch.arange(40.0).view(20, 2)
    kept = torch.tensor([[3, 5, 9, 11, 12]])
    keep = far(kept, (1, 2**29 + 16))[0]
    expected = cache[kept[0]]
    compact_kv_(cache, keep, 1, backend="triton")
    assert torch.equal(cache[1:6], expected)


def test_a_write_beside_a_tensor_is_noticed():
    """The guards themselves."""

    def write_behind(tensor):
        tensor.as_strided((1,), (1,), tensor.storage_offset() + tensor.numel()).fill_(0)

    with pytest.raises(AssertionError, match="wrote beside a tensor"):
        guarded(write_behind)(torch.ones(3))

    def read_behind(tensor):
        return tensor.as_strided((1,), (1,), tensor.storage_offset() + tensor.numel()).clone()

    assert guarded(read_behind)(torch.ones(3)).isnan()
    assert guarded(lambda tensor: tensor.new_empty(2) + 0)(torch.ones(1)).isnan().all()
    assert view_of(buffer_of(8), torch.empty(2)).isnan().all()
