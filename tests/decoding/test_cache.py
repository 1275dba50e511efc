"""The segment cache: storage, commit, rollback, and that it is a transformers cache."""

import pytest
import torch

from ensemble_decoding.cache import SegmentCache, cache_argument
from tests.decoding.models_for_tests import ARCHITECTURES

LAYERS, HEADS, DIM = 3, 2, 4


def tagged(start, count):
    """Keys and values of all layers, filled so that each slot says where it belongs."""
    slots = torch.arange(start, start + count, dtype=torch.float64)
    heads = torch.arange(HEADS, dtype=torch.float64)
    tags = 1000 * heads[:, None, None] + slots[:, None] + torch.zeros(DIM, dtype=torch.float64)
    return [(tags[None] + 1e5 * layer, -tags[None] - 1e5 * layer) for layer in range(LAYERS)]


def feed(cache, start, count):
    return [cache.update(k, v, layer) for layer, (k, v) in enumerate(tagged(start, count))]


def assert_holds(cache, slots):
    """Every layer holds exactly the slots with these tags, in this order."""
    expected = [torch.cat(parts, dim=2) for parts in zip(*map(kv, slots), strict=True)]
    kept = cache.storage[..., : cache.length, :]
    assert cache.length == len(slots)
    for layer in range(LAYERS):
        for which in range(2):
            assert torch.equal(kept[which, layer], expected[2 * layer + which])


def kv(slot):
    return [tensor for pair in tagged(slot, 1) for tensor in pair]


def test_update_returns_all_slots_as_views_of_the_storage():
    cache = SegmentCache(LAYERS)
    feed(cache, 0, 5)
    keys, values = feed(cache, 5, 2)[1]
    assert keys.shape == values.shape == (1, HEADS, 7, DIM)
    assert keys.data_ptr() == cache.storage[0, 1].data_ptr()
    assert_holds(cache, range(7))


@pytest.mark.parametrize(
    ("start", "count"), [(0, 0), (0, 3), (0, 9), (3, 0), (1, 4), (2, 7), (8, 1)]
)
def test_commit_keeps_one_run_of_the_staged_slots(start, count):
    cache = SegmentCache(LAYERS)
    feed(cache, 0, 5)
    cache.commit()
    feed(cache, 100, 9)
    cache.commit(start, count)
    assert cache.committed == 5 + count
    assert cache.staged == 0
    assert_holds(cache, [*range(5), *range(100 + start, 100 + start + count)])


@pytest.mark.parametrize(("start", "count"), [(-1, 2), (0, 10), (9, 1), (4, 6), (0, -1)])
def test_commit_outside_of_the_staged_slots_changes_nothing(start, count):
    cache = SegmentCache(LAYERS)
    feed(cache, 0, 5)
    cache.commit()
    feed(cache, 100, 9)
    with pytest.raises(ValueError, match=rf"9 staged slots, got start={start}, count={count}"):
        cache.commit(start, count)
    assert_holds(cache, [*range(5), *range(100, 109)])


def test_rollback_drops_the_staged_slots_and_what_they_left_is_overwritten():
    cache = SegmentCache(LAYERS)
    feed(cache, 0, 5)
    cache.commit()
    feed(cache, 100, 9)
    cache.rollback()
    assert_holds(cache, range(5))
    feed(cache, 5, 2)
    assert_holds(cache, range(7))


def test_a_pass_that_broke_off_between_layers_is_rolled_back():
    cache = SegmentCache(LAYERS)
    feed(cache, 0, 5)
    cache.commit()
    cache.update(*tagged(100, 4)[0], 0)
    assert cache.staged == 4
    cache.rollback()
    feed(cache, 5, 1)
    assert_holds(cache, range(6))


def test_growing_by_doubling_keeps_what_is_there():
    cache = SegmentCache(LAYERS)
    capacities = []
    for start in range(0, 300, 3):
        cache.stage(3)
        feed(cache, start, 3)
        capacities.append(cache.capacity)
    assert_holds(cache, range(300))
    assert len(set(capacities)) <= 5
    assert cache.capacity < 2 * 300


def test_fixed_capacity_keeps_every_address_and_refuses_to_grow():
    cache = SegmentCache(LAYERS, capacity=8, fixed_capacity=True)
    feed(cache, 0, 5)
    address = cache.storage.data_ptr()
    feed(cache, 5, 3)
    assert cache.storage.data_ptr() == address
    assert cache.get_max_length() == cache.capacity == 8
    with pytest.raises(ValueError, match="fixed capacity of 8 slots, 9 were needed"):
        cache.stage(1)


@pytest.mark.parametrize(("crop", "left"), [(0, 7), (-1, 6), (-7, 0)])
def test_crop_takes_what_is_to_be_removed(crop, left):
    cache = SegmentCache(LAYERS)
    feed(cache, 0, 7)
    cache.crop(crop)
    assert_holds(cache, range(left)) if left else None
    assert cache.length == cache.get_seq_length() == left


@pytest.mark.parametrize("crop", [1, -8])
def test_crop_refuses_a_length_and_more_than_there_is(crop):
    cache = SegmentCache(LAYERS)
    feed(cache, 0, 7)
    with pytest.raises(ValueError, match=rf"tokens_to_remove must be from -7 to 0, got {crop}"):
        cache.crop(crop)
    assert_holds(cache, range(7))


def test_truncate_cuts_the_committed_part():
    cache = SegmentCache(LAYERS)
    feed(cache, 0, 7)
    cache.commit()
    feed(cache, 7, 2)
    cache.truncate(4)
    assert_holds(cache, range(4))
    with pytest.raises(ValueError, match="length must be from 0 to 4, got 5"):
        cache.truncate(5)


def test_layers_of_unequal_shape_are_refused():
    cache = SegmentCache(LAYERS)
    cache.update(*tagged(0, 2)[0], 0)
    wide = torch.zeros(1, HEADS, 2, DIM + 1, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"one shape.* in layer 1"):
        cache.update(wide, wide, 1)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_generate_with_this_cache_equals_generate_with_transformers_own(architecture):
    model = ARCHITECTURES[architecture](60)
    ids = torch.arange(1, 30)[None]
    options = {"max_new_tokens": 20, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    ours = SegmentCache(model.config.num_hidden_layers)
    expected = model.generate(ids, **options)
    got = model.generate(ids, **options, **{cache_argument(model): ours})
    assert torch.equal(got, expected)
    assert ours.length == expected.shape[1] - 1


def test_a_cache_without_layers_or_a_fixed_one_without_slots_is_refused():
    with pytest.raises(ValueError, match="num_layers must be at least 1, got 0"):
        SegmentCache(0)
    with pytest.raises(ValueError, match="capacity must be at least 1 with fixed_capacity, got 0"):
        SegmentCache(2, fixed_capacity=True)
