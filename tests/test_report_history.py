"""Two reports of a benchmark compared, from made-up figures: each verdict in both directions."""

import pytest

from benchmarks.report.history import compare, summary
from benchmarks.report.markdown import render
from tests.made_up_report import alone, line_of, made_up, plain, row, run


def operators_report(median, ratio, *, width=0.02, machine="A", peer="a peer"):
    """One case of one operator; ratio None: without peers."""
    rows = [row("a case", "cpu", median, ours=True, width=width)]
    if ratio is not None:
        rows.append(row("a case", peer, median * ratio, ratio, width=width))
    return {
        "machine": {"processor": machine, "threads": 2, "torch": "2.13.0"},
        "operators": {"operators": {"an operator": rows}},
    }


def decoding_report(ours, peer, *, machine="A", **more):
    runs = [run("SpecEM", ours, **more)]
    if peer is not None:
        runs += [alone("smollm2", peer), alone("gemma3", [2 * s for s in peer])]
    return {
        "machine": {"processor": machine, "threads": 2, "torch": "2.13.0"},
        "end_to_end": {"runs": runs, "goals": [], "defaults": {}},
    }


def verdict(earlier, now):
    changes = compare(now, earlier)
    assert len(changes) == 1, changes
    return changes[0].verdict


# Ours and its ratio to the peer, earlier and now: as the words say in this direction.
OPERATOR_VERDICTS = {
    "twice as long, peers as before": ((100, 2.0), (200, 1.0), "slower"),
    "6 %, peers as before": ((100, 2.12), (106, 2.0), "slower"),
    "4.5 %": ((100, 2.09), (104.5, 2.0), "within the noise"),
    "as everything": ((100, 2.0), (150, 2.0), "slower, and so are its peers"),
    "as everything, the ratio a bit off": ((100, 2.0), (150, 1.97), "slower, and so are its peers"),
    "more than its peers": ((100, 2.0), (150, 1.7), "slower"),
    "more than its peers by 3 %": ((100, 2.0), (150, 1.93), "slower, and so are its peers"),
    "6 %, of which the peers 2 %": ((100, 2.08), (106, 2.0), "within the noise"),
    "4.5 %, without peers": ((100, None), (104.5, None), "within the noise"),
    "less than its peers": ((100, 2.0), (150, 2.5), "slower, and so are its peers"),
    "without peers": ((100, None), (150, None), "slower"),
    "nothing": ((100, 2.0), (100, 2.0), "within the noise"),
}


@pytest.mark.parametrize("name", OPERATOR_VERDICTS)
def test_verdicts_on_operators(name):
    before, after, expected = OPERATOR_VERDICTS[name]
    assert verdict(operators_report(*before), operators_report(*after)) == expected
    back = verdict(operators_report(*after), operators_report(*before))
    assert back == expected.replace("slower", "faster")


def test_a_change_within_the_quartiles_is_noise():
    before, after = operators_report(100, 2.0, width=0.1), operators_report(115, 1.74, width=0.1)
    assert verdict(before, after) == verdict(after, before) == "within the noise"
    # The spreads must be apart, wherever the width comes from.
    assert verdict(operators_report(100, 2.0, width=0.05), after) == "within the noise"


def test_a_noisy_peer_hides_nothing():
    """Ours took 12 % longer and its peer as long as before; only the peer's spread is wide."""
    before, after = operators_report(100, 2.0), operators_report(112, 2.0 / 1.12)
    for report in (before, after):
        peer = report["operators"]["operators"]["an operator"][1]
        peer["ratio_quartiles"] = [peer["ratio"] * 0.8, peer["ratio"] * 1.2]
    assert verdict(before, after) == "slower"
    assert verdict(after, before) == "faster"


def test_a_noisy_ratio_does_not_part_ours_from_its_peers():
    """All took some 40 to 50 % longer: what the ratio lost lies within its quartiles."""
    before, after = operators_report(100, 2.0), operators_report(150, 1.85)
    for report in (before, after):
        peer = report["operators"]["operators"]["an operator"][1]
        peer["ratio_quartiles"] = [peer["ratio"] * 0.8, peer["ratio"] * 1.2]
    assert verdict(before, after) == "slower, and so are its peers"
    assert verdict(after, before) == "faster, and so are its peers"


def test_noise_of_times_with_a_clear_ratio_is_noted():
    before, after = operators_report(100, 2.0, width=0.2), operators_report(120, 1.5, width=0.2)
    for report in (before, after):
        peer = report["operators"]["operators"]["an operator"][1]
        peer["ratio_quartiles"] = [peer["ratio"] * 0.98, peer["ratio"] * 1.02]
    for pair, word in (((after, before), "slower"), ((before, after), "faster")):
        (change,) = compare(*pair)
        assert (change.verdict, change.note) == ("within the noise", f"but {word} beside its peers")


def test_only_peers_of_both_reports_count():
    before, after = operators_report(100, 2.0), operators_report(150, 2.0)
    rows = after["operators"]["operators"]["an operator"]
    rows.append(row("a case", "a new and faster peer", 75.0, 0.5))
    assert verdict(before, after) == "slower, and so are its peers"
    rows.append(row("a case", "memcpy of as many bytes", 30.0, 0.2, match="not compared"))
    assert verdict(before, after) == "slower, and so are its peers"
    other = operators_report(150, 2.0, peer="another peer")
    (change,) = compare(other, before)
    assert (change.verdict, change.note) == ("slower", "no peer in both reports")


def test_another_machine_is_compared_by_ratios():
    before = operators_report(100, 2.0)
    for after, expected in (
        (operators_report(300, 2.0, machine="B"), "within the noise"),
        (operators_report(50, 1.5, machine="B"), "slower beside its peers"),
        (operators_report(300, 3.0, machine="B"), "faster beside its peers"),
        (operators_report(100, None, machine="B"), "not comparable"),
        (operators_report(100, 1.5, width=0.35, machine="B"), "within the noise"),
    ):
        (change,) = compare(after, before)
        assert change.verdict == expected
        assert change.basis == ("" if expected == "not comparable" else "ratio")
    text = render(
        {**made_up(), "machine": {**made_up()["machine"], "processor": "B"}},
        compare(after, before),
        [],
        earlier=before,
    )
    assert "another machine" in text
    assert "processor A before, B now" in text


@pytest.mark.parametrize("field", ["processor", "threads", "torch"])
def test_what_makes_another_machine(field):
    before, after = operators_report(100, 2.0), operators_report(300, 2.0)
    assert compare(after, before)[0].basis == "time"
    after["machine"][field] = "other"
    assert compare(after, before)[0].basis == "ratio"


DECODING_VERDICTS = {
    "peers as before": (((10, 10.2, 10.4), (4, 4.1)), ((12, 12.2, 12.4), (4, 4.1)), "slower"),
    "as the peers": (
        ((10, 10.2, 10.4), (4, 4.1, 4.2)),
        ((12, 12.2, 12.4), (4.8, 4.9, 5.0)),
        "slower, and so are its peers",
    ),
    "without peers": (((10, 10.2, 10.4), None), ((12, 12.2, 12.4), None), "slower"),
    "repetitions overlap": (((10, 11, 13), (4, 4)), ((12.5, 14, 15), (4, 4)), "within the noise"),
    "4 %": (((10, 10.1, 10.2), (4, 4)), ((10.4, 10.5, 10.6), (4, 4)), "within the noise"),
    "one repetition, 30 %": (((10,), (4,)), ((13,), (4,)), "within the noise"),
    "one repetition, 40 %": (((10,), (4,)), ((14,), (4,)), "slower"),
    "two repetitions, 12 %": (((10, 10), (4, 4)), ((11.2, 11.2), (4, 4)), "within the noise"),
    "two repetitions, 20 %": (((10, 10), (4, 4)), ((12, 12), (4, 4)), "slower"),
    "one against three": (((10,), (4,)), ((11, 11, 11), (4, 4, 4)), "within the noise"),
}


@pytest.mark.parametrize("name", DECODING_VERDICTS)
def test_verdicts_on_decoding(name):
    before, after, expected = DECODING_VERDICTS[name]
    assert verdict(decoding_report(*before), decoding_report(*after)) == expected
    back = verdict(decoding_report(*after), decoding_report(*before))
    assert back == expected.replace("slower", "faster")


def test_decoding_on_another_machine():
    before = decoding_report((10, 10.2, 10.4), (4, 4.1, 4.2))
    as_before = decoding_report((20, 20.4, 20.8), (8, 8.2, 8.4), machine="B")
    assert verdict(before, as_before) == "within the noise"
    worse = decoding_report((10, 10.2, 10.4), (2, 2.05, 2.1), machine="B")
    assert verdict(before, worse) == "slower beside its peers"
    better = decoding_report((10, 10.2, 10.4), (8, 8.1, 8.2), machine="B")
    assert verdict(before, better) == "faster beside its peers"
    # 4 s of the peer over 10 to 12 s, and over 11.5 to 14 s: medians apart, spreads not.
    before = decoding_report((10, 11, 12), (4, 4, 4))
    wide = decoding_report((11.5, 13, 14), (4, 4, 4), machine="B")
    assert verdict(before, wide) == verdict(wide, before) == "within the noise"


def test_peers_of_another_context_or_dtype_do_not_count():
    before, after = decoding_report((10, 10, 10), None), decoding_report((15, 15, 15), None)
    for report, seconds in ((before, (4, 4, 4)), (after, (6, 6, 6))):
        runs = report["end_to_end"]["runs"]
        runs += [alone("smollm2", seconds, context=8192), alone("gemma3", seconds, dtype="float16")]
    assert verdict(before, after) == "slower"


def test_a_text_of_another_length_is_other_work():
    """Half as many tokens take more than half the time, since both have the prompt's."""
    before = decoding_report((10, 10.2, 10.4), (4, 4, 4))
    after = decoding_report((6, 6.1, 6.2), (4, 4, 4), tokens=32)
    assert verdict(before, after) == "not comparable"
    note = compare(after, before)[0].note
    assert note == "64 tokens of smollm2 and gemma3 before, 32 tokens of smollm2 and gemma3 now"


def test_other_models_are_other_work():
    before = decoding_report((10, 10, 10), None)
    after = decoding_report((20, 20, 20), None, models=["large", "larger"])
    assert verdict(before, after) == "not comparable"


def test_a_failure_is_a_change():
    lost = {"failure": "MemoryError: no", "tokens": 0}
    good, bad = decoding_report((10, 10), None), decoding_report((), None, **lost)
    assert verdict(good, bad) == "fails now"
    assert verdict(bad, good) == "failed before"
    assert verdict(bad, bad) == "fails in both"
    text = render({**made_up(), **bad, "machine": made_up()["machine"]}, compare(bad, good), [])
    line = line_of(text, "SpecEM, float32, 2 models, context 512, segment 10, 64 new", "fails now")
    assert line[-1] == "MemoryError: no"


def test_cells_of_one_report_are_named():
    before, after = made_up(), made_up()
    runs = after["end_to_end"]["runs"]
    runs[0] = {**runs[0], "context": 1024}
    after["operators"]["operators"]["compact_kv_"][0]["alternative"] = "reference"
    changes = compare(after, before)
    kinds = {v: [c.cell for c in changes if c.verdict == v] for v in ("new", "no longer there")}
    setting = "segment 10, 64 new"
    assert kinds["new"] == [
        "compact_kv_, float32-n5, reference",
        f"SpecEM, float32, 2 models, context 1024, {setting}",
    ]
    assert kinds["no longer there"] == [
        "compact_kv_, float32-n5, cpu",
        f"SpecEM, float32, 2 models, context 512, {setting}",
    ]
    shown = plain(render(after, changes, []))
    assert all(f"- {c.part}: {c.cell}" in shown for c in changes if c.verdict in kinds)
    assert "2 new, 2 no longer there" in summary(changes)


def test_many_names_are_folded_and_complete():
    before, after = operators_report(100, 2.0), operators_report(100, 2.0)
    cases = [f"case {number}" for number in range(11)]
    after["operators"]["operators"]["another"] = [row(case, "cpu", ours=True) for case in cases]
    text = render(
        {**made_up(), **after, "machine": made_up()["machine"]}, compare(after, before), []
    )
    part = text.split("<details><summary>New (11)</summary>\n\n", 1)[1].split("\n\n</details>")[0]
    assert part.splitlines() == [f"- operators: another, {case}, cpu" for case in cases]


def test_a_report_equals_itself():
    changes = compare(made_up(), made_up())
    ours = [r for r in made_up()["end_to_end"]["runs"] if r["ours"]]
    assert len(changes) == 3 + len(ours)
    assert summary(changes) == f"{len(changes) - 1} within the noise, 1 fails in both"


def test_reports_of_two_sizes_say_so():
    now, before = made_up(), made_up()
    assert "another number of times" not in render(now, compare(now, before), [], before)
    now["size"], before["size"] = "quick", "full"
    assert "a full report and this is a quick one" in render(now, compare(now, before), [], before)
