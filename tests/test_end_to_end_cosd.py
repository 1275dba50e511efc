"""CoSD as research code runs it chooses what ours does; if it did not, that would be noticed."""

import math
from functools import partial
from itertools import product
from types import SimpleNamespace

import pytest

from benchmarks.end_to_end.cells import Cell
from benchmarks.end_to_end.checks import same_drafts
from benchmarks.end_to_end.measure import time_cell
from benchmarks.end_to_end.naive_cosd import (
    NaiveDecision,
    NaiveDraft,
    NaiveOpinion,
    _decided,
    naive_cosd,
)
from benchmarks.end_to_end.naive_union import NaiveModel
from benchmarks.end_to_end.text import english
from ensemble_decoding import CoSD
from ensemble_decoding.cosd_run import AGREED, KEPT, NO_BOUNDARY, REPLACED
from tests.tiny_loaded_models import tiny_models

PROMPTS = ("The quick brown", "Please give me", "1. Air pressure", "Hello! She said")


@pytest.fixture(scope="module")
def models():
    return tiny_models()


@pytest.fixture(scope="module")
def tables(models):
    return [NaiveModel(one.model, one.tokenizer) for one in models]


@pytest.mark.parametrize("places", [(0, 1), (1, 0)])
def test_the_same_is_drafted_and_replaced(models, tables, places):
    reasons = set()
    drafter, assistant = (models[place] for place in places)
    for prompt, (alpha, beta) in product(PROMPTS, [(0.5, 0.5), (0.9, 0.2)]):
        options = {"alpha": alpha, "beta": beta}
        run = CoSD(drafter.member, assistant.member, **options).stream(prompt, max_new_tokens=24)
        list(run)
        naive = naive_cosd(*(tables[place] for place in places), prompt, 24, **options)
        found = same_drafts(drafter, list(naive), run.trace.rounds)
        assert found == (f"all {len(run.trace)} rounds", True), prompt
        reasons |= {decision.reason for round_ in run.trace for decision in round_.decisions}
    assert reasons == {AGREED, KEPT, NO_BOUNDARY, REPLACED}


def test_the_assistant_computes_the_logits_of_the_draft_alone(models, tables):
    rows = []

    def count(module, arguments, keywords, output):
        rows.append(output.logits.shape[1])

    handle = models[1].model.register_forward_hook(count, with_kwargs=True)
    rounds = list(naive_cosd(*tables[:2], english(models[0].tokenizer, 100), 12))
    handle.remove()
    assert len(rows) == len(rounds) > 1
    assert max(rows) < 50  # of five tokens of the drafter


@pytest.mark.parametrize("option", [{"alpha": 0.0}, {"draft_length": 4}])
def test_one_that_chooses_otherwise_is_not_timed(models, monkeypatch, option):
    """By another rule, and by drafts of another length."""
    monkeypatch.setattr("benchmarks.end_to_end.peers.naive_cosd", partial(naive_cosd, **option))
    # Behind which some tokens are replaced.
    monkeypatch.setattr("benchmarks.end_to_end.measure.english", lambda *_: PROMPTS[1])
    cell = Cell("float32", 100, 24, 1, ("CoSD",), generate=False, naive=("naive CoSD",))
    ours, naive = time_cell(cell, models)
    assert ours["seconds"]
    assert "seconds" not in naive
    assert naive["failure"].startswith("chooses otherwise: ")
    _, naive = time_cell(cell._replace(dtype="bfloat16"), models)
    assert naive["seconds"]


def ours(*decisions, ids=(7, 8)):
    """A round of ours: what was chosen at each token, and whether an assistant chose it."""
    made = [
        SimpleNamespace(chosen=chosen or b"", chosen_end=chosen is None, decided_by=by)
        for chosen, by in decisions
    ]
    return SimpleNamespace(candidates=[SimpleNamespace(token_ids=[list(ids), []])], decisions=made)


def test_other_decisions_are_told_from_near_ties(models):
    kept, replaced = (b"a", None), (b"b", 1)
    naive = [NaiveDecision(b"a", False, 0.3), NaiveDecision(b"b", True, 0.2)]

    def found(*decisions, gap=0.2, ids=(7, 8), rounds=1):
        made = NaiveDraft([1, 2], [7, 8], [naive[0], naive[1]._replace(gap=gap)], 2)
        return same_drafts(models[0], [made] * rounds, [ours(*decisions, ids=ids)])

    assert found(kept, replaced) == ("all 1 rounds", True)
    for other in ((b"c", 1), (b"b", None), (None, 1)):
        far = found(kept, other)
        assert not far.excused
        assert far.text == "0 of 1 rounds, then a probability gap of 2.0e-01 decides"
        assert found(kept, other, gap=1e-6).excused
    assert not found((b"b", 1), gap=1e-6).excused  # it is the first token that tells
    assert not found(kept, gap=1e-6).excused
    assert not found(kept, replaced, ids=(7, 9)).excused  # of a drafter in no doubt
    assert not found(kept, replaced, rounds=2).excused


def test_the_end_of_a_text_is_a_choice_of_its_own(models):
    naive = NaiveDraft([1, 2], [7, 8], [NaiveDecision(None, True, 0.2)], 1)
    assert same_drafts(models[0], [naive], [ours((None, 1))]).excused
    assert not same_drafts(models[0], [naive], [ours((b"", 1))]).excused


@pytest.mark.parametrize(
    ("own", "drafter", "assistant", "lead", "expected"),
    [
        (b"a", 0.3, 0.9, 0.8, (b"a", False, 0.8)),  # the assistant agrees
        (b"c", 0.3, 0.9, 0.8, (b"b", True, 0.2)),  # the drafter's doubt was the nearest
        (b"c", 0.3, 0.9, 0.1, (b"b", True, 0.1)),  # the assistant's second token was
        (b"c", 0.3, 0.2, 0.1, (b"b", True, 0.05)),  # its sureness was
        (b"c", 0.6, 0.9, 0.8, (b"a", False, 0.1)),  # no doubt
        (b"c", 0.4, 0.1, 0.05, (b"a", False, 0.1)),  # not sure enough
        (b"b", 0.7, 0.9, 0.05, (b"a", False, 0.2)),  # two reasons: both would have to go
        (None, 0.3, 0.9, 0.8, (b"b", True, 0.2)),
    ],
)
def test_how_near_another_choice_was(own, drafter, assistant, lead, expected):
    best = b"a" if own == b"a" else b"b"
    found = _decided(b"a", drafter, NaiveOpinion(own, best, assistant, lead), 0.5, 0.5)
    assert found[:2] == expected[:2]
    assert math.isclose(found.gap, expected[2])


def test_special_tokens_are_refused(tables, monkeypatch):
    monkeypatch.setattr(tables[0], "tokens", {})
    with pytest.raises(ValueError, match="tokens must be text or the end of it, got id"):
        list(naive_cosd(*tables[:2], PROMPTS[0], 1))
