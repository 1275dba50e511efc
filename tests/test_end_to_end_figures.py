"""The arithmetic of the end-to-end benchmarks: shares, turns, failures and goals."""

import pytest

from benchmarks.end_to_end import goals, timed
from benchmarks.end_to_end.methods import SHARES, Piece, outside, part_of, shares
from benchmarks.end_to_end.timed import Alternative, Timed, as_row, in_turns


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (("prefill", "forward"), "prompt"),
        (("round", "draft", "forward"), "draft"),
        (("round", "draft", "forward", "segment_attention"), "draft"),
        (("round", "verify", "token_statistics"), "verify"),
        (("round", "decide", "forward"), "verify"),
        (("round", "commit", "compact_kv_"), "commit"),
        (("round", "verify", "align"), "align"),
        (("round", "encode"), "align"),
        (("round", "encode", "tokenize"), "tokenizers"),
        (("round", "verify", "align", "tokenize"), "tokenizers"),
        (("tokenize",), "tokenizers"),
        (("round", "mix", "mix_distributions"), "mix"),
        (("round", "mix", "token_statistics"), "mix"),
        (("round", "mix"), "Python"),
        (("round",), "Python"),
    ],
)
def test_where_seconds_count(path, expected):
    assert part_of(path) == expected


def test_shares_are_of_the_whole():
    seconds = {
        ("round", "draft", "forward"): 4.0,
        ("round", "draft", "forward", "segment_attention"): 1.0,
        ("round", "encode", "tokenize"): 2.0,
        ("round",): 0.5,
    }
    parts = shares(seconds, 10.0)
    assert list(parts) == list(SHARES)
    assert sum(parts.values()) == pytest.approx(1.0)
    assert (parts["draft"], parts["tokenizers"]) == (0.5, 0.2)
    assert parts["Python"] == pytest.approx(0.3)  # the round's own, and what is in no range
    assert outside(seconds, 10.0) == 0.5


def test_alternatives_take_turns_and_failures_stay_alone():
    order = []

    def run(name, fails=False):
        def call(note):
            order.append(name)
            if fails:
                raise RuntimeError("no room\nand more")
            note(Piece(1, "first"))
            note(Piece(3, "second"))

        return call

    made = [
        Alternative("a", False, ["m"], None, run("a")),
        Alternative("b", False, ["m"], None, run("b", fails=True)),
        Alternative("c", False, ["m"], None, run("c"), slow=True),
    ]
    a, b, c = in_turns(made, 2)
    assert order == ["a", "b", "c", "a", "a"]
    assert [len(t.seconds) for t in (a, b, c)] == [2, 0, 1]
    assert [piece.tokens for piece in a.pieces] == [1, 3]
    assert all(first <= whole for first, whole in zip(a.first_seconds, a.seconds, strict=True))
    assert b.failure == "RuntimeError: no room"
    row = as_row(made[0], a)
    assert (row["tokens"], row["first_tokens"], row["shares"], row["passes"]) == (3, 1, None, None)
    assert "seconds" not in as_row(made[1], b)


def test_what_fails_late_has_no_figures():
    """Not even a part of them, whether or not a piece came before."""
    for pieces in (0, 1):
        turns = iter([2, 2, pieces])  # the warm-up, and two repetitions

        def run(note, turns=turns):
            count = next(turns)
            for number in range(1, count + 1):
                note(Piece(number, None))
            if count < 2:
                raise RuntimeError("no room")

        one = Alternative("generate: a", False, ["a"], None, run)
        row = as_row(one, in_turns([one], 2)[0])
        assert row["failure"] == "RuntimeError: no room"
        assert "seconds" not in row


def test_nothing_written_is_said():
    one = Alternative("a", False, ["m"], None, lambda note: None)
    (result,) = in_turns([one], 1)
    assert result.failure == "RuntimeError: nothing was written"
    assert as_row(one, result)["failure"]


def row(method, seconds, *, context=512, ours=True, outside=0.02, passes=(1.0, 1.0)):
    return {
        "method": method,
        "ours": ours,
        "dtype": "float32",
        "context": context,
        "new": 48,
        "members": 2,
        "tokens": 41,
        "first_tokens": 1,
        "seconds": [seconds, seconds + 1, seconds - 1],
        "first_seconds": [1.0, 2.0, 0.0],
        "outside": outside if ours else None,
        "passes": list(passes) if ours else None,
        "failure": None,
    }


def test_goals_of_known_rows():
    rows = [
        row("SpecEM", 10.0),
        row("SpecEM", 20.0, context=4096, outside=0.06),
        row("naive SpecEM", 35.0, ours=False),
        row("naive SpecEM", 140.0, context=4096, ours=False),
        row("generate: a", 5.0, ours=False),
        row("generate: a", 9.0, context=4096, ours=False),
        {"method": "SAFE", "ours": True, "failure": "what it is"},
    ]
    found = {goal["goal"]: goal for goal in goals.goals(rows)}
    worst = found["SpecEM: time outside of forward passes, at its largest in any row"]
    assert (worst["measured"], worst["met"]) == (pytest.approx(6.0), False)
    short = found["SpecEM against naive SpecEM, float32, 512 + 48 tokens"]
    assert (short["measured"], short["met"]) == (pytest.approx(3.5), True)
    long = found["SpecEM against naive SpecEM, float32, 4096 + 48 tokens"]
    assert (long["measured"], long["met"]) == (pytest.approx(7.0), False)
    growth = found["SpecEM: growth of a forward pass, float32, 512 to 4096 tokens"]
    # 9 seconds behind the first piece become 19, those of `generate` 4 become 8.
    assert (growth["measured"], growth["met"]) == (pytest.approx(19 / 9), True)
    assert growth["asked"].startswith("at most 2.20")
    assert len(found) == 4


def test_goals_know_texts_that_end_with_the_first_piece_and_late_failures():
    short = {"tokens": 1, "first_tokens": 1}
    ends = [
        row(method, 10.0, context=context, ours=ours) | short
        for context in (512, 4096)
        for method, ours in (("SpecEM", True), ("generate: a", False))
    ]
    (outside,) = goals.goals(ends)
    assert outside["goal"].startswith("SpecEM: time outside")
    assert not goals.goals([one | {"failure": "MemoryError: no room"} for one in ends])
    assert goals.per_pass(ends[0]) is None


def test_time_counts_by_the_pass():
    assert goals.per_pass(row("x", 11.0)) == pytest.approx(10 / 40 / 2)
    assert goals.per_pass(row("x", 11.0, ours=False)) == pytest.approx(10 / 40)
    assert goals.per_token(row("x", 8.2)) == pytest.approx(0.2)


def test_memory_that_cannot_be_told_is_not_zero(monkeypatch):
    monkeypatch.setattr(timed, "resident_kib", lambda: None)
    one = Alternative("a", False, ["m"], None, lambda note: note(Piece(1, None)))
    (result,) = in_turns([one], 1)
    assert as_row(one, result)["peak_mb"] is None
    assert Timed().peaks == []
