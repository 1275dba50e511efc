"""Where the native kernels over a union vocabulary could go wrong and their references not."""

import math

import pytest
import torch

from .lane import INTERPRETED, few
from .vocabulary_strategies import DTYPES, TOLERANCE

OPERATORS = few(torch.ops.ensemble_kernels, torch.ops.ensemble_kernels_triton)
LARGE = few(70_000, 5_000)


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


def large_case(dtype, rows=3, size=LARGE):
    """One id at most for each column, as in real unions: maps and logits of two models."""
    generator = torch.Generator().manual_seed(1)
    maps, logits = [], []
    for width in (size // 3, size - 500):
        columns = torch.randperm(size, generator=generator)[:width]
        there = torch.zeros(size + 1, dtype=torch.int32)
        there[columns + 1] = 1
        maps.append((there.cumsum(0, dtype=torch.int32), columns.argsort().int()))
        logits.append(torch.randn(rows, width, generator=generator).to(dtype))
    return maps, logits


def with_threads(count, run):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return run()
    finally:
        torch.set_num_threads(before)


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
@pytest.mark.parametrize("lane", few(range(17), (0, 15, 16)))
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
    maps, logits = large_case(dtype)
    first = mix(logits, maps, geometric)
    for run in range(few(50, 1)):
        again = with_threads(1 + run % 2, lambda: mix(logits, maps, geometric))
        for field, other in zip(first, again, strict=True):
            assert torch.equal(field, other)
    for row in range(3):
        alone = mix([x[row : row + 1] for x in logits], maps, geometric)
        assert torch.equal(first[0][row], alone[0][0])
        assert torch.equal(first[1][:, row], alone[1][:, 0])


if not INTERPRETED:  # the contents of a map are not read before a launch on a GPU

    @pytest.mark.parametrize("offsets", [[0, 2, 1, 3], [0, 1, 2, 9], [-1, 1, 2, 3], [0, 9, 2, 3]])
    def test_offsets_that_are_no_map(offsets):
        maps = [(torch.tensor(offsets, dtype=torch.int32), torch.arange(3, dtype=torch.int32))]
        with pytest.raises(ValueError, match="map_offsets must be non-decreasing"):
            mix([torch.zeros(1, 3)], maps)
        with pytest.raises(ValueError, match="map_offsets must be non-decreasing"):
            top_k([torch.zeros(1, 3)], maps, 2)

    @pytest.mark.parametrize("wrong", [-1, 2001, 2**31 - 1, -(2**31)])
    @pytest.mark.parametrize("column", [0, 511, 512, 1000, 2000])
    def test_one_offset_that_is_wrong(column, wrong):
        offsets = torch.arange(2001, dtype=torch.int32)
        offsets[column] = wrong
        maps = [(offsets, torch.arange(2000, dtype=torch.int32))]
        with pytest.raises(ValueError, match="map_offsets must be non-decreasing"):
            top_k([torch.zeros(1, 2000)], maps, 2)


def test_ids_outside_of_the_logits_count_for_nothing():
    offsets = torch.arange(41, dtype=torch.int32)
    ids = torch.arange(40, dtype=torch.int32)
    ids[[1, 5, 39]] = torch.tensor([40, 2**31 - 1, -1], dtype=torch.int32)
    mixed, lost, _ = mix([torch.zeros(1, 40)], [(offsets, ids)])
    assert mixed[0, [1, 5, 39]].tolist() == [0.0, 0.0, 0.0]
    assert mixed[0, 0].item() == pytest.approx(1 / 37)
    assert lost.item() == pytest.approx(3 / 40)


def top_k(logits, maps, k):
    own = []
    for offsets, _ in maps:
        columns = torch.arange(offsets.shape[0] - 1, dtype=torch.int32)
        own.append(columns.where(offsets.diff() > 0, -1))
    weights, temperature = torch.ones(len(logits)), torch.full((len(logits),), 0.7)
    offsets, ids = [m[0] for m in maps], [m[1] for m in maps]
    return OPERATORS.top_k_union(logits, offsets, ids, own, weights, temperature, k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", few([1, 10, 3000], [1, 10, 40]))
def test_top_k_of_many_columns(k, dtype):
    """In 16 bits thousands of scores are equal: the lower columns are taken."""
    maps, logits = large_case(dtype, rows=2)
    scores = []
    for (offsets, ids), given in zip(maps, logits, strict=True):
        score = torch.full((2, offsets.shape[0] - 1), -math.inf, dtype=torch.float64)
        score[:, offsets.diff() > 0] = (given.to(torch.promote_types(dtype, torch.float32)) / 0.7)[
            :, ids.long()
        ].double()
        scores.append(score)
    first = top_k(logits, maps, k)
    for row in range(2):
        order = [score[row].sort(descending=True, stable=True).indices[:k] for score in scores]
        columns = torch.cat(order).unique()
        assert first[0][row].tolist() == columns.tolist() + [-1] * (2 * k - len(columns))
        expected = sum(score[row, columns].softmax(-1) for score in scores) / 2
        probabilities = first[1][row].double()
        torch.testing.assert_close(probabilities[: len(columns)], expected, rtol=2e-5, atol=1e-9)
        assert not probabilities[len(columns) :].any()
    for run in range(few(4, 1)):
        again = with_threads(1 + run % 2, lambda: top_k(logits, maps, k))
        assert torch.equal(first[0], again[0])
        assert torch.equal(first[1], again[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_k_of_a_row_is_the_same_among_others(dtype):
    rows = few(35, 3)
    maps, logits = large_case(dtype, rows=rows, size=few(20_000, 3_000))
    logits[0][1, 7] = math.nan
    columns, probabilities = top_k(logits, maps, 10)
    assert columns[1].tolist() == [-1] * 20
    for row in range(rows):
        alone = top_k([x[row : row + 1] for x in logits], maps, 10)
        assert torch.equal(columns[row], alone[0][0])
        assert torch.equal(probabilities[row].nan_to_num(-1), alone[1][0].nan_to_num(-1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_k_sees_a_nan_that_no_column_has(dtype):
    maps, logits = [map_of([*range(40), *[-1] * 60], 40)], [torch.zeros(2, 100, dtype=dtype)]
    for position in (40, 63, 99):
        spoilt = logits[0].clone()
        spoilt[1, position] = math.nan
        assert top_k([spoilt], maps, 2)[0].tolist() == [[0, 1], [-1, -1]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 15, 16, 17, few(1000, 40)])
def test_ranges_of_any_length_and_stride_are_summed(size, dtype):
    generator = torch.Generator().manual_seed(size)
    buffer = torch.full((2, 2 * size + 1), math.nan, dtype=dtype)
    rows = torch.rand(2, size, generator=generator).to(dtype)
    buffer[:, 1::2] = rows
    prefix_end = torch.full((size,), size, dtype=torch.int32)
    columns = torch.arange(size).expand(2, -1)
    expected = rows.double().flip(1).cumsum(1).flip(1)
    expected = expected.where(rows > 0.3, rows.double()).to(dtype)
    for given in (rows, buffer[:, 1::2]):
        sharpened = OPERATORS.sharpen_prefixes(given, prefix_end, columns, 0.3)
        torch.testing.assert_close(sharpened, expected, rtol=1e-6, atol=0)
