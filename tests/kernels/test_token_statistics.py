import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble_kernels import segment_mean, token_statistics

from .allocations import LargestResult
from .lane import examples, few
from .layouts import LAYOUTS, relayout
from .oracles.token_statistics import row_statistics
from .oracles.token_statistics import segment_mean as segment_mean_in_loops

NAN, INF = math.nan, math.inf
DTYPES = (torch.float32, torch.float16, torch.bfloat16, *few((torch.float64,), ()))
COLUMNS = (1, 7, 31, 511, 512, 513, 1023, 1024, 1025)


def random_logits(rows, columns, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed + columns)
    logits = (torch.randn(rows, columns, generator=generator) * 5).to(dtype)
    return logits, torch.randint(columns, (rows,), generator=generator)


def assert_statistics(actual, expected):
    """`expected`: one tuple of the fields per row. Inputs are exact in float64 and sums are taken
    in float32, so the error does not depend on the dtype of the logits."""
    for field, got, column in zip(actual._fields, actual, zip(*expected, strict=True), strict=True):
        assert got.dtype == (torch.int64 if field == "argmax" else torch.float32)
        assert got.tolist() == pytest.approx(list(column), rel=2e-5, abs=2e-5, nan_ok=True), field


# Against the oracles


VALUES = st.one_of(
    st.floats(-30, 30, width=16), st.sampled_from([-INF, -INF, 0.5, 0.5, -200.0, NAN, INF])
)


@given(
    st.integers(1, 40).flatmap(
        lambda width: st.lists(
            st.lists(VALUES, min_size=width, max_size=width), min_size=1, max_size=3
        )
    ),
    st.sampled_from(LAYOUTS),
    st.sampled_from(DTYPES),
    st.sampled_from([1.0, 0.3, 2.0]),
    st.data(),
)
@settings(max_examples=examples(200), deadline=None)
def test_equals_the_loops(rows, layout, dtype, temperature, data):
    logits = relayout(torch.tensor(rows, dtype=dtype), layout)
    vocab_size = data.draw(st.integers(1, logits.shape[1]))
    ids = [data.draw(st.integers(0, vocab_size - 1)) for _ in rows]
    actual = token_statistics(
        logits, torch.tensor(ids), vocab_size=vocab_size, temperature=temperature
    )
    exact = logits.double().tolist()
    assert_statistics(
        actual,
        [
            row_statistics(row[:vocab_size], token_id, temperature)
            for row, token_id in zip(exact, ids, strict=True)
        ],
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", COLUMNS)
def test_around_block_boundaries(columns, dtype):
    logits, ids = random_logits(3, columns, dtype)
    logits[0, : columns // 2] = -INF
    expected = [
        row_statistics(row, token_id, 0.7)
        for row, token_id in zip(logits.double().tolist(), ids.tolist(), strict=True)
    ]
    assert_statistics(token_statistics(logits, ids, temperature=0.7), expected)


@pytest.mark.parametrize("columns", [49152, 151936, 262144, 1_048_577])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_real_vocabularies(columns, dtype):
    logits, ids = random_logits(2, columns, dtype)
    logits[0, : columns // 2] = -INF
    exact = logits.double()
    logprobs = exact.log_softmax(-1)
    entropy = -torch.where(logprobs > -INF, logprobs.exp() * logprobs, 0).sum(-1)
    expected = (
        *(logprobs.gather(1, ids[:, None])[:, 0], exact.argmax(-1)),
        *(logprobs.amax(-1), exact.logsumexp(-1), entropy),
    )
    actual = token_statistics(logits, ids)
    assert_statistics(actual, zip(*(field.tolist() for field in expected), strict=True))


# Ties, padding, NaN, -inf


@pytest.mark.parametrize("columns", [7, 512, 1025, 5000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_lowest_id_wins_a_tie(columns, dtype):
    logits, ids = (
        random_logits(columns, columns, dtype)
        if columns < 100
        else random_logits(9, columns, dtype)
    )
    first = torch.linspace(0, columns - 1, logits.shape[0]).long()
    for row, column in enumerate(first):
        logits[row, column] = logits[row, -1] = logits[row, (column + columns) // 2] = 100
    assert torch.equal(token_statistics(logits, ids).argmax, first)


def test_temperature_makes_no_ties():
    logits = torch.tensor([[1.0, 1.0 + 2**-23]])
    assert token_statistics(logits, torch.tensor([0]), temperature=3.0).argmax.item() == 1


def test_padding_columns_count_for_nothing():
    logits, ids = random_logits(4, 1030)
    ids %= 1000
    alone = token_statistics(logits[:, :1000].contiguous(), ids)
    for padding in (50.0, INF, NAN):
        logits[:, 1000:] = padding
        for field, expected in zip(
            token_statistics(logits, ids, vocab_size=1000), alone, strict=True
        ):
            assert torch.equal(field, expected)


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("columns", [7, 512, 1025, 262144])
def test_bad_rows_have_nan_fields_and_no_argmax(columns, bad):
    logits, ids = random_logits(5, columns)
    for row, column in enumerate((0, columns // 2, columns - 1)):
        logits[row, column] = bad
    logits[3] = -INF
    for field in token_statistics(logits, ids):
        assert (field[:4] == -1).all() if field.dtype == torch.int64 else field[:4].isnan().all()
        assert field[4].isfinite()


@pytest.mark.parametrize("dtype", DTYPES)
def test_half_of_the_logits_may_be_minus_infinity(dtype):
    logits = torch.full((2, 3000), -INF, dtype=dtype)
    logits[0, 1::2] = 0
    logits[1, 2999] = -7
    actual = token_statistics(logits, torch.tensor([1, 0]))
    log = math.log(1500)
    assert_statistics(actual, [(-log, 1, -log, log, log), (-INF, 2999, 0, -7, 0)])


def test_far_logits_neither_overflow_nor_stall():
    logits = torch.tensor([[3e38, -3e38, 2.9e38], [-1e4, -1e4 - 100, -1e4]])
    actual = token_statistics(logits, torch.tensor([0, 1]))
    log = math.log(2)
    assert_statistics(actual, [(0, 0, 0, 3e38, 0), (-100 - log, 0, -log, -1e4 + log, log)])


def test_a_distance_beyond_float32_divided_by_a_high_temperature():
    """Nothing but a logit of -inf has a log-probability of -inf, unless float32 cannot hold it."""
    logits = torch.tensor([[3e38, -3e38], [3e38, -INF], [3e38, -3e38]])
    actual = token_statistics(logits, torch.tensor([1, 1, 0]), temperature=1e37)
    assert actual.logprob.tolist() == pytest.approx([-60, -INF, 0], rel=1e-5)


# How it is done


@pytest.mark.parametrize("columns", [50, 49152, 262144])
def test_a_row_depends_on_no_other(columns):
    logits, ids = random_logits(7, columns)
    together = token_statistics(logits, ids)
    again = token_statistics(logits, ids)
    for row in range(0, 7, 3):
        alone = token_statistics(logits[row : row + 1], ids[row : row + 1])
        for field, same, own in zip(together, again, alone, strict=True):
            assert torch.equal(field, same)
            torch.testing.assert_close(field[row : row + 1], own, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_of_the_size_of_the_logits_is_written(dtype):
    logits, ids = random_logits(12, 100_000, dtype)
    with LargestResult(logits) as allocated:
        token_statistics(logits, ids, backend="reference")
    assert allocated.elements <= 1 << 18


def test_no_rows():
    for field in token_statistics(torch.empty(0, 9), torch.empty(0, dtype=torch.int64)):
        assert field.shape == (0,)


# segment_mean


@given(st.lists(st.floats(-50, 0, width=16), max_size=12), st.sampled_from(DTYPES), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_segment_mean_equals_the_loops(values, dtype, data):
    cuts = data.draw(st.lists(st.integers(0, len(values)), max_size=4))
    offsets = [0, *sorted(cuts)]
    tensor = torch.tensor(values, dtype=dtype)
    mean = segment_mean(tensor, torch.tensor(offsets, dtype=torch.int32))
    assert mean.dtype == torch.float32
    assert mean.tolist() == pytest.approx(segment_mean_in_loops(tensor.tolist(), offsets), rel=1e-6)


def test_segment_mean_sums_in_float32_or_better():
    values = torch.full((3000,), -0.7, dtype=torch.bfloat16)
    mean = segment_mean(values, torch.tensor([0, 1000, 3000], dtype=torch.int32))
    assert mean.tolist() == pytest.approx([values[0].item()] * 2, rel=1e-6)


def test_segment_mean_of_a_sum_beyond_float32():
    values = torch.tensor([3e38, 3e38, -3e38, -2e38])
    mean = segment_mean(values, torch.tensor([0, 2, 4], dtype=torch.int32))
    assert mean.tolist() == pytest.approx([3e38, -2.5e38], rel=1e-6)


def test_segment_mean_keeps_nan_and_infinity_in_their_segment():
    values = torch.tensor([-1.0, NAN, -2.0, -INF, -3.0, NAN])
    mean = segment_mean(values, torch.tensor([0, 1, 2, 3, 4, 5], dtype=torch.int32))
    assert mean.tolist() == pytest.approx([-1, NAN, -2, -INF, -3], nan_ok=True)


# Bad input

LOGITS, IDS = random_logits(2, 9)
BAD = {
    "logits list": (TypeError, {"logits": [[1.0]]}, "logits must be a Tensor, got list"),
    "logits sparse": (TypeError, {"logits": LOGITS.to_sparse()}, "strided .*, got a sparse_coo"),
    "logits nested": (
        TypeError,
        {"logits": torch.nested.nested_tensor(list(LOGITS), layout=torch.jagged)},
        "logits must be a strided Tensor, got a nested one",
    ),
    "logits 1d": (ValueError, {"logits": LOGITS[0]}, "logits must have 2 dimensions, got 1"),
    "logits int": (TypeError, {"logits": LOGITS.int()}, "logits must be of dtype .*, got int32"),
    "ids int32": (
        TypeError,
        {"token_ids": IDS.int()},
        "token_ids must be of dtype int64, got int32",
    ),
    "ids shape": (
        ValueError,
        {"token_ids": IDS[:1]},
        r"token_ids must have shape \[2\], got \[1\]",
    ),
    "id high": (ValueError, {"token_ids": IDS * 0 + 9}, r"token_ids\[0\] .* - 1 = 8, got 9"),
    "id low": (ValueError, {"token_ids": IDS * 0 - 1}, r"token_ids\[0\] .* - 1 = 8, got -1"),
    "id padding": (
        ValueError,
        {"token_ids": IDS * 0 + 6, "vocab_size": 6},
        r"token_ids\[0\] .* - 1 = 5, got 6",
    ),
    "vocab high": (ValueError, {"vocab_size": 10}, "vocab_size must be from 1 to V = 9, got 10"),
    "vocab low": (ValueError, {"vocab_size": 0}, "vocab_size must be from 1 to V = 9, got 0"),
    "vocab float": (TypeError, {"vocab_size": 9.0}, "vocab_size must be an int or None, got float"),
    "temperature": (ValueError, {"temperature": 0.0}, "temperature must be positive .*, got 0.0"),
    "temperature nan": (ValueError, {"temperature": NAN}, "must be positive and finite, got nan"),
    "temperature tiny": (ValueError, {"temperature": 1e-40}, "from 1e-37 to .*, got 1e-40"),
    "temperature huge": (ValueError, {"temperature": 1e300}, "from 1e-37 to .*, got 1e.300"),
    "temperature str": (TypeError, {"temperature": "1"}, "temperature must be a float, got str"),
    "backend": (ValueError, {"backend": "gpu"}, "backend must be None or one of .*, got 'gpu'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    error, given, message = BAD[name]
    with pytest.raises(error, match=message):
        token_statistics(**{"logits": LOGITS, "token_ids": IDS, **given})


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([1, 2], "segment_offsets must start at 0, got 1"),
        ([0, 2, 1], r"segment_offsets must be non-decreasing, got \[0, 2, 1\]"),
        ([0, 4], "segment_offsets must end at or before 3, got 4"),
        ([], "at least one offset"),
    ],
)
def test_bad_offsets(offsets, message):
    with pytest.raises(ValueError, match=message):
        segment_mean(torch.zeros(3), torch.tensor(offsets, dtype=torch.int32))
