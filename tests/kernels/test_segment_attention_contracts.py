import math

import pytest
import torch

from ensemble_kernels import segment_attention

from .allocations import LargestResult
from .attention_strategies import int32, pack
from .lane import few
from .oracles.segment_attention import segment_attention as oracle

NAN = math.nan

# NaN, padding, nothing to see


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("which", ["key", "value"])
def test_a_seen_nan_propagates(which, dtype):
    lengths, prefix = [3, 3], 9
    for slot, rows in ((0, range(6)), (prefix + 1, [1, 2]), (prefix + 5, [5])):
        query, key, value, offsets = pack(lengths, prefix, dtype=dtype)
        (key if which == "key" else value)[0, 1, slot] = NAN
        out = segment_attention(query, key, value, offsets)
        assert not out[0, :2].isnan().any()
        assert out[0, 2:].isnan().any(-1).any(0).nonzero()[:, 0].tolist() == list(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, *few([torch.float64], [])])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("prefix", [3, 600])
def test_a_seen_infinity_propagates(prefix, softcap, dtype):
    """As weight · infinity does; beside a NaN of another segment as well."""
    for other in (1.0, NAN):
        query, key, value, offsets = pack([2, 2], prefix, 2, 1, dtype=dtype)
        value[:] = 1
        value[0, 0, prefix, 0], value[0, 0, prefix + 2, 1] = math.inf, -math.inf
        value[0, 0, 1, 2] = math.inf
        value[0, 0, prefix + 3, 3] = other
        out = segment_attention(query, key, value, offsets, softcap=softcap)
        expected = torch.ones_like(out)
        expected[:, :, :2, 0], expected[:, :, 2:, 1] = math.inf, -math.inf
        expected[..., 2] = math.inf
        expected[:, :, 3, 3] = other
        torch.testing.assert_close(out, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_infinity_at_the_edge_of_a_window(dtype):
    """The rows see the prefix from slot 2, 3 and 4 on."""
    query, key, value, offsets = pack([3], 5, 2, 1, dtype=dtype)
    value[:] = 1
    value[0, 0, 2, :2], value[0, 0, 3, 1:3] = -math.inf, math.inf
    out = segment_attention(query, key, value, offsets, window=4)
    expected = torch.ones_like(out)
    expected[:, :, 0, 0], expected[:, :, 0, 1] = -math.inf, NAN
    expected[:, :, 1, 1], expected[:, :, :2, 2] = math.inf, math.inf
    torch.testing.assert_close(out, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("scale", [0.0, 1e-300])
def test_a_scale_of_nothing_weighs_alike(scale, softcap, dtype):
    query, key, value, offsets = pack([9], 40, 2, 1, 64, dtype)
    key = key.mT.contiguous().mT  # which takes the way of matrix products
    for _ in range(3):
        _, lse = segment_attention(
            query, key, value, offsets, scale=scale, softcap=softcap, return_lse=True
        )
        expected = torch.arange(41.0, 50.0).log().expand(1, 2, 9)
        torch.testing.assert_close(lse, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, *few([torch.float64], [])])
@pytest.mark.parametrize("size", [1e10, 1e17, 1e30, 1e37])
@pytest.mark.parametrize("sign", [1, -1])
def test_of_huge_scores_the_highest_wins(sign, size, dtype):
    """Where a rounding of the scores is more than any exponent may be."""
    prefix, lengths = few(600, 40), [2, 3]
    query, key, value, offsets = pack(lengths, prefix, 2, 1, 16, dtype)
    query, key = query.abs() * size**0.5, sign * key.abs() * size**0.5
    out, lse = segment_attention(query, key, value, offsets, return_lse=True)
    nested = [states.double().tolist() for states in (query, key, value)]
    offsets = [offsets.tolist()]
    expected, expected_lse = oracle(*nested, offsets, [prefix], [0], 16**-0.5, None, None)
    torch.testing.assert_close(out, torch.tensor(expected, dtype=dtype), rtol=1e-6, atol=0)
    torch.testing.assert_close(lse, torch.tensor(expected_lse), rtol=1e-6, atol=0)


# In bfloat16 PyTorch's kernel, and so the reference, makes 0 of +inf.
@pytest.mark.parametrize(
    ("score", "expected", "dtype"),
    [(1e20, NAN, torch.float32), (-1e20, 1.0, torch.float32), (-1e20, 1.0, torch.bfloat16)],
)
def test_a_score_that_float32_cannot_hold_is_infinite(score, expected, dtype):
    query, key, value, offsets = pack([2], few(200, 40), 1, 1, dtype=dtype)
    key[:], value[:] = 0, 1
    query[..., 0], key[0, 0, 3, 0] = 1e20, score
    out = segment_attention(query, key, value, offsets, scale=1.0)
    torch.testing.assert_close(out, torch.full_like(out, expected), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("softcap", [1e4, 1e6, 1e30])
def test_a_softcap_far_above_the_scores_is_none(softcap, dtype):
    arguments = pack([5, 3], 40, dtype=dtype)
    uncapped = segment_attention(*arguments, return_lse=True)
    capped = segment_attention(*arguments, softcap=softcap, return_lse=True)
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(capped, uncapped, rtol=tolerance, atol=tolerance)


def test_padding_rows_and_empty_packs():
    query, key, value, _ = pack([6])
    for offsets, real in (([0, 2, 4], 4), ([0], 0), ([0, 0, 0], 0), ([0, 0, 6, 6], 6)):
        out, lse = segment_attention(query, key, value, int32(offsets), return_lse=True)
        assert torch.equal(out[:, :, real:], torch.zeros_like(out[:, :, real:]))
        assert (lse[:, :, real:] == -math.inf).all()
        assert lse[:, :, :real].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hidden", [0.0, NAN])
def test_a_row_that_sees_nothing_is_zero(hidden, dtype):
    query, key, value, offsets = pack([2, 2], 3, dtype=dtype)
    key[:, :, :5], value[:, :, :5] = hidden, hidden
    out, lse = segment_attention(query, key, value, offsets, key_start=int32([5]), return_lse=True)
    assert out[0, :, :2].count_nonzero() == 0
    assert (lse[0, :, :2] == -math.inf).all()
    assert lse[0, :, 2:].isfinite().all()


def test_a_window_of_any_size():
    arguments = pack([2, 3], 4)
    expected = segment_attention(*arguments)
    for window in (9, 2**31, 2**63, 2**200):
        assert torch.equal(segment_attention(*arguments, window=window), expected)


# How it is done


@pytest.mark.parametrize("window", [None, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prefix_keys_are_not_copied(dtype, window):
    prefix, rows, size = 2000, 6, 64
    query, key, value, offsets = pack([2, 4], prefix, 3, 1, size, dtype)
    with LargestResult(query, key, value) as allocated:
        segment_attention(query, key, value, offsets, window=window, backend="reference")
    assert allocated.elements <= 3 * rows * (
        prefix + rows
    )  # the scores; the keys are 3.5 times that


# Bad input

QUERY, KEY, VALUE, OFFSETS = pack([2, 2], 3)
BAD = {
    "query list": (TypeError, {"query": [1]}, "query must be a Tensor, got list"),
    "query 3d": (ValueError, {"query": QUERY[0]}, "query must have 4 dimensions, got 3"),
    "int query": (TypeError, {"query": QUERY.int()}, "query must be of dtype .*, got int32"),
    "key dtype": (TypeError, {"key": KEY.half()}, "key must be of dtype float(64|32), got float16"),
    "key size": (ValueError, {"key": KEY[..., :4]}, r"key must have shape \[1, 2, 7, 8\], got"),
    "value slots": (
        ValueError,
        {"value": VALUE[:, :, 1:]},
        r"value must have shape \[1, 2, 7, 8\]",
    ),
    "heads": (ValueError, {"query": QUERY[:, :3]}, r"multiple of the heads.*\[1, 3, 4, 8\]"),
    "no heads": (ValueError, {"query": QUERY[:, :0]}, r"multiple of the heads.*\[1, 0, 4, 8\]"),
    "slots": (
        ValueError,
        {"key": KEY[:, :, :3], "value": VALUE[:, :, :3]},
        "a slot for each of the 4 query rows, got 3",
    ),
    "offsets int64": (TypeError, {"segment_offsets": OFFSETS.long()}, "int32, got int64"),
    "offsets empty": (ValueError, {"segment_offsets": OFFSETS[:0]}, "at least one offset"),
    "offsets batch": (
        ValueError,
        {"segment_offsets": OFFSETS.expand(2, 3)},
        r"segment_offsets must have shape \[1, 3\], got \[2, 3\]",
    ),
    "offsets start": (ValueError, {"segment_offsets": int32([1, 4])}, "start at 0, got 1"),
    "offsets fall": (ValueError, {"segment_offsets": int32([0, 3, 2])}, r"got \[0, 3, 2\]"),
    "offsets end": (ValueError, {"segment_offsets": int32([0, 5])}, "at or before 4, got 5"),
    "prefix int": (ValueError, {"prefix_length": 4}, "from 0 to S - T = 3, got 4"),
    "prefix negative": (ValueError, {"prefix_length": -1}, "from 0 to S - T = 3, got -1"),
    "prefix float": (TypeError, {"prefix_length": 1.0}, "prefix_length must be an int.*got float"),
    "prefix tensor": (ValueError, {"prefix_length": int32([4])}, "from 0 to S - T = 3, got 4"),
    "prefix shape": (ValueError, {"prefix_length": int32([1, 1])}, r"shape \[1\], got \[2\]"),
    "start list": (TypeError, {"key_start": [0]}, "key_start must be a Tensor, got list"),
    "window": (ValueError, {"window": 0}, "window must be at least 1, got 0"),
    "window float": (TypeError, {"window": 2.0}, "window must be an int or None, got float"),
    "softcap": (ValueError, {"softcap": 0.0}, "softcap must be positive and finite, got 0.0"),
    "softcap tiny": (ValueError, {"softcap": 1e-40}, "from 1e-37 to 1e.37, got 1e-40"),
    "softcap huge": (ValueError, {"softcap": 1e300}, "from 1e-37 to 1e.37, got 1e.300"),
    "softcap str": (TypeError, {"softcap": "5"}, "softcap must be a float, got str"),
    "scale": (ValueError, {"scale": NAN}, "scale must be finite, got nan"),
    "scale infinite": (ValueError, {"scale": -math.inf}, "scale must be finite, got -inf"),
    "scale str": (TypeError, {"scale": "1"}, "scale must be a float, got str"),
    "backend": (ValueError, {"backend": "cudnn"}, "backend must be None or one of"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    error, given, message = BAD[name]
    arguments = {"query": QUERY, "key": KEY, "value": VALUE, "segment_offsets": OFFSETS}
    with pytest.raises(error, match=message):
        segment_attention(**{**arguments, **given})
