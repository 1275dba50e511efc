"""The merge of attention states, against float64 and against an attention that is not split."""

import math

import pytest
import torch

from . import emulated
from .vocabulary_strategies import DTYPES

OPERATOR = torch.ops.ensemble_kernels_cuda.merge_attention_states.default
RUNS = [pytest.param(OPERATOR, id="reference")]
if emulated.AVAILABLE:
    RUNS.append(
        pytest.param(lambda *args: emulated.call("merge_attention_states", *args), id="emulated")
    )
each_run = pytest.mark.parametrize("merge", RUNS)


def split_attention(splits, rows, size, dtype, seed=0):
    """States and LSE of splits of 7 keys each, and what all keys make of the rows, in float64."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(2, rows, size, generator=generator, dtype=torch.float64)
    key, value = torch.randn(2, 2, 7 * splits, size, generator=generator, dtype=torch.float64)
    scores = 3 * query @ key.mT / math.sqrt(size)
    parts = scores.unflatten(-1, (splits, 7)).movedim(-2, 0)
    values = value.unflatten(1, (splits, 7)).movedim(1, 0)
    states = (parts.softmax(-1) @ values).to(dtype)
    return states, parts.logsumexp(-1).float(), scores.softmax(-1) @ value, scores.logsumexp(-1)


@each_run
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 64, 80, 128])
@pytest.mark.parametrize("splits", [1, 2, 33, 70])
def test_splits_become_the_whole(merge, splits, size, dtype):
    states, lse, expected, expected_lse = split_attention(splits, 5, size, dtype)
    out, merged = merge(states, lse)
    assert out.dtype == dtype
    # What the states were rounded to, and once more for the result.
    tolerance = 2 * torch.finfo(dtype).eps + 2e-6
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(merged.double(), expected_lse, rtol=2e-6, atol=2e-6)


@each_run
def test_what_saw_nothing_counts_for_nothing_whatever_it_holds(merge):
    states, lse, _, _ = split_attention(3, 4, 16, torch.float32)
    states[1, :, 1:] = math.nan
    lse[1, :, 1:] = -math.inf
    states[:, :, 3], lse[:, :, 3] = math.inf, -math.inf
    out, merged = merge(states, lse)
    others = OPERATOR(states[::2, :, 1:3].contiguous(), lse[::2, :, 1:3].contiguous())
    torch.testing.assert_close(out[:, 1:3], others[0])
    torch.testing.assert_close(merged[:, 1:3], others[1])
    assert not out[:, 3].any()
    assert (merged[:, 3] == -math.inf).all()
    assert out[:, 0].isfinite().all()


@each_run
def test_nan_stays_in_its_row(merge):
    states, lse, _, _ = split_attention(3, 4, 16, torch.float32)
    lse[1, 0, 2] = math.nan
    out, merged = merge(states, lse)
    assert out[0, 2].isnan().all()
    assert merged.isnan().sum() == 1
    assert out.isnan().sum() == 16


@each_run
def test_strides_change_nothing(merge):
    states, lse, _, _ = split_attention(4, 6, 24, torch.bfloat16)
    expected = merge(states, lse)
    strided = merge(states.mT.contiguous().mT, lse.mT.contiguous().mT)
    for field, other in zip(expected, strided, strict=True):
        assert torch.equal(field, other)


@each_run
@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5, 6), (2, 4, 5)])
def test_bad_shapes(merge, shape):
    with pytest.raises(ValueError, match="lse must be float32 and have the shape of states"):
        merge(torch.zeros(3, 4, 5, 8), torch.zeros(shape))
    with pytest.raises(ValueError, match="lse must be float32"):
        merge(torch.zeros(3, 4, 5, 8), torch.zeros(3, 4, 5, dtype=torch.float64))


def test_opcheck():
    states, lse, _, _ = split_attention(3, 4, 8, torch.float32)
    torch.library.opcheck(OPERATOR, (states, lse))
