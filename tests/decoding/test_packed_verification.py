"""One packed pass over several candidates against one plain pass for each of them.

The oracle is the model itself: its own forward pass over prefix and candidate, without a cache,
with transformers' own attention.
"""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble_decoding.attention import no_mask
from ensemble_decoding.attention_switch import NAME, segment_attention_active
from ensemble_decoding.cache import SegmentCache, cache_argument
from tests.decoding.models_for_tests import ARCHITECTURES, WINDOW

VOCABULARY = 60
PREFIXES = (1, WINDOW - 3, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW)
MODELS = {name: make(VOCABULARY) for name, make in ARCHITECTURES.items()}


def tokens(count, seed):
    return torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def plain_logits(model, ids):
    return model(ids[None], use_cache=False).logits[0]


@torch.no_grad()
def prefilled(model, prefix):
    cache = SegmentCache(model.config.num_hidden_layers)
    model(prefix[None], use_cache=True, **{cache_argument(model): cache})
    cache.commit()
    return cache


@torch.no_grad()
def packed_logits(model, cache, candidates):
    """`[T, V]` logits of all candidates in one pass behind the cache's committed part."""
    lengths = [len(candidate) for candidate in candidates]
    positions = torch.cat([torch.arange(length) for length in lengths]) + cache.committed
    with segment_attention_active(model):
        return model(
            torch.cat(candidates)[None],
            position_ids=positions[None],
            attention_mask=no_mask(model.device),
            segment_offsets=torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32),
            use_cache=True,
            **{cache_argument(model): cache},
        ).logits[0]


def assert_packed_equals_plain(model, prefix, candidates, tolerance):
    packed = packed_logits(model, prefilled(model, prefix), candidates)
    start = 0
    for candidate in candidates:
        plain = plain_logits(model, torch.cat([prefix, candidate]))[len(prefix) :]
        torch.testing.assert_close(
            packed[start : start + len(candidate)], plain, rtol=0, atol=tolerance
        )
        start += len(candidate)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_packed_equals_separate_in_float64(architecture, prefix):
    candidates = [tokens(length, length) for length in (5, 3, 8, 1, 6)]
    assert_packed_equals_plain(MODELS[architecture], tokens(prefix, 99), candidates, 1e-10)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_packed_equals_separate_in_float32(architecture):
    model = ARCHITECTURES[architecture](VOCABULARY, dtype=torch.float32)
    candidates = [tokens(length, length) for length in (5, 3, 8, 1, 6)]
    for prefix in PREFIXES:
        # Half of what a cached and an uncached pass of the model itself may differ by.
        assert_packed_equals_plain(model, tokens(prefix, 99), candidates, 2e-4)


@settings(max_examples=40, deadline=None)
@given(
    architecture=st.sampled_from(sorted(ARCHITECTURES)),
    prefix=st.integers(1, 3 * WINDOW),
    lengths=st.lists(st.integers(0, 2 * WINDOW), min_size=1, max_size=5).filter(any),
    seed=st.integers(0, 1000),
)
def test_packed_equals_separate_for_any_lengths(architecture, prefix, lengths, seed):
    candidates = [tokens(length, seed + i) for i, length in enumerate(lengths)]
    assert_packed_equals_plain(MODELS[architecture], tokens(prefix, seed), candidates, 1e-10)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_order_of_the_candidates_changes_nothing(architecture):
    model, prefix = MODELS[architecture], tokens(2 * WINDOW, 7)
    candidates = [tokens(length, length) for length in (4, 9, 1)]
    rows = {}
    for order in itertools.permutations(range(3)):
        packed = packed_logits(model, prefilled(model, prefix), [candidates[i] for i in order])
        parts = packed.split([len(candidates[i]) for i in order])
        for i, part in zip(order, parts, strict=True):
            torch.testing.assert_close(part, rows.setdefault(i, part), rtol=0, atol=1e-10)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_later_token_never_changes_earlier_logits(architecture):
    model, prefix = MODELS[architecture], tokens(20, 7)
    candidates = [tokens(6, 1), tokens(6, 2)]
    before = packed_logits(model, prefilled(model, prefix), candidates)
    for row in range(12):
        changed = torch.cat(candidates).clone()
        changed[row] = (changed[row] + 1) % VOCABULARY
        after = packed_logits(model, prefilled(model, prefix), list(changed.split(6)))
        own = slice(row, 6 * (row // 6) + 6)
        untouched = torch.ones(12, dtype=torch.bool)
        untouched[own] = False
        torch.testing.assert_close(after[untouched], before[untouched], rtol=0, atol=1e-12)
        assert (after[row] - before[row]).abs().max() > 1e-3


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_lies_behind_the_committed_part_changes_nothing(architecture):
    model, prefix = MODELS[architecture], tokens(2 * WINDOW, 7)
    candidates = [tokens(5, 1), tokens(2, 2)]
    expected = packed_logits(model, prefilled(model, prefix), candidates)
    cache = prefilled(model, prefix)
    packed_logits(model, cache, [tokens(9, 3)])
    cache.rollback()
    cache.storage[..., cache.committed :, :] = torch.nan
    assert torch.equal(packed_logits(model, cache, candidates), expected)


@pytest.mark.parametrize("winner", [0, 1, 2])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_committed_winner_leaves_the_cache_of_a_fresh_prefill(architecture, winner):
    model, prefix = MODELS[architecture], tokens(WINDOW - 2, 7)
    candidates = [tokens(length, length) for length in (4, 7, 3)]
    cache = prefilled(model, prefix)
    packed_logits(model, cache, candidates)
    start = sum(len(c) for c in candidates[:winner])
    cache.commit(start, len(candidates[winner]))
    fresh = prefilled(model, torch.cat([prefix, candidates[winner]]))
    torch.testing.assert_close(
        cache.storage[..., : cache.length, :],
        fresh.storage[..., : fresh.length, :],
        rtol=0,
        atol=1e-10,
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_ordinary_calls_of_a_switched_model_stay_causal_padded_and_windowed(architecture):
    model = MODELS[architecture]
    ids = torch.stack([tokens(2 * WINDOW, 1), tokens(2 * WINDOW, 2)])
    padding = torch.ones_like(ids)
    padding[0, :5] = 0
    before = model.config._attn_implementation
    with torch.no_grad():
        expected = model(ids, attention_mask=padding).logits
        with segment_attention_active(model):
            assert model.config._attn_implementation == NAME
            got = model(ids, attention_mask=padding).logits
            changed = ids.clone()
            changed[:, -1] = (changed[:, -1] + 1) % VOCABULARY
            causal = model(changed, attention_mask=padding).logits
    assert model.config._attn_implementation == before
    assert torch.equal(got, expected)
    assert torch.equal(causal[:, :-1], expected[:, :-1])


def test_the_attention_goes_back_to_what_it_was_when_a_run_breaks_off():
    model = MODELS["llama"]
    model.set_attn_implementation("eager")
    with pytest.raises(KeyboardInterrupt), segment_attention_active(model):
        raise KeyboardInterrupt
    assert model.config._attn_implementation == "eager"
    model.set_attn_implementation("sdpa")
