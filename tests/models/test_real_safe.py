"""SAFE with two real models of different families, in float32."""

from __future__ import annotations

import pytest
import torch

from ensemble_decoding import SAFE, Member
from tests.decoding.test_specem import assert_cache_is_a_fresh_prefill, own_greedy

pytestmark = pytest.mark.real_models

PROMPTS = [
    "The capital of France is",
    "Water boils sooner on high mountains because",
    "List three primary colours:",
    "def add(left, right):\n    ",
    'for i in range(10):\n    print(f"',
    "#include <stdio.h>\n\nint main(",
    "Voilà un café très agréable, où l'on",
    "Größe und Übermut: Zürich ist",
    "你好，世界！",
    "Emoji: 😀 😀 🦜 👩‍👩‍👧 😀",
]
NEW_TOKENS = 12


@pytest.fixture(scope="module")
def members(real_models):
    return [
        Member.from_pretrained(path, dtype=torch.float32, name=name)
        for name, path in real_models.items()
    ]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_one_text_without_a_broken_character(members, prompt):
    first, second = members if PROMPTS.index(prompt) % 2 else members[::-1]
    run = SAFE(first, [second]).stream(prompt, max_new_tokens=NEW_TOKENS)
    text = "".join(piece.text for piece in run)
    output = run.output
    assert output.text == text
    text.encode()
    assert "\ufffd" not in text
    assert text.strip()
    assert output.finish_reason in ("length", "stop")
    assert run.data.startswith(text.encode())
    decisions = [decision for round_ in output.rounds for decision in round_.decisions]
    assert output.ensembled_share == sum(bool(d.mixture) for d in decisions) / len(decisions)
    for context, ids in zip(run.contexts, output.token_ids, strict=True):
        assert context.member.table.spell(
            i for i in ids if not context.member.is_end_of_text(i)
        ) == bytes(run.data)
    assert_cache_is_a_fresh_prefill(run.contexts[1], 2e-3)


def test_a_model_with_itself_gives_its_own_greedy_output(members):
    for one in members:
        expected = own_greedy(one, "The moon is", 12)
        twin = Member(one.model, one.tokenizer)
        for method in ({}, {"ensemble_when": "always", "sharpen": None}):
            output = SAFE(one, [twin], **method).generate("The moon is", max_new_tokens=12)
            assert output.token_ids == [expected] * 2
