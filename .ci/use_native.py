"""Calls each native operator of the installed package and compares it with its reference."""

import torch

import ensemble_kernels
from ensemble_kernels import (
    VocabularyAlignment,
    compact_kv_,
    mix_distributions,
    segment_attention,
    segment_mean,
    sharpen_prefixes,
    token_statistics,
    top_k_union,
)

NATIVE = torch.ops.ensemble_kernels_native


def check(operator, *args, **kwargs):
    name = operator.__name__
    before = NATIVE.calls(name)
    got = operator(*args, **kwargs)
    assert NATIVE.calls(name) == before + 1, f"{name} did not run natively"
    wanted = operator(*args, **kwargs, backend="reference")
    tolerance = 2e-2 if args[0][0].dtype.itemsize == 2 else 1e-4
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


def check_compaction(dtype):
    before = NATIVE.calls("compact_kv_")
    cache = torch.randn(1, 2, 10, 4).to(dtype)
    native, reference, keep = cache.clone(), cache.clone(), torch.tensor([3, 5, 9])
    compact_kv_(native, keep, 2)
    assert NATIVE.calls("compact_kv_") == before + 1, "compact_kv_ did not run natively"
    compact_kv_(reference, keep, 2, backend="reference")
    assert torch.equal(native, reference)


alignment = VocabularyAlignment.from_token_bytes([[b"a", b"ab", b"b"], [b"b", b"a", b"ab"]])
offsets = torch.tensor([0, 2, 5], dtype=torch.int32)
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
    query = torch.randn(1, 4, 5, 16).to(dtype)
    key, value = torch.randn(2, 1, 2, 200, 16).to(dtype)
    check(segment_attention, query, key, value, offsets, return_lse=True)
    logits = [torch.randn(2, 3).to(dtype) for _ in range(2)]
    check(mix_distributions, logits, alignment)
    check(top_k_union, logits, alignment, k=2)
    probabilities = torch.rand(2, alignment.size).to(dtype)
    check(sharpen_prefixes, probabilities, alignment, torch.tensor([[0, 1], [2, -1]]))
    check(token_statistics, torch.randn(3, 9000).to(dtype), torch.tensor([1, 2, 8999]))
    check(segment_mean, torch.randn(7).to(dtype), torch.tensor([0, 3, 7], dtype=torch.int32))
    check_compaction(dtype)
for name, backends in ensemble_kernels.backends().items():
    assert backends["cpu"] is None, (name, backends["cpu"])
try:
    compact_kv_(torch.zeros(1, 1, 4, 2), torch.tensor([4]), 0)
    message = "none"
except ValueError as error:
    message = str(error)
assert "keep[0] must be a slot" in message, message
print(f"torch {torch.__version__}: native operators work with {NATIVE.cpu_isa()}")
