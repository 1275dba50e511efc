"""CoSD with two real models of different families, in float32."""

from __future__ import annotations

import pytest
import torch

from ensemble_decoding import CoSD, Member
from tests.decoding.test_specem import assert_cache_is_a_fresh_prefill, own_greedy

pytestmark = pytest.mark.real_models


@pytest.fixture(scope="module")
def members(real_models):
    return [
        Member.from_pretrained(path, dtype=torch.float32, name=name)
        for name, path in real_models.items()
    ]


@pytest.mark.parametrize("second_look", [False, True])
def test_an_assistant_corrects_and_the_caches_are_kept(members, second_look):
    messages = [{"role": "user", "content": "Repeat: 😀🦜 你好 — naïve. Then name the planets."}]
    method = CoSD(*members, alpha=0.9, second_look=second_look)
    run = method.stream(messages=messages, max_new_tokens=24)
    text = "".join(piece.text for piece in run)
    for context, ids in zip(run.contexts, run.output.token_ids, strict=True):
        read = context.response_ids
        assert read == ids[: len(read)]
    assert_cache_is_a_fresh_prefill(run.contexts[1], 2e-3)
    assert run.output.text == text
    assert "�" not in text
    decisions = [decision for round_ in run.trace for decision in round_.decisions]
    assert any(decision.reason == "replaced" for decision in decisions)
    for decision in decisions:
        if decision.reason == "replaced":
            own, theirs = decision.probabilities
            assert own < 0.9
            assert theirs > 0.5 * own


def test_a_model_with_itself_gives_its_own_greedy_output(members):
    for one in members:
        expected = own_greedy(one, "The moon is", 12)
        output = CoSD(one, Member(one.model, one.tokenizer)).generate(
            "The moon is", max_new_tokens=12
        )
        assert output.token_ids == [expected] * 2
