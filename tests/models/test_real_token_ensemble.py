"""Token-level ensembles of two real models of different families, in float32."""

from __future__ import annotations

import pytest
import torch

from ensemble_decoding import Member, TokenEnsemble
from tests.decoding.test_specem import assert_cache_is_a_fresh_prefill, own_greedy

pytestmark = pytest.mark.real_models

MESSAGES = [{"role": "user", "content": "Repeat: 😀🦜 你好 — naïve. Then name the planets."}]
METHODS = [
    {"alignment": "union"},
    {"alignment": "top_k"},
    {"alignment": "union", "mean": "geometric", "weights": [1, 2]},
    {"alignment": "top_k", "threshold": 0.5},
]


@pytest.fixture(scope="module")
def members(real_models):
    return [
        Member.from_pretrained(path, dtype=torch.float32, name=name)
        for name, path in real_models.items()
    ]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_members_write_one_text_and_keep_their_caches(members, method):
    run = TokenEnsemble(members, **method).stream(messages=MESSAGES, max_new_tokens=24)
    text = ""
    for piece in run:
        text += piece.text
        for j, context in enumerate(run.contexts):
            ids = context.response_ids
            assert context.member.table.spell(ids) + run.waiting[j] == run.data
            if run.waiting[j]:
                assert len(run.waiting[j]) < 4
    for context in run.contexts:
        assert_cache_is_a_fresh_prefill(context, 2e-3)
    output = run.output
    assert output.text == text
    assert "�" not in text
    assert output.ensembled_share == 1 or method.get("threshold")
    fed = [usage.committed_tokens for usage in output.usage]
    assert fed == [len(ids) for ids in output.token_ids]


@pytest.mark.parametrize("alignment", ["union", "top_k", "identity"])
def test_a_model_with_itself_gives_its_own_greedy_output(members, alignment):
    for one in members:
        expected = own_greedy(one, "The moon is", 12)
        twins = [one, Member(one.model, one.tokenizer)]
        output = TokenEnsemble(twins, alignment=alignment).generate(
            "The moon is", max_new_tokens=12
        )
        assert output.token_ids == [expected] * 2
