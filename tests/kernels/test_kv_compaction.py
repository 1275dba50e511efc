import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble_kernels import compact_kv_
from ensemble_kernels.kv_compaction import reference

from .lane import few
from .layouts import LAYOUTS, relayout

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.uint8)


def numbered(*shape, dtype=torch.float64):
    """Every element tells where it stands (layer, head, position, ...)."""
    return torch.arange(torch.Size(shape).numel()).view(shape).to(dtype)


def moved(cache, keep, start):
    """The result of a simultaneous move, slot by slot."""
    result = cache.clone()
    for i, slot in enumerate(keep):
        result[..., start + i, :] = cache[..., slot, :]
    return result


@st.composite
def moves(draw, slots):
    keep = draw(st.lists(st.integers(0, slots - 1), unique=True, max_size=slots).map(sorted))
    start = draw(st.integers(0, min([slot - i for i, slot in enumerate(keep)], default=slots)))
    return keep, start


# Against the oracle


@given(
    st.integers(1, 12).flatmap(lambda slots: st.tuples(st.just(slots), moves(slots))),
    st.sampled_from([(), (2,), (3, 2), (2, 3, 1, 2)]),
    st.sampled_from(LAYOUTS),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_equals_slot_by_slot(move, leading, layout, by_index):
    slots, (keep, start) = move
    cache = relayout(numbered(*leading, slots, 3), layout if len(leading) else "contiguous")
    expected = moved(cache, keep, start)
    arguments = cache, torch.tensor(keep, dtype=torch.int64), torch.tensor(start)
    if by_index and keep:  # the way of devices whose indices cannot be read back
        reference._move_slots(*arguments)
    else:
        compact_kv_(*arguments)
    assert torch.equal(cache, expected)


@given(st.lists(moves(9), min_size=1, max_size=3), st.booleans())
@settings(max_examples=100, deadline=None)
def test_rows_of_different_lengths(rows, by_index):
    cache = numbered(2, len(rows), 2, 9, 3)
    width = max(len(keep) for keep, _ in rows)
    keep = torch.tensor([k + [-1] * (width - len(k)) for k, _ in rows], dtype=torch.int64)
    starts = torch.tensor([start for _, start in rows])
    expected = cache.clone()
    for b, (kept, start) in enumerate(rows):
        expected[:, b] = moved(cache[:, b], kept, start)
    if by_index and width:
        for b in range(len(rows)):
            reference._move_slots(cache[:, b], keep[b], starts[b])
    else:
        compact_kv_(cache, keep.view(len(rows), width), starts)
    assert torch.equal(cache, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [16, 2048])
@pytest.mark.parametrize("distance", [1, 7, 64, 65])
@pytest.mark.parametrize("count", [1, 64, 65, 300])
def test_overlapping_runs(distance, count, size, dtype):
    cache = numbered(1 if size > 16 else 6, 400, size, dtype=dtype)
    keep = torch.arange(3 + distance, min(3 + distance + count, 400))
    expected = moved(cache, keep.tolist(), 3)
    compact_kv_(cache, keep, 3)
    assert torch.equal(cache, expected)


def test_all_layers_heads_and_positions_arrive():
    """A layout fault that sums cannot see: each token says its layer, head and position."""
    layers, heads, slots = 5, 3, 40
    cache = torch.empty(2, layers, 1, heads, slots, 4)
    for axis, count in ((1, layers), (3, heads), (4, slots)):
        shape = [1] * 5
        shape[axis] = count
        cache[..., axis - 1] = torch.arange(count).view(shape)
    cache[1] += 1000
    keep = [22, 23, 24, 31]
    compact_kv_(cache, torch.tensor(keep), 20)
    for i, slot in enumerate(keep):
        assert (cache[0, ..., 20 + i, 3] == slot).all()
        assert (cache[1, ..., 20 + i, 3] == slot + 1000).all()
    for layer in range(layers):
        assert (cache[0, layer, ..., 0] == layer).all()
    for head in range(heads):
        assert (cache[0, :, :, head, :, 2] == head).all()
    untouched = [*range(20), *range(24, slots)]
    assert (cache[0, ..., untouched, 3] == torch.tensor(untouched)).all()


# Laws


@given(moves(12))
@settings(max_examples=50, deadline=None)
def test_compacting_twice_is_compacting_once(move):
    keep, start = move
    once, twice = numbered(2, 12, 3), numbered(2, 12, 3)
    compact_kv_(once, torch.tensor(keep, dtype=torch.int64), start)
    half = len(keep) // 2
    compact_kv_(twice, torch.tensor(keep[:half], dtype=torch.int64), start)
    compact_kv_(twice, torch.tensor(keep[half:], dtype=torch.int64), start + half)
    assert torch.equal(once, twice)
    kept = torch.arange(start, start + len(keep))
    compact_kv_(once, kept, start)
    assert torch.equal(once, twice)


def test_int_and_tensor_starts_agree():
    first, second = numbered(2, 9, 3), numbered(2, 9, 3)
    compact_kv_(first, torch.tensor([4, 6]), 2)
    compact_kv_(second, torch.tensor([4, 6]), torch.tensor(2))
    assert torch.equal(first, second)


def test_nan_is_moved_bit_by_bit():
    bits = torch.tensor([[0x7FC00001], [0x7F800123], [-1]], dtype=torch.int32)
    cache = bits.view(torch.float32).clone()
    compact_kv_(cache, torch.tensor([1, 2]), 0)
    assert cache.view(torch.int32)[:, 0].tolist() == [0x7F800123, -1, -1]


def test_a_backward_pass_through_moved_slots_is_refused():
    leaf = numbered(6, 3).requires_grad_()
    cache = leaf * 1
    squares = (cache * cache).sum()
    compact_kv_(cache, torch.tensor([3]), 0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squares.backward()


def test_inference_mode():
    with torch.inference_mode():
        cache = numbered(6, 3)
        compact_kv_(cache, torch.tensor([3]), 0)
    assert cache[0].tolist() == [9, 10, 11]


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.bool, torch.int8, torch.uint8, torch.int16, torch.uint16, torch.uint32),
        *(torch.uint64, torch.float16, torch.complex32, torch.complex64),
        *few([torch.complex128], []),  # 16 bytes: left to the reference
        *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2),
    ],
)
def test_any_dtype(dtype):
    size = dtype.itemsize
    cache = (torch.arange(12 * size, dtype=torch.uint8) % 2).view(6, 2 * size)
    expected = moved(cache, [3, 5], 1)
    compact_kv_(cache.view(dtype), torch.tensor([3, 5]), 1)
    assert torch.equal(cache, expected)


# Bad input

CACHE = numbered(2, 3, 2, 8, 4)
BAD = {
    "cache list": (TypeError, {"cache": [1]}, "cache must be a Tensor, got list"),
    "cache sparse": (TypeError, {"cache": CACHE.to_sparse()}, "strided Tensor, got a sparse_coo"),
    "cache 1d": (ValueError, {"cache": CACHE[0, 0, 0, 0]}, "cache must have at least 2 dimensions"),
    "cache expanded": (
        ValueError,
        {"cache": CACHE[:1].expand(2, -1, -1, -1, -1)},
        "cache must not be expanded, .* got .*strides",
    ),
    "cache negated": (
        ValueError,
        {"cache": torch.zeros(8, 3, dtype=torch.complex64).conj().imag},
        "cache must hold its values itself, got a negated view",
    ),
    "cache conjugate": (
        ValueError,
        {"cache": torch.zeros(8, 3, dtype=torch.complex64).conj()},
        "cache must hold its values itself, got a conjugate view",
    ),
    "keep list": (TypeError, {"keep": [1]}, "keep must be a Tensor, got list"),
    "keep int32": (
        TypeError,
        {"keep": torch.tensor([3]).int()},
        "keep must be of dtype int64, got int32",
    ),
    "keep 3d": (
        ValueError,
        {"keep": torch.ones(1, 1, 1).long()},
        "keep must have 1 or 2 dimensions, got 3",
    ),
    "start float": (
        TypeError,
        {"destination_start": 1.0},
        "destination_start must be an int .* got float",
    ),
    "start bool": (TypeError, {"destination_start": True}, "destination_start .* got bool"),
    "start dtype": (
        TypeError,
        {"destination_start": torch.tensor(1).int()},
        "destination_start must be of dtype int64, got int32",
    ),
    "start shape": (
        ValueError,
        {"destination_start": torch.tensor([1])},
        r"destination_start must have shape \[\], got \[1\]",
    ),
    "start negative": (ValueError, {"destination_start": -1}, "must not be negative, got -1"),
    "start behind": (ValueError, {"destination_start": 9}, "at most S = 8, got 9"),
    "start huge": (ValueError, {"destination_start": 2**70}, "at most S = 8, got 118"),
    "slot high": (ValueError, {"keep": torch.tensor([3, 8])}, r"keep\[1\] .* 0 to 7, got 8"),
    "slot low": (ValueError, {"keep": torch.tensor([-1])}, r"keep\[0\] .* 0 to 7, got -1"),
    "repeated": (ValueError, {"keep": torch.tensor([3, 3])}, "ascend strictly, got 3 before 3"),
    "falling": (ValueError, {"keep": torch.tensor([4, 3])}, "ascend strictly, got 4 before 3"),
    "to the right": (ValueError, {"keep": torch.tensor([1])}, r"keep\[0\] .* destination 2, got 1"),
    "second to the right": (
        ValueError,
        {"keep": torch.tensor([5, 6]), "destination_start": 6},
        r"keep\[0\] .* destination 6, got 5",
    ),
    "rows": (
        ValueError,
        {"keep": torch.ones(2, 1).long(), "destination_start": torch.zeros(2).long()},
        r"B = 2 for keep \[2, 1\], got \[2, 3, 2, 8, 4\]",
    ),
    "padding inside": (
        ValueError,
        {
            "keep": torch.tensor([[2], [-1], [3]]).repeat(1, 2),
            "destination_start": torch.ones(3).long(),
        },
        r"keep\[0\] must ascend strictly, got 2 before 2",
    ),
    "padding first": (
        ValueError,
        {
            "keep": torch.tensor([[2, 3], [-1, 3], [3, 4]]),
            "destination_start": torch.ones(3).long(),
        },
        r"keep\[1\]\[0\] must be a slot from 0 to 7, got -1",
    ),
    "backend": (ValueError, {"backend": "rocm"}, "backend must be None or one of .*, got 'rocm'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_writes_nothing(name):
    error, given, message = BAD[name]
    cache = CACHE.clone()
    arguments = {"cache": cache, "keep": torch.tensor([3, 5]), "destination_start": 2}
    with pytest.raises(error, match=message):
        compact_kv_(**{**arguments, **given})
    assert torch.equal(cache, CACHE)
