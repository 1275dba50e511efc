"""What every registered operator keeps, whichever there are: the dispatcher says which."""

import copy
import importlib
import pkgutil
import subprocess
import sys

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import ensemble_kernels
from ensemble_kernels import _dispatch

from . import samples as samples_package

REGISTERED = sorted(
    name.partition("::")[2].partition(".")[0]
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("ensemble_kernels::")
)
SAMPLES = {
    operator: inputs
    for module in pkgutil.iter_modules(samples_package.__path__, samples_package.__name__ + ".")
    for operator, inputs in importlib.import_module(module.name).samples().items()
}
EACH = [
    pytest.param(name, index, id=f"{name}-{index}")
    for name in REGISTERED
    for index in range(len(SAMPLES.get(name, ())))
]


def sample(name, index):
    """The operator, and inputs that may be written to: deepcopy keeps strides and storages."""
    args, kwargs = copy.deepcopy(SAMPLES[name][index])
    return getattr(torch.ops.ensemble_kernels, name).default, args, kwargs


def test_every_operator_has_samples():
    assert sorted(SAMPLES) == REGISTERED
    assert all(SAMPLES.values())


@pytest.mark.parametrize(("name", "index"), EACH)
def test_opcheck(name, index):
    operator, args, kwargs = sample(name, index)
    torch.library.opcheck(operator, args, kwargs)


def as_negated_views(operator, args):
    """The same values, where they are only read."""

    def negated(value):
        if isinstance(value, list):
            return [negated(item) for item in value]
        return torch._neg_view(-value) if isinstance(value, torch.Tensor) else value

    pairs = zip(operator._schema.arguments[: len(args)], args, strict=True)
    return [arg if formal.is_write else negated(arg) for formal, arg in pairs]


def check_negated_views(operator, args, kwargs):
    views = as_negated_views(operator, copy.deepcopy(args))
    expected, actual = operator(*args, **kwargs), operator(*views, **kwargs)
    torch.testing.assert_close((actual, views), (expected, args), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("name", "index"), EACH)
def test_negated_views_are_read_as_what_they_show(name, index):
    check_negated_views(*sample(name, index))


@pytest.mark.parametrize("name", REGISTERED)
def test_compiles_with_inductor(name):
    operator, args, kwargs = sample(name, 0)
    fresh = copy.deepcopy(args)
    compiled = torch.compile(operator, fullgraph=True)
    expected, actual = operator(*args, **kwargs), compiled(*fresh, **kwargs)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(fresh, args, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", REGISTERED)
def test_backends_are_named_with_reasons(name):
    available = ensemble_kernels.backends()[name]
    assert set(available) == {"reference", "cpu", "triton", "cuda"}
    assert available["reference"] is None
    assert all(reason is None or reason for reason in available.values())


def test_backends_are_those_of_the_operators():
    assert sorted(ensemble_kernels.backends()) == REGISTERED


# New lengths and weights do not compile again


def attention_inputs(prefix, offsets, slots):
    generator = torch.Generator().manual_seed(prefix)
    rows = 6
    query = torch.randn(1, 4, rows, 8, generator=generator)
    key, value = torch.randn(2, 1, 2, slots, 8, generator=generator)
    return query, key, value, torch.tensor(offsets, dtype=torch.int32)


def test_segment_attention_compiles_once_for_lengths_on_the_device():
    def attend(query, key, value, offsets, prefix_length):
        return ensemble_kernels.segment_attention(
            query, key, value, offsets, prefix_length=prefix_length, return_lse=True
        )

    counter = CompileCounter()
    compiled = torch.compile(attend, backend=counter, fullgraph=True)
    for prefix, offsets in ((3, [0, 2, 6]), (11, [0, 6, 6]), (0, [0, 1, 4])):
        inputs = *attention_inputs(prefix, offsets, 20), torch.tensor([prefix], dtype=torch.int32)
        torch.testing.assert_close(compiled(*inputs), attend(*inputs))
    assert counter.frame_count == 1


def test_segment_attention_compiles_once_for_growing_caches():
    def attend(query, key, value, offsets, prefix):
        return ensemble_kernels.segment_attention(query, key, value, offsets, prefix_length=prefix)

    counter = CompileCounter()
    compiled = torch.compile(attend, backend=counter, fullgraph=True, dynamic=True)
    for prefix in (3, 7, 12):
        inputs = *attention_inputs(prefix, [0, 2, 6], prefix + 9), prefix
        torch.testing.assert_close(compiled(*inputs), attend(*inputs))
    assert counter.frame_count == 1


def test_mix_distributions_compiles_once_for_weights():
    alignment = ensemble_kernels.VocabularyAlignment.from_token_bytes(
        [[b"a", b"b", b"c"], [b"c", b"b"]]
    )
    logits = [torch.randn(2, 3), torch.randn(2, 2)]

    def mix(logits, weights, temperature):
        return ensemble_kernels.mix_distributions(
            logits, alignment, weights=weights, temperature=temperature
        )

    counter = CompileCounter()
    compiled = torch.compile(mix, backend=counter, fullgraph=True)
    for first in (0.5, 0.2, 0.9):
        inputs = logits, torch.tensor([first, 1 - first]), torch.tensor([first, 1.0])
        torch.testing.assert_close(compiled(*inputs), mix(*inputs))
    assert counter.frame_count == 1


def test_compact_kv_compiles_once_for_slots():
    counter = CompileCounter()
    compiled = torch.compile(ensemble_kernels.compact_kv_, backend=counter, fullgraph=True)
    for keep, start in (([3, 4], 2), ([5, 7], 1), ([1, 2], 0)):
        cache, expected = torch.arange(16.0).view(8, 2), torch.arange(16.0).view(8, 2)
        compiled(cache, torch.tensor(keep), torch.tensor(start))
        ensemble_kernels.compact_kv_(expected, torch.tensor(keep), start)
        assert torch.equal(cache, expected)
    assert counter.frame_count == 1


# Import


def test_import_takes_torch_alone_and_makes_no_cuda_context():
    program = """
import sys, torch
before = {name.partition(".")[0] for name in sys.modules}
import ensemble_kernels
after = {name.partition(".")[0] for name in sys.modules}
new = after - before - set(sys.stdlib_module_names)
assert new == {"ensemble_kernels"}, new
assert "transformers" not in after
assert "triton" not in after
assert not torch.cuda.is_initialized()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_back_end_of_the_environment_that_does_not_exist_is_named(monkeypatch):
    monkeypatch.setattr(_dispatch, "default_backend", "rocm")
    message = "ENSEMBLE_KERNELS_BACKEND must be unset or one of .*, got 'rocm'"
    with pytest.raises(ValueError, match=message):
        ensemble_kernels.token_statistics(torch.zeros(1, 2), torch.tensor([0]))
