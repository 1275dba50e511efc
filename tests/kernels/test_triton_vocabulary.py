"""What holds for the Triton kernels over vocabularies alone, through Triton's interpreter."""

import pytest
import torch

from ensemble_kernels import (
    VocabularyAlignment,
    _triton,
    mix_distributions,
    segment_mean,
    sharpen_prefixes,
    token_statistics,
    top_k_union,
)

TOKENS = [b"a", b"ab", b"b"]
ALIGNMENT = VocabularyAlignment.from_token_bytes([TOKENS])
IDS = torch.tensor([2, 0, 1])
CALLS = {
    "token_statistics": lambda x: token_statistics(x, IDS),
    "segment_mean": lambda x: segment_mean(x[0], torch.tensor([0, 3], dtype=torch.int32)),
    "mix_distributions": lambda x: mix_distributions([x], ALIGNMENT),
    "sharpen_prefixes": lambda x: sharpen_prefixes(x, ALIGNMENT, IDS[:, None], threshold=0),
    "top_k_union": lambda x: top_k_union([x], ALIGNMENT, k=2),
}
MATRICES = [name for name in CALLS if name != "segment_mean"]


def kernels_of(call, logits):
    _triton.launches.clear()
    call(logits)
    return dict(_triton.launches)


@pytest.mark.parametrize("name", CALLS)
def test_float64_is_refused_by_name(name):
    with pytest.raises(ValueError, match=r"must be of dtype .* backend='triton', got float64"):
        CALLS[name](torch.zeros(3, 3, dtype=torch.float64))


@pytest.mark.parametrize("call", [mix_distributions, top_k_union])
def test_six_models_are_refused_and_five_are_not(call):
    for count in (5, 6):
        alignment = VocabularyAlignment.from_token_bytes([TOKENS] * count)
        logits = [torch.zeros(1, 3)] * count
        if count == 6:
            with pytest.raises(ValueError, match=r"logits must be of at most 5 models .* got 6"):
                call(logits, alignment)
        else:
            assert call(logits, alignment)[0].shape[0] == 1


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("token_statistics", {"chunk_statistics_kernel": 1, "merge_chunks_kernel": 1}),
        ("segment_mean", {"segment_mean_kernel": 1}),
        (
            "mix_distributions",
            {"softmax_chunks_kernel": 1, "mix_chunks_kernel": 1, "normalise_kernel": 1},
        ),
        ("sharpen_prefixes", {"copy_and_sum_kernel": 1, "sharpen_kernel": 1}),
        ("top_k_union", {"chunk_keys_kernel": 1, "candidate_scores_kernel": 1}),
    ],
)
def test_each_kernel_is_launched_once(name, kernels):
    assert kernels_of(CALLS[name], torch.rand(3, 3)) == kernels


def test_launches_do_not_grow_with_the_models():
    alignment = VocabularyAlignment.from_token_bytes([TOKENS] * 3)
    logits = torch.rand(3, 3)
    one = kernels_of(CALLS["mix_distributions"], logits)
    assert kernels_of(lambda x: mix_distributions([x] * 3, alignment), logits) == one


@pytest.mark.parametrize("strides", [(2**30 + 16, 1), (8, 2**30 + 64)], ids=["rows", "columns"])
@pytest.mark.parametrize("name", MATRICES)
def test_offsets_beyond_32_bits(name, strides, monkeypatch):
    """Gigabytes that nobody touches, but for the few elements of the tensor."""
    near = torch.tensor([[0.5, 0.25, 0.0], [0.0, 0.75, 0.25], [0.25, 0.0, 0.5]]).half()
    far = near.new_empty(2 * sum(strides) + 1).as_strided((3, 3), strides)
    far.copy_(near)
    # Without guards, whose copies would touch all of it.
    monkeypatch.setattr(_triton, "run", lambda name, *args, **kw: _launch(name, *args, **kw))
    got, expected = CALLS[name](far), CALLS[name](near)
    for field, other in zip(_tensors(got), _tensors(expected), strict=True):
        assert torch.equal(field, other)


def _launch(name, *args, **kwargs):
    return _triton._launcher(name)(*args, **kwargs)


def _tensors(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


@pytest.mark.parametrize("vocab_size", [4095, 4096, 4097, 8192])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_statistics_do_not_depend_on_the_batch_bitwise(vocab_size, dtype):
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(3, 8200, generator=generator).mul(4).to(dtype)
    ids = torch.tensor([0, vocab_size - 1, 17])
    together = token_statistics(logits, ids, vocab_size=vocab_size)
    for row in range(3):
        one = slice(row, row + 1)
        alone = token_statistics(logits[one].clone(), ids[one], vocab_size=vocab_size)
        for field, own in zip(together, alone, strict=True):
            assert torch.equal(field[one], own)


@pytest.mark.parametrize("mean", ["arithmetic", "geometric"])
def test_mixtures_of_several_chunks_of_logits(mean):
    """More logits than one program holds, and columns with several ids in some chunks of them."""
    tokens = [b"%d" % (i % 4500) for i in range(9000)]
    alignment = VocabularyAlignment.from_token_bytes([tokens, tokens[:5000]])
    logits = [torch.randn(1, 9000).mul(3), torch.randn(1, 5000)]
    got = mix_distributions(logits, alignment, mean=mean)
    expected = mix_distributions(logits, alignment, mean=mean, backend="reference")
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-6)
