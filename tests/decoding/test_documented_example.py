"""The example of docs/kernels.md does what it says, on a plain transformers model."""

import re
from pathlib import Path

import pytest
import torch

from tests.decoding.models_for_tests import tiny_llama

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"


@pytest.fixture(scope="module")
def example():
    (code,) = re.findall(
        r"### Speculative verification.*?```python\n(.*?)```", PAGE.read_text(), re.S
    )
    names = {}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


@pytest.mark.parametrize("seed", range(4))
def test_verified_guesses_are_the_models_own_greedy_text(example, seed):
    prompt = [1, 2, 3, 1, 2, 3, 1, 2]
    model = tiny_llama(40, seed=seed)
    expected = model.generate(
        torch.tensor([prompt]), max_new_tokens=60, do_sample=False, pad_token_id=0
    )
    passes = []
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    assert example["generate"](model, prompt, 60) == expected[0, len(prompt) :].tolist()
    assert len(passes) < 60
