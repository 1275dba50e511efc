"""What the CUDA operators make of contents that nobody has checked, and of what is too much for
them; on the emulator."""

from functools import partial

import pytest
import torch

from ensemble_kernels import VocabularyAlignment, _cuda, mix_distributions, top_k_union
from ensemble_kernels.vocabulary_mixture import api

from . import emulated

pytestmark = pytest.mark.skipif(not emulated.AVAILABLE, reason="the emulator is for x86-64 Linux")


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    monkeypatch.delenv("ENSEMBLE_KERNELS_DEBUG", raising=False)


@pytest.mark.parametrize("keep", [[100], [-5], [2, 8, 9], [0]])
def test_slots_that_are_not_there_or_to_the_left_move_nothing(keep):
    cache = torch.arange(2 * 8 * 3.0).view(2, 8, 3)
    expected = cache.clone()
    if keep[0] == 2:
        expected[:, 1] = cache[:, 2]
    emulated.call("compact_kv_", cache, torch.tensor(keep), torch.tensor(1))
    assert torch.equal(cache, expected)


def test_a_destination_before_the_cache_is_none():
    cache = torch.arange(8.0).view(8, 1)
    emulated.call("compact_kv_", cache, torch.tensor([4, 5]), torch.tensor(-1))
    assert cache[:, 0].tolist() == [5, 1, 2, 3, 4, 5, 6, 7]


def test_an_id_that_is_not_there_has_no_probability():
    logits = torch.zeros(3, 4)
    ids = torch.tensor([4, -1, 2])
    fields = emulated.call("token_statistics", logits, ids, vocab_size=4, temperature=1.0)
    assert fields[0].isnan().tolist() == [True, True, False]
    assert not any(field.isnan().any() for field in fields[1:])


def test_a_column_that_is_not_there_is_no_candidate():
    probabilities = torch.full((1, 5), 0.2)
    prefix_end = torch.tensor([5, 2, 3, 4, 5], dtype=torch.int32)
    columns = torch.tensor([[5, -2, 2**40, 0]])
    sharpened = emulated.call("sharpen_prefixes", probabilities, prefix_end, columns, 0.1)
    assert sharpened[0].tolist() == pytest.approx([1.0, 0.2, 0.2, 0.2, 0.2])


def maps(count, size):
    offsets = [torch.arange(size + 1, dtype=torch.int32) for _ in range(count)]
    return offsets, [torch.arange(size, dtype=torch.int32) for _ in range(count)]


def test_offsets_behind_the_ids_reach_no_further():
    offsets, ids = maps(1, 3)
    offsets[0][-1] = 1000
    arguments = [torch.zeros(1, 3)], offsets, ids, torch.ones(1), torch.ones(1), False
    mixed = emulated.call("mix_distributions", *arguments)[0]
    assert mixed[0].tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("count", [16, 17])
def test_a_launch_is_told_of_16_models(count):
    logits = [torch.full((2, 3), float(m)) for m in range(count)]
    arguments = logits, *maps(count, 3), torch.ones(count), torch.ones(count), True
    if count == 16:
        mixed = emulated.call("mix_distributions", *arguments)[0]
        torch.testing.assert_close(mixed, torch.full((2, 3), 1 / 3))
    else:
        with pytest.raises(ValueError, match="at most 16 models for backend='cuda', got 17"):
            emulated.call("mix_distributions", *arguments)


@pytest.fixture
def only_cuda(monkeypatch):
    """What the dispatcher calls for tensors on a GPU, called for those on the CPU."""
    monkeypatch.setattr(_cuda, "DEVICE_TYPES", ("cpu",))
    for name in ("mix_distributions", "top_k_union"):
        monkeypatch.setattr(api, f"_{name}", partial(emulated.call, name))


@pytest.mark.parametrize("count", [16, 17])
@pytest.mark.usefixtures("only_cuda")
def test_more_models_than_that_are_served_by_others(count):
    alignment = VocabularyAlignment.from_token_bytes([[b"a", b"b", b"c"]] * count)
    logits = [torch.randn(2, 3, generator=torch.Generator().manual_seed(m)) for m in range(count)]
    expected = torch.stack(logits).softmax(-1).mean(0)
    mixed = mix_distributions(logits, alignment)
    torch.testing.assert_close(mixed.probabilities, expected)
    united = top_k_union(logits, alignment, k=3)
    assert united.columns[:, :3].tolist() == [[0, 1, 2]] * 2
    torch.testing.assert_close(united.probabilities[:, :3], expected)


@pytest.mark.usefixtures("only_cuda")
def test_more_models_than_that_compile():
    alignment = VocabularyAlignment.from_token_bytes([[b"a", b"b", b"c"]] * 17)
    logits = [torch.full((1, 3), float(m)) for m in range(17)]
    compiled = torch.compile(mix_distributions, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(logits, alignment), mix_distributions(logits, alignment))


@pytest.mark.parametrize("leading", [8, 9])
def test_a_launch_is_told_of_8_leading_dimensions(leading):
    cache = torch.zeros([3] * leading + [2, 1])[(slice(None, None, 2),) * leading]
    cache[..., 1, :] = 1
    if leading == 8:
        emulated.call("compact_kv_", cache, torch.tensor([1]), torch.tensor(0))
        assert cache.min() == 1
    else:
        with pytest.raises(ValueError, match="at most 8 leading dimensions"):
            emulated.call("compact_kv_", cache, torch.tensor([1]), torch.tensor(0))
