import math
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from ensemble_kernels import segment_attention
from ensemble_kernels.segment_attention import reference

from .attention_strategies import DTYPES, assert_close, cases, eager, int32, pack
from .lane import examples
from .oracles.segment_attention import visible_slots

# Against the oracle


@given(cases(), st.sampled_from([0, 3, 512]))
@settings(max_examples=examples(200), deadline=None)
def test_equals_the_loops(case, near_slots):
    """Long prefixes, at toy sizes: with few near slots the prefix is a part of its own."""
    with patch.object(reference, "_NEAR_SLOTS", near_slots):
        actual = segment_attention(*case.arguments, return_lse=True, **case.options)
    assert actual[0].dtype == case.query.dtype
    assert actual[1].dtype == torch.float32
    assert_close(actual, case.expected(), case)


@given(cases())
@settings(max_examples=examples(100), deadline=None)
def test_by_positions_equals_the_loops(case):
    """The way of devices whose lengths cannot be read back."""
    rows, slots = case.query.shape[2], case.key.shape[2]
    lengths = [slots - rows] * len(case.prefixes), case.starts or [0] * len(case.prefixes)
    if case.prefix_mode != "none":
        lengths = int32(case.prefixes), lengths[1]
    if case.starts:
        lengths = lengths[0], int32(case.starts)
    parts = [
        reference._attend_positions(
            *(case.query[b], case.key[b], case.value[b]),
            *(int32(case.offsets[b]), lengths[0][b], lengths[1][b]),
            *(case.query.shape[-1] ** -0.5, case.window, case.softcap),
        )
        for b in range(len(case.prefixes))
    ]
    assert_close(reference._assemble(case.query, parts), case.expected(), case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("query_heads", "key_heads"), [(1, 1), (4, 2), (8, 2), (7, 1), (8, 1), (9, 3)]
)
@pytest.mark.parametrize("size", [32, 64, 72, 80, 96, 128, 256])
def test_head_sizes_and_groups(size, query_heads, key_heads, dtype):
    prefix = 600 if size == 64 else 70
    arguments = pack([5, 1, 9], prefix, query_heads, key_heads, size, dtype)
    visible = torch.zeros(1, 15, prefix + 15, dtype=torch.bool)
    for row in range(15):
        visible[0, row, visible_slots(row, arguments[3].tolist(), prefix, None, 0)] = True
    exact = eager(*(t.double() for t in arguments[:3]), visible)
    same_dtype = eager(*arguments[:3], visible)
    actual = segment_attention(*arguments, return_lse=True)
    for got, theirs, expected in zip(actual, same_dtype, exact, strict=True):
        error = (got.double() - expected).abs().max()
        assert error <= 2 * (theirs.double() - expected).abs().max() + 2e-5


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.integers(0, 40),
    st.none() | st.integers(1, 50),
    st.integers(0, 12),
)
@settings(max_examples=examples(100), deadline=None)
def test_rows_see_the_right_slots(lengths, prefix, window, first):
    """Equal scores and one-hot values: the output shows which slots were seen."""
    rows = sum(lengths)
    prefix = max(prefix, 1 - rows)
    slots = prefix + rows
    offsets = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    query, key = torch.zeros(1, 1, rows, slots), torch.zeros(1, 1, slots, slots)
    value = torch.eye(slots)[None, None]
    out = segment_attention(
        *(query, key, value, int32(offsets)),
        window=window,
        key_start=int32([first]),
    )
    for row in range(rows):
        seen = visible_slots(row, offsets, prefix, window, first)
        assert out[0, 0, row].nonzero()[:, 0].tolist() == sorted(seen)


def test_few_queries_align_to_the_last_keys():
    query, key = torch.zeros(1, 1, 2, 6), torch.zeros(1, 1, 6, 6)
    out = segment_attention(query, key, torch.eye(6)[None, None], int32([0, 2]))
    assert (out[0, 0] > 0).sum(-1).tolist() == [5, 6]


# Laws


@pytest.mark.parametrize("prefix", [0, 7, 600])
@pytest.mark.parametrize("window", [None, 6, 590])
def test_equals_one_pass_per_segment(prefix, window):
    lengths = [3, 1, 0, 12]
    query, key, value, offsets = pack(lengths, prefix)
    out = segment_attention(query, key, value, offsets, window=window)
    for begin, end in offsets.unfold(0, 2, 1).tolist():
        own = [*range(prefix), *range(prefix + begin, prefix + end)]
        length = end - begin
        position = torch.arange(prefix + length)
        distance = position[prefix:, None] - position
        mask = (distance >= 0) & (distance < (window or 1000))
        alone = scaled_dot_product_attention(
            query[:, :, begin:end], key[:, :, own], value[:, :, own], mask, enable_gqa=True
        )
        torch.testing.assert_close(out[:, :, begin:end], alone)


@given(st.permutations(range(4)), st.none() | st.integers(1, 12))
@settings(max_examples=examples(20), deadline=None)
def test_the_order_of_candidates_changes_nothing(order, window):
    lengths, prefix = [3, 1, 5, 2], 7
    query, key, value, offsets = pack(lengths, prefix)
    out = segment_attention(query, key, value, offsets, window=window)
    bounds = offsets.unfold(0, 2, 1).tolist()
    rows = [row for s in order for row in range(*bounds[s])]
    slots = [*range(prefix), *(prefix + row for row in rows)]
    permuted = int32([0, *torch.tensor([lengths[s] for s in order]).cumsum(0).tolist()])
    again = segment_attention(
        query[:, :, rows], key[:, :, slots], value[:, :, slots], permuted, window=window
    )
    torch.testing.assert_close(again, out[:, :, rows])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_a_further_candidate_leaves_the_others_as_they_were(dtype, window, garbage):
    query, key, value, offsets = pack([3, 2, 4], dtype=dtype)
    alone = segment_attention(
        *(query[:, :, :5], key[:, :, :12], value[:, :, :12], offsets[:-1]), window=window
    )
    for states_of_last in (key[:, :, 12:], value[:, :, 12:], query[:, :, 5:]):
        states_of_last[..., 0] = garbage
    out = segment_attention(query, key, value, offsets, window=window)
    tolerance = 1e-10 if dtype == torch.float64 else 2e-5
    if dtype in (torch.float16, torch.bfloat16):
        tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(out[:, :, :5], alone, rtol=tolerance, atol=tolerance)
    assert not out[:, :, 5:].isfinite().any()


def test_a_window_beyond_all_is_none():
    arguments = pack([3, 5])
    for window in (12, 13, 1000):
        torch.testing.assert_close(
            segment_attention(*arguments, window=window), segment_attention(*arguments)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_merge_by_their_lse(dtype):
    """The LSE is natural: two halves of the prefix merge to the whole."""
    query, key, value, offsets = pack([6], 20, dtype=dtype)
    whole, lse = segment_attention(query, key, value, offsets, return_lse=True)
    upper, upper_lse = segment_attention(
        query, key[:, :, 15:], value[:, :, 15:], offsets, return_lse=True
    )
    scores = (query.float() @ key[:, :, :15].float().repeat_interleave(2, 1).mT) * 8**-0.5
    lower_lse = scores.logsumexp(-1)
    lower = scores.softmax(-1) @ value[:, :, :15].float().repeat_interleave(2, 1)
    merged_lse = torch.logaddexp(lower_lse, upper_lse)
    share = (upper_lse - merged_lse).exp()[..., None]
    tolerance = (
        {"rtol": 2e-5, "atol": 2e-5} if dtype == torch.float32 else {"rtol": 0, "atol": 0.05}
    )
    torch.testing.assert_close(merged_lse, lse, **tolerance)
    torch.testing.assert_close(
        upper.float() * share + lower * (1 - share), whole.float(), **tolerance
    )
