"""Where the native `mix_distributions` and `top_k_union` could go wrong and the reference not."""

import math

import pytest
import torch

from .vocabulary_strategies import DTYPES, TOLERANCE

OPERATORS = torch.ops.ensemble_kernels


def map_of(columns_of_ids, size):
    """Offsets and ids of a map, from the column of each id (-1: none), in a loop."""
    offsets, ids = [0], []
    for column in range(size):
        ids += [i for i, c in enumerate(columns_of_ids) if c == column]
        offsets.append(len(ids))
    return torch.tensor(offsets, dtype=torch.int32), torch.tensor(ids, dtype=torch.int32)


def mix(logits, maps, geometric=False):
    weights = torch.arange(1.0, len(logits) + 1)
    offsets, ids = [m[0] for m in maps], [m[1] for m in maps]
    return OPERATORS.mix_distributions(
        logits, offsets, ids, weights, torch.ones(len(logits)), geometric
    )


def expected_mixture(logits, columns_of_ids, size):
    """In float64, by scattering."""
    mixed = torch.zeros(logits[0].shape[0], size, dtype=torch.float64)
    for weight, (given, columns) in enumerate(zip(logits, columns_of_ids, strict=True), 1):
        mass = given.double().softmax(-1)
        for i, column in enumerate(columns[: given.shape[1]]):
            if column >= 0:
                mixed[:, column] += weight * mass[:, i]
    return mixed / mixed.sum(-1, keepdim=True)


def random_case(size, widths, dtype, seed, rows=2):
    generator = torch.Generator().manual_seed(seed)
    columns = [torch.randint(-1, size, (width,), generator=generator).tolist() for width in widths]
    logits = [torch.randn(rows, width, generator=generator).mul(4).to(dtype) for width in widths]
    return logits, columns


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 15, 16, 17, 33, 130, 2047, 2049])
def test_any_number_of_columns(size, dtype):
    logits, columns = random_case(size, (size, 2 * size + 3), dtype, size)
    maps = [map_of(c, size) for c in columns]
    expected = expected_mixture(logits, columns, size)
    mixed = mix(logits, maps)
    torch.testing.assert_close(mixed[0].double(), expected, **TOLERANCE)
    lost = [
        x.double().softmax(-1)[:, torch.tensor(c) < 0].sum(-1)
        for x, c in zip(logits, columns, strict=True)
    ]
    torch.testing.assert_close(mixed[1].double(), torch.stack(lost), **TOLERANCE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lane", range(17))
def test_many_ids_in_any_lane(lane, dtype):
    columns = [*range(40), *[lane] * 3, *[lane + 20] * 40]
    logits, _ = random_case(40, (len(columns), 40), dtype, lane)
    maps = [map_of(columns, 40), map_of(range(40), 40)]
    expected = expected_mixture(logits, [columns, range(40)], 40)
    torch.testing.assert_close(mix(logits, maps)[0].double(), expected, **TOLERANCE)
    logs = [
        expected_mixture([given], [c], 40).log()
        for given, c in zip(logits, [columns, range(40)], strict=True)
    ]
    geometric = ((logs[0] + 2 * logs[1]) / 3).softmax(-1)
    torch.testing.assert_close(mix(logits, maps, True)[0].double(), geometric, **TOLERANCE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 2, 16, 17, 33])
def test_logits_at_the_ends_of_their_buffer(width, dtype):
    """What lies before and behind the row is NaN, and must not be read into it."""
    generator = torch.Generator().manual_seed(width)
    buffer = torch.full((width + 2,), math.nan, dtype=dtype)
    buffer[1:-1] = torch.randn(width, generator=generator).to(dtype)
    expected = buffer[1:-1].double().softmax(-1).flip(0)[None]
    maps = [map_of(range(width - 1, -1, -1), width)]
    mixed = mix([buffer[None, 1:-1]], maps)[0]
    torch.testing.assert_close(mixed.double(), expected, **TOLERANCE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("geometric", [False, True])
def test_strides_change_nothing(geometric, dtype):
    logits, columns = random_case(100, (150, 90), dtype, 3, rows=3)
    maps = [map_of(c, 100) for c in columns]
    expected = mix(logits, maps, geometric)
    padded = [torch.full((6, 2 * x.shape[1]), math.nan, dtype=dtype) for x in logits]
    for buffer, x in zip(padded, logits, strict=True):
        buffer[::2, ::2] = x
    for strided in ([p[::2, ::2] for p in padded], [x.t().contiguous().t() for x in logits]):
        for field, other in zip(expected, mix(strided, maps, geometric), strict=True):
            assert torch.equal(field, other)


@pytest.mark.parametrize("geometric", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bitwise_equal_on_every_thread_and_in_every_row(geometric, dtype):
    size, generator = 50_000, torch.Generator().manual_seed(1)
    maps, logits = [], []
    for width in (20_000, 45_000):
        columns = torch.randperm(size, generator=generator)[:width]
        there = torch.zeros(size + 1, dtype=torch.int32)
        there[columns + 1] = 1
        maps.append((there.cumsum(0, dtype=torch.int32), columns.argsort().int()))
        logits.append(torch.randn(3, width, generator=generator).to(dtype))
    first = mix(logits, maps, geometric)
    threads = torch.get_num_threads()
    try:
        for run in range(50):
            torch.set_num_threads(1 + run % 2)
            for field, other in zip(first, mix(logits, maps, geometric), strict=True):
                assert torch.equal(field, other)
            alone = mix([x[run % 3 :][:1] for x in logits], maps, geometric)
            assert torch.equal(first[0][run % 3], alone[0][0])
            assert torch.equal(first[1][:, run % 3], alone[1][:, 0])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("offsets", [[0, 2, 1, 3], [0, 1, 2, 9], [-1, 1, 2, 3], [0, 9, 2, 3]])
def test_offsets_that_are_no_map(offsets):
    maps = [(torch.tensor(offsets, dtype=torch.int32), torch.arange(3, dtype=torch.int32))]
    with pytest.raises(ValueError, match="map_offsets must be non-decreasing"):
        mix([torch.zeros(1, 3)], maps)


def test_ids_outside_of_the_logits_count_for_nothing():
    offsets = torch.arange(41, dtype=torch.int32)
    ids = torch.arange(40, dtype=torch.int32)
    ids[[1, 5, 39]] = torch.tensor([40, 2**31 - 1, -1], dtype=torch.int32)
    mixed, lost, _ = mix([torch.zeros(1, 40)], [(offsets, ids)])
    assert mixed[0, [1, 5, 39]].tolist() == [0.0, 0.0, 0.0]
    assert mixed[0, 0].item() == pytest.approx(1 / 37)
    assert lost.item() == pytest.approx(3 / 40)
