"""What the Triton kernels promise beyond the others: no row's bits depend on its neighbours."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

from ensemble_kernels import _triton, segment_attention
from ensemble_kernels.segment_attention import triton_kernel

from .attention_strategies import int32, pack, states

PREFIX = 70


@pytest.fixture(autouse=True)
def products_of_rows(monkeypatch):
    """As on a GPU, a row of a matrix product does not depend on where it stands: BLAS, by which
    the interpreter multiplies, adds up the rows at the edge in another order."""

    def product(left, right, dtype):
        return np.stack([row @ right for row in np.ascontiguousarray(left)]).astype(dtype)

    monkeypatch.setattr(interpreter, "np", SimpleNamespace(**{**vars(np), "matmul": product}))


def part(arguments, prefix, begin, end):
    """Segment `begin..end` of a pack, alone behind the prefix."""
    query, key, value, _ = arguments
    slots = [*range(prefix), *range(prefix + begin, prefix + end)]
    rows = query[:, :, begin:end]
    return rows, key[:, :, slots], value[:, :, slots], int32([0, end - begin])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 20])
def test_a_candidate_alone_has_the_same_bits(window, dtype, monkeypatch):
    monkeypatch.setattr(triton_kernel, "SPLIT", 32)
    lengths = [3, 9, 0, 20]
    arguments = pack(lengths, PREFIX, 3, 1, 64, dtype)
    out, lse = segment_attention(*arguments, window=window, return_lse=True)
    for begin, end in arguments[3].unfold(0, 2, 1).tolist():
        if begin < end:
            alone = segment_attention(
                *part(arguments, PREFIX, begin, end), window=window, return_lse=True
            )
            assert torch.equal(alone[0], out[:, :, begin:end])
            assert torch.equal(alone[1], lse[:, :, begin:end])


@pytest.mark.parametrize("window", [None, 40])
def test_batch_rows_and_capacity_change_no_bit(window, monkeypatch):
    """A captured graph has one capacity for all lengths."""
    monkeypatch.setattr(triton_kernel, "SPLIT", 32)
    query, cache = states(3, 4, 9, 32, dtype=torch.float32), states(2, 3, 2, 130, 32).float()
    offsets, prefixes, starts = int32([0, 4, 8]), int32([70, 0, 110]), int32([3, 0, 60])
    options = {"window": window, "return_lse": True}
    whole = segment_attention(
        *(query, cache[0], cache[1], offsets),
        prefix_length=prefixes,
        key_start=starts,
        **options,
    )
    assert whole[0].isfinite().all()
    for b, prefix in enumerate(prefixes.tolist()):
        row = slice(b, b + 1)
        exactly = cache[:, row, :, : prefix + 9]
        alone = segment_attention(
            *(query[row], exactly[0], exactly[1], offsets), key_start=starts[row], **options
        )
        assert torch.equal(alone[0], whole[0][row])
        assert torch.equal(alone[1], whole[1][row])


def test_one_launch_where_there_is_no_prefix():
    before = _triton.launches.copy()
    segment_attention(*pack([3, 2], 0))
    assert _triton.launches - before == {"segment_kernel": 1}
    segment_attention(*pack([3, 2], 1))
    assert _triton.launches - before == {"segment_kernel": 2, "prefix_kernel": 1}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (torch.float64, "float32, float16, bfloat16 for Triton, got float64"),
        (264, "D of at most 256 for Triton, got 264"),
    ],
)
def test_what_it_leaves_to_the_reference_is_named(query, message):
    size, dtype = (8, query) if isinstance(query, torch.dtype) else (query, torch.float32)
    with pytest.raises(ValueError, match=message):
        segment_attention(*pack([2], size=size, dtype=dtype), backend="triton")
