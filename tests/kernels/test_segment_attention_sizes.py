"""Sizes at which a kernel works in blocks, splits and groups, against PyTorch in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble_kernels import segment_attention

from .attention_strategies import DTYPES, WIDEST, eager, int32
from .lane import INTERPRETED, examples, few
from .layouts import relayout

SPOILED = (torch.nan, torch.inf)


def visible_slots(lengths, prefix, window, first, slots):
    """`[T, S]` bool."""
    start = torch.cat([torch.full((n,), sum(lengths[:i])) for i, n in enumerate(lengths)])
    row, slot = torch.arange(sum(lengths))[:, None], torch.arange(slots)[None]
    own = slot - prefix
    start = start[:, None]
    visible = (own < 0) | ((own >= start) & (own <= row))
    if window is not None:
        visible &= row - start - torch.where(own < 0, own, own - start) < window
    return visible & (slot >= first)


@st.composite
def large_cases(draw):
    """Packs whose rows, keys and prefixes lie around the sizes that a kernel works in."""
    group, key_heads = draw(st.sampled_from([(1, 2), (2, 1), (3, 2), (4, 1), (7, 1), (8, 1)]))
    size = draw(st.sampled_from([1, 8, 33, 64, 80, 128]))
    prefixes = [0, 1, 95, 96, 97, 128, 191, 193, 320, 513, 800, 1281]
    prefix = draw(st.sampled_from(few(prefixes, [0, 1, 31, 32, 33, 97, 513])))
    longest = draw(st.sampled_from(few([1, 6, 16, 40, 110, 300], [1, 6, 16, 40]))) // group + 1
    lengths = draw(st.lists(st.integers(0, longest), min_size=1, max_size=4))
    window = draw(st.none() | st.sampled_from([1, 7, 96, 100, prefix + 1, prefix + 40]))
    first = draw(st.sampled_from([0, 0, 1, prefix // 2, prefix + 2]))
    dtype = draw(st.sampled_from(DTYPES))
    layout = draw(st.sampled_from(["contiguous", "sliced", "offset", "transposed", "every other"]))
    softcap = draw(st.sampled_from([None, None, 3.0]))
    spoil = draw(st.none() | st.tuples(st.sampled_from(SPOILED), st.floats(0, 0.999)))
    seed = draw(st.integers(0, 2**20))
    generator = torch.Generator().manual_seed(seed)
    rows = sum(lengths)
    query, key, value = (
        relayout(torch.randn(1, heads, n, size, generator=generator).to(dtype), layout)
        for heads, n in (
            (key_heads * group, rows),
            (key_heads, prefix + rows),
            (key_heads, prefix + rows),
        )
    )
    return query, key, value, lengths, prefix, window, first, softcap, spoil


def exact(query, key, value, visible, softcap):
    """In float64; a row is NaN where it sees a value that is not finite."""
    finite = value.isfinite()
    out, lse = eager(*(t.double() for t in (query, key, value.where(finite, 0))), visible, softcap)
    group = query.shape[1] // key.shape[1]
    sees = visible[:, None].double() @ (~finite).double().repeat_interleave(group, 1) > 0
    return out.masked_fill(sees, torch.nan), lse


@given(large_cases())
@settings(max_examples=examples(150), deadline=None)
def test_equals_float64(case):
    query, key, value, lengths, prefix, window, first, softcap, spoil = case
    visible = visible_slots(lengths, prefix, window, first, key.shape[2])[None]
    if spoil is not None and value.shape[2]:
        value[:, :, int(spoil[1] * value.shape[2]), -1] = spoil[0]
    offsets = int32([0, *torch.tensor(lengths).cumsum(0).tolist()])
    out, lse = segment_attention(
        *(query, key, value, offsets),
        key_start=int32([first]),
        window=window,
        softcap=softcap,
        return_lse=True,
    )
    expected, expected_lse = exact(query, key, value, visible, softcap)
    broken = expected.isnan()
    assert torch.equal(out.isfinite(), ~broken)
    theirs, their_lse = eager(query, key, value.nan_to_num(0, 0, 0), visible, softcap)
    eps = torch.finfo(query.dtype).eps
    for got, same_dtype, wanted in ((out, theirs, expected), (lse, their_lse, expected_lse)):
        # One rounding of the output, and the LSE comes in float32 whatever the dtype.
        slack = max(eps / 2, 2e-6 if got is out else 2e-5)
        real = wanted.isfinite()
        assert torch.equal(got == -torch.inf, wanted == -torch.inf)
        if real.any():
            error, their_error = ((t.double() - wanted)[real].abs() for t in (got, same_dtype))
            assert error.max() <= 2 * their_error.max() + slack * (1 + wanted[real].abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, *few([WIDEST], [])])
@pytest.mark.parametrize("window", [None, 300])
def test_neither_threads_nor_the_batch_change_a_bit(dtype, window):
    generator = torch.Generator().manual_seed(3)
    prefix, lengths = few((700, [40, 90, 3]), (40, [4, 9, 3]))
    offsets = int32([0, *torch.tensor(lengths).cumsum(0).tolist()])
    query = torch.randn(3, 6, sum(lengths), 64, generator=generator).to(dtype)
    key, value = torch.randn(2, 3, 2, prefix + sum(lengths), 64, generator=generator).to(dtype)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(segment_attention(query, key, value, offsets, window=window))
        alone = segment_attention(query[1:2], key[1:2], value[1:2], offsets, window=window)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    torch.testing.assert_close(results[0][1:2], alone, rtol=1e-2, atol=1e-2)


def test_threads_of_python_may_call_at_the_same_time():
    if INTERPRETED:
        return  # Triton's interpreter is of one thread
    from concurrent.futures import ThreadPoolExecutor

    generator = torch.Generator().manual_seed(4)
    calls = []
    for prefix in (0, 100, 900):
        key, value = torch.randn(2, 1, 2, prefix + 30, 16, generator=generator)
        calls.append((torch.randn(1, 4, 30, 16, generator=generator), key, value))
    offsets = int32([0, 11, 30])
    expected = [segment_attention(*call, offsets) for call in calls]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(20):
            results = pool.map(lambda call: segment_attention(*call, offsets), calls)
            for got, wanted in zip(results, expected, strict=True):
                torch.testing.assert_close(got, wanted)
