"""Research code chooses what ours does on two real models, in float32."""

from __future__ import annotations

import pytest
import torch

from benchmarks.end_to_end.checks import same_drafts
from benchmarks.end_to_end.models import LoadedModel
from benchmarks.end_to_end.naive_cosd import naive_cosd
from benchmarks.end_to_end.naive_union import NaiveModel
from ensemble_decoding import CoSD, Member

pytestmark = pytest.mark.real_models


@pytest.fixture(scope="module")
def models(real_models):
    members = [
        Member.from_pretrained(path, dtype=torch.float32, name=name)
        for name, path in real_models.items()
    ]
    return [LoadedModel(one.name, one.model, one.tokenizer, one) for one in members]


@pytest.mark.parametrize("places", [(0, 1), (1, 0)])
def test_naive_cosd_drafts_and_replaces_the_same(models, places):
    drafter, assistant = (models[place] for place in places)
    prompt = "Question: what is 23 + 47?\nAnswer:"
    run = CoSD(drafter.member, assistant.member).stream(prompt, max_new_tokens=16)
    list(run)
    tables = [NaiveModel(one.model, one.tokenizer) for one in (drafter, assistant)]
    naive = list(naive_cosd(*tables, prompt, 16))
    found = same_drafts(drafter, naive, run.trace.rounds)
    assert found.excused, found.text
    assert any(decision.replaced for round_ in naive for decision in round_.decisions)
