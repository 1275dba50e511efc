"""A saved trace reproduces the run: plain arithmetic on it alone gives what the run gave."""

import codecs
import math
from functools import cache

import pytest

from ensemble_decoding import Member, SpecEM, Trace
from tests.decoding.members_for_tests import PROMPT, three_families


def with_a_twin():
    first, _, third = three_families()
    return [first, Member(first.model, first.tokenizer, name="twin"), third]


RUNS = {
    "three families": {"segment_length": 4, "max_new_tokens": 100},
    "cut by the limit": {"segment_length": 7, "max_new_tokens": 28},
    # Ids that the members often choose.
    "the text ends": {
        "segment_length": 4,
        "max_new_tokens": 100,
        "eos_token_id": [74, 295, 454],
    },
    "equal weights": {"segment_length": 5, "learning_rate": 0.0, "max_new_tokens": 40},
    "fast weights": {"segment_length": 2, "learning_rate": 5.0, "max_new_tokens": 60},
    "shared drafts": {"make": with_a_twin, "segment_length": 3, "max_new_tokens": 60},
    "feedback by score": {"segment_length": 3, "feedback": "score", "max_new_tokens": 40},
    "an exit": {"learning_rate": 9.0, "exit_threshold": 0.3, "max_new_tokens": 60},
    "a verifier": {"drafters": 2, "segment_length": 4, "feedback": "score", "max_new_tokens": 60},
}


@cache
def output_of(name):
    options = {"make": three_families, "drafters": 3, **RUNS[name]}
    members, drafters = options.pop("make")(), options.pop("drafters")
    generation = {
        key: options.pop(key) for key in ("max_new_tokens", "eos_token_id") if key in options
    }
    method = SpecEM(members[:drafters], verifiers=members[drafters:], **options)
    return method.generate(PROMPT, **generation)


@pytest.fixture(params=RUNS)
def run(request, tmp_path):
    """The output of a run, and its trace as read from a file."""
    output = output_of(request.param)
    output.rounds.save(tmp_path / "trace.json")
    return output, Trace.load(tmp_path / "trace.json")


def close(values):
    """The order of sums and products is free: some units in the last place in each round."""
    return pytest.approx(values, rel=1e-12, abs=0)


def shares_of_one_judge(log_likelihoods):
    """exp(m) over the sum of all; nothing for what it cannot judge, neutral if that is all."""
    judged = [m for m in log_likelihoods if m is not None]
    if not judged:
        return [1 / len(log_likelihoods)] * len(log_likelihoods)
    return [
        0.0 if m is None else math.exp(m) / sum(math.exp(x) for x in judged)
        for m in log_likelihoods
    ]


def gain(i, drafters, own, share, kind):
    """What member i gains by a round: the judges and opponents are the other drafters."""
    others = [j for j in drafters if j != i]
    if not others:
        return 1.0
    if kind == "score":
        return sum(share[j][own[i]] for j in others) / len(others)
    wins = sum(share[j][own[i]] >= share[j][own[k]] for j in others for k in others)
    return wins / len(others) ** 2


def weights_after(weights, number, round_, share, options):
    """The weights with which the members vote in round `number`, counted from 1."""
    own = {j: c for c, candidate in enumerate(round_.candidates) for j in candidate.drafted_by}
    drafters = sorted(own)
    step = options["learning_rate"] * math.sqrt(1 / len(drafters)) / number
    raised = {
        i: weights[i] * math.exp(step * gain(i, drafters, own, share, options["feedback"]))
        for i in drafters
    }
    scale = sum(weights[i] for i in drafters) / sum(raised.values())
    return [raised[j] * scale if j in raised else weight for j, weight in enumerate(weights)]


def after_exits(weights, active, options):
    """Who goes on after a round, and with which weights."""
    if options["exit_threshold"] is None:
        return weights, active
    staying = [j for j in active if weights[j] >= options["exit_threshold"] / len(weights)]
    if not any(j < len(weights) - options["verifiers"] for j in staying):
        return weights, active
    total = sum(weights[j] for j in staying)
    return [w / total if j in staying else 0.0 for j, w in enumerate(weights)], staying


def test_shares_weights_scores_and_winners_follow_from_the_log_likelihoods(run):
    _, trace = run
    members = range(len(trace.members))
    weights, active = [1 / len(members)] * len(members), list(members)
    for number, round_ in enumerate(trace.rounds, 1):
        candidates = round_.candidates
        share = [[0.0] * len(candidates) for _ in members]
        for j in active:
            share[j] = shares_of_one_judge([c.log_likelihoods[j] for c in candidates])
        for j in members:
            assert [c.shares[j] for c in candidates] == close(share[j])
        weights = weights_after(weights, number, round_, share, trace.options)
        assert round_.weights == close(weights)
        scores = [sum(weights[j] * share[j][c] for j in active) for c in range(len(candidates))]
        assert [c.score for c in candidates] == close(scores)
        assert round_.winner == scores.index(max(scores))
        weights, active = after_exits(weights, active, trace.options)


def test_the_candidates_are_distinct_and_each_drafter_has_one(run):
    _, trace = run
    for round_ in trace.rounds:
        drafters = [j for candidate in round_.candidates for j in candidate.drafted_by]
        assert len(drafters) == len(set(drafters))
        assert len({(c.data, c.ended) for c in round_.candidates}) == len(round_.candidates)


def test_text_ids_and_end_follow_from_the_winners(run):
    output, trace = run
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, ids, whole = "", [[] for _ in trace.members], True
    for index, round_ in enumerate(trace.rounds):
        assert round_.index == index
        winner = round_.candidates[round_.winner]
        assert whole  # nothing follows what was cut
        for j, count in enumerate(round_.committed_tokens):
            ids[j] += winner.token_ids[j][:count]
            whole = whole and count == len(winner.token_ids[j])
        assert round_.data == winner.data if whole else winner.data.startswith(round_.data)
        assert round_.text == decoder.decode(round_.data)
        text += round_.text
    assert text == output.text
    assert decoder.getstate()[0] == output.pending
    assert ids == output.token_ids
    assert output.finish_reason == ("stop" if whole and winner.ended else "length")


def test_what_the_runs_are_named_for_occurs_in_them():
    traces = {name: output_of(name).rounds for name in RUNS}
    last = traces["cut by the limit"][-1]
    assert last.data != last.candidates[last.winner].data
    assert output_of("the text ends").finish_reason == "stop"
    assert len({r.candidates[r.winner].drafted_by[0] for r in traces["three families"]}) > 1
    assert any(len(r.candidates[r.winner].drafted_by) == 2 for r in traces["shared drafts"])
    assert any(0.0 in r.weights for r in traces["an exit"])
