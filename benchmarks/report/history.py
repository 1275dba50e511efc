"""Two reports compared: what of ours got slower or faster beyond the noise of the machine.

A time has changed where the spreads are apart and the medians differ by 5 %. That may still be the
machine, so the peers of the same runs are asked: where they moved likewise, it says so. On another
machine only the ratios to the peers are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.report.cells import Spread
from benchmarks.report.history_cells import Cell, best, decoding_cells, operator_cells, typical

LEAST_CHANGE = 1.05 - 1e-9  # rounding must not decide over what differs by 5 %
MACHINE = ("processor", "threads", "torch")  # by which times are comparable

SLOWER, FASTER = "slower", "faster"
SLOWER_PEERS, FASTER_PEERS = "slower, and so are its peers", "faster, and so are its peers"
SLOWER_RATIO, FASTER_RATIO = "slower beside its peers", "faster beside its peers"
NOISE = "within the noise"
FAILS, RECOVERED, FAILS_STILL = "fails now", "failed before", "fails in both"
NOT_COMPARED, NEW, GONE = "not comparable", "new", "no longer there"
# In the order in which they are counted and listed.
VERDICTS = (
    *(FAILS, SLOWER, SLOWER_RATIO, SLOWER_PEERS, FASTER, FASTER_RATIO, FASTER_PEERS, RECOVERED),
    *(NOISE, FAILS_STILL, NOT_COMPARED, NEW, GONE),
)


class Change(NamedTuple):
    """Of one cell of ours. `before` and `now` are medians in `unit`, None where there is none. A
    ratio is the peers' time over ours: above 1 ours is faster. `basis` is what the verdict rests
    on: "time", "ratio" (another machine), or "" where nothing was compared."""

    part: str  # "operators" or "end to end"
    cell: str
    verdict: str
    basis: str = ""
    unit: str = ""
    before: float | None = None
    now: float | None = None
    ratio_before: float | None = None
    ratio_now: float | None = None
    note: str = ""


PARTS = (
    ("operators", "operators", "µs", operator_cells, best),
    ("end to end", "end_to_end", "ms a token", decoding_cells, typical),
)


def compare(now: dict[str, Any], earlier: dict[str, Any]) -> list[Change]:
    """Every cell of ours in either report, with a verdict."""
    same_machine = not machine_differences(now, earlier)
    changes: list[Change] = []
    for part, key, unit, collect, middle in PARTS:
        after, before = collect(now), collect(earlier)
        if not now.get(key) or not earlier.get(key):
            # One line: that a part was left out says nothing about each of its cells.
            if after or before:
                verdict, cells = (NEW, after) if after else (GONE, before)
                changes.append(Change(part, f"the whole part ({len(cells)} cells)", verdict))
            continue
        for name in dict.fromkeys([*after, *before]):
            change = Change(part, name, NOISE, unit=unit)
            if name not in before or name not in after:
                changes.append(_in_one(change, before.get(name), after.get(name)))
                continue
            one, other = before[name], after[name]
            common = [peer for peer in one.peers if peer in other.peers]
            ratios = [middle([c.peers[p] for p in common]) for c in (one, other) if common]
            changes.append(_in_both(change, one, other, ratios, same_machine))
    return changes


def machine_differences(now: dict[str, Any], earlier: dict[str, Any]) -> list[str]:
    """Why times of the two are not comparable; empty where they are."""
    mine, theirs = now["machine"], earlier["machine"]
    return [
        f"{name} {theirs.get(name)} before, {mine.get(name)} now"
        for name in MACHINE
        if mine.get(name) != theirs.get(name)
    ]


def summary(changes: Sequence[Change]) -> str:
    """How many cells have each verdict."""
    counts = Counter(change.verdict for change in changes)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])


def _in_one(change: Change, before: Cell | None, after: Cell | None) -> Change:
    cell = after or before
    return change._replace(
        verdict=NEW if after else GONE,
        before=before.time.middle if before and before.time else None,
        now=after.time.middle if after and after.time else None,
        note=f"fails: {cell.failure}" if cell and cell.failure else "",
    )


def _in_both(
    change: Change, before: Cell, after: Cell, ratios: Sequence[Spread], same_machine: bool
) -> Change:
    change = change._replace(
        before=before.time.middle if before.time else None,
        now=after.time.middle if after.time else None,
    )
    if before.time is None or after.time is None:
        verdict = FAILS if before.time else RECOVERED if after.time else FAILS_STILL
        return change._replace(verdict=verdict, note=after.failure or before.failure)
    if before.work != after.work:
        note = f"{before.work} before, {after.work} now"
        return change._replace(verdict=NOT_COMPARED, note=note)
    if ratios:
        change = change._replace(ratio_before=ratios[0].middle, ratio_now=ratios[1].middle)
    if same_machine:
        return _by_time(change, before.time, after.time, ratios)
    if not ratios:
        return change._replace(verdict=NOT_COMPARED, note="another machine, and no peer in both")
    return change._replace(verdict=_by_ratio(ratios), basis="ratio")


def _by_time(change: Change, before: Spread, after: Spread, ratios: Sequence[Spread]) -> Change:
    change = change._replace(basis="time")
    if _grew(before, after):
        alone = not ratios or _beyond_peers(before, after, ratios[0], ratios[1])
        verdict = SLOWER if alone else _with_peers(before, after, ratios, SLOWER_PEERS)
    elif _grew(after, before):
        alone = not ratios or _beyond_peers(after, before, ratios[1], ratios[0])
        verdict = FASTER if alone else _with_peers(after, before, ratios[::-1], FASTER_PEERS)
    else:
        # The ratio of neighbouring calls may show what the spread of the times hides.
        beside = _by_ratio(ratios) if ratios else NOISE
        return change._replace(note=f"but {beside}" if beside != NOISE else "")
    return change._replace(verdict=verdict, note="" if ratios else "no peer in both reports")


def _grew(one: Spread, other: Spread) -> bool:
    """From one to the other by 5 % and out of the spread."""
    return other.low > one.high and other.middle >= LEAST_CHANGE * one.middle


def _by_ratio(ratios: Sequence[Spread]) -> str:
    before, after = ratios
    if _grew(after, before):
        return SLOWER_RATIO
    return FASTER_RATIO if _grew(before, after) else NOISE


def _beyond_peers(fast: Spread, slow: Spread, ratio: Spread, ratio_slow: Spread) -> bool:
    """Whether ours grew from `fast` to `slow` by more than its peers did. Where they stood still,
    the medians say it; where they grew as well, the spreads of the ratios must agree."""
    fell = ratio.middle >= LEAST_CHANGE * ratio_slow.middle
    clear = ratio_slow.middle < ratio.low and ratio.middle > ratio_slow.high
    return fell and (clear or not _peers_grew(fast, slow, ratio, ratio_slow))


def _peers_grew(fast: Spread, slow: Spread, ratio: Spread, ratio_slow: Spread) -> bool:
    peers = slow.middle * ratio_slow.middle / (fast.middle * ratio.middle)
    return peers >= LEAST_CHANGE


def _with_peers(fast: Spread, slow: Spread, ratios: Sequence[Spread], verdict: str) -> str:
    """Where neither ours beside its peers nor the peers alone changed by 5 %, nothing is known."""
    return verdict if _peers_grew(fast, slow, ratios[0], ratios[1]) else NOISE
