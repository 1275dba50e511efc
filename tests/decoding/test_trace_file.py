"""What `Trace.load` takes for a trace, and what it says of anything else."""

import json
import math

import pytest

from ensemble_decoding import Trace


def entry(**changes):
    candidate = {"data": "61", "ended": False, "drafted_by": [0], "token_ids": [[5], [6]]}
    round_ = {
        "index": 0,
        "candidates": [candidate],
        "weights": [0.5, 0.5],
        "winner": 0,
        "reason": "highest score",
        "committed_tokens": [1, 1],
        "seconds": {"draft": 0.5},
    }
    trace = {"method": "specem", "members": ["a", "b"], "options": {"learning_rate": 1}}
    for owner in (candidate, round_, trace):
        owner.update({key: value for key, value in changes.items() if key in owner})
    return {**trace, "rounds": changes.get("rounds", [round_]), **changes.get("more", {})}


WRONG = {
    "trace must be a dict, got list": [],
    "trace must be a dict, got 'weights'": "weights",
    "trace must have a field 'method', got none": {},
    "trace must have the fields of a Trace, got 'text'": entry(more={"text": "a"}),
    "trace.rounds must be a list, got dict": entry(rounds={}),
    "trace.rounds[0] must be a dict, got 3": entry(rounds=[3]),
    "trace.rounds[0].winner must be an int, got '0'": entry(winner="0"),
    "trace.rounds[0].winner must be an int, got True": entry(winner=True),
    "trace.rounds[0].winner must be the place of a candidate, got 1": entry(winner=1),
    "trace.rounds[0].winner must be the place of a candidate, got 0": entry(candidates=[]),
    "trace.rounds[0].weights[1] must be a float, got None": entry(weights=[0.5, None]),
    "trace.rounds[0].weights[0] must be finite, got nan": entry(weights=[math.nan, 0.5]),
    "trace.rounds[0].weights must have an entry for each of the 2 members, got 1": entry(
        weights=[1.0]
    ),
    "trace.rounds[0].committed_tokens must have an entry for each": entry(committed_tokens=[]),
    "trace.rounds[0].seconds['draft'] must be a float": entry(seconds={"draft": []}),
    "trace.rounds[0].candidates[0].data must be hexadecimal, got 'hello'": entry(data="hello"),
    "trace.rounds[0].candidates[0].ended must be a bool, got 0": entry(ended=0),
    "trace.rounds[0].candidates[0].drafted_by must hold places of members": entry(drafted_by=[2]),
    "candidates[0].token_ids must have an entry for each": entry(token_ids=[[1]]),
}


@pytest.mark.parametrize("message", WRONG)
def test_json_of_another_shape_is_no_trace(tmp_path, message):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(WRONG[message]))
    with pytest.raises(ValueError, match="path must be a trace") as error:
        Trace.load(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 10**5, b"P6 640 480"])
def test_what_is_no_json_is_no_trace(tmp_path, content):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="path must be a trace"):
        Trace.load(path)


def test_the_smallest_trace_is_one(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(entry()))
    assert Trace.load(path)[0].candidates[0].data == b"a"
