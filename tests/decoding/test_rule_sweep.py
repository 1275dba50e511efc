"""What the rule of CoSD would do to known texts."""

import math

import pytest

from ensemble_decoding.rule_sweep import Sweep, SweepPoint, sweep
from ensemble_decoding.teacher_forcing import checked_texts
from tests.decoding.members_for_tests import PROMPT, member
from tests.decoding.test_calibration import letters, telling
from tests.decoding.test_cosd_examples import PAIRS, said_slowly, texts_of
from tests.decoding.tokenizers_for_tests import byte_level_tokenizer


def swept_slowly(members, texts, alpha, beta):
    """Replacements, gained, lost, and nats a byte."""
    replaced = gained = lost = size = 0
    total = 0.0
    for text in checked_texts(texts):
        data = text.continuation.encode()
        own, theirs = (said_slowly(one, text.prompt, data) for one in members)
        ends = {end for end, *_ in own.values()}
        place = 0
        for begin in sorted(own):
            if begin < place:
                continue
            end, best, probability, given = own[begin]
            if begin in theirs:
                other_end, other, sure, others = theirs[begin]
                if best != other and probability < alpha and sure > beta * probability:
                    replaced += 1
                    gained += other == data[begin:other_end]
                    lost += best == data[begin:end]
                    if other_end in ends:
                        end, given = other_end, others
            total += math.log(given)
            place = end
        size += place
    return replaced, gained, lost, total / size


@pytest.mark.parametrize("pair", PAIRS)
def test_a_sweep_is_that_of_whole_passes(pair):
    members = [member("llama", PAIRS[pair][0], seed=5), member("gemma3", PAIRS[pair][1], seed=15)]
    texts = texts_of(members)
    alphas, betas = (0.05, 0.3), (0.5, 1.0, 2)
    found = sweep(*members, texts, alphas, betas, progress=False)
    assert [(p.alpha, p.beta) for p in found.points] == [(a, b) for a in alphas for b in betas]
    for point in found.points:
        expected = swept_slowly(members, texts, point.alpha, point.beta)
        assert (point.replacements, point.gained, point.lost) == expected[:3]
        assert point.log_likelihood == pytest.approx(expected[3], rel=1e-4)
    alone = swept_slowly(members, texts, 0.0, 0.0)
    assert found.drafter_log_likelihood == pytest.approx(alone[3], rel=1e-4)
    assert found.drafted_tokens == sum(
        len(said_slowly(members[0], t.prompt, t.continuation.encode()))
        for t in checked_texts(texts)
    )
    assert sum(point.replacements for point in found.points) > 20
    assert found.best.log_likelihood == max(point.log_likelihood for point in found.points)


def test_the_table_and_the_heat_map(tmp_path):
    points = [SweepPoint(a, b, 7, 4, 2, -a - b) for a in (0.1, 0.9) for b in (0.5, 2.0)]
    found = Sweep(points, 99, -1.5)
    assert str(found).splitlines() == [
        "alpha   beta  replaced  gained    lost  nats/byte",
        " 0.10   0.50         7       4       2    -0.6000",
        " 0.10   2.00         7       4       2    -2.1000",
        " 0.90   0.50         7       4       2    -1.4000",
        " 0.90   2.00         7       4       2    -2.9000",
        "the drafter alone: -1.5000 nats a byte, 99 tokens",
    ]
    assert found.best == points[0]
    for kind, begins in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        found.plot(tmp_path / f"sweep{kind}")
        assert (tmp_path / f"sweep{kind}").read_bytes().startswith(begins)


@pytest.mark.parametrize(
    ("grid", "error", "message"),
    [
        (([], [1.0]), ValueError, "alphas must hold at least one number, got an empty list"),
        (([0.5], []), ValueError, "betas must hold at least one number, got an empty list"),
        (([1.5], [1.0]), ValueError, r"alphas\[0\] must be from 0 to 1, got 1.5"),
        (([0.5, -1], [1.0]), ValueError, r"alphas\[1\] must be from 0 to 1, got -1"),
        (([0.5], [math.inf]), ValueError, r"betas\[0\] must be finite and at least 0, got inf"),
        (([0.5], [math.nan]), ValueError, r"betas\[0\] must be finite and at least 0, got nan"),
        ((["0.5"], [1]), TypeError, r"alphas\[0\] must be a number, got str"),
        ((0.5, [1]), TypeError, "alphas must be a list of numbers, got float"),
        (("1", [1]), TypeError, "alphas must be a list of numbers, got str"),
    ],
    ids=str,
)
def test_grids_that_are_none(grid, error, message):
    with pytest.raises(error, match=message):
        sweep(telling(), telling(), letters(), *grid, progress=False)


def test_a_text_without_a_token():
    one = member(tokenizer=byte_level_tokenizer(missing_bytes=b"q"), seed=1)
    found = sweep(one, one, [(PROMPT, "qqq")], [0.5], [0.5], progress=False)
    assert (found.drafted_tokens, found.best.replacements) == (0, 0)
