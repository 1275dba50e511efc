"""Whole runs in turns: seconds, the first piece, where the time went, memory."""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.end_to_end.methods import OurRun, Piece, outside, shares
from benchmarks.operators.memory import resident_kib, rise_mib
from benchmarks.timing import first_line
from ensemble_decoding import EnsembleOutput
from ensemble_kernels.profiling import timed_ranges

Note = Callable[[Piece], None]


@dataclass
class Alternative:
    """One way to answer a prompt, with what a report says of it.

    `run` tells its argument each piece as it is there. Of ours it makes an `OurRun` instead. What
    is `slow` runs once, behind the warm-up of the others.
    """

    method: str
    ours: bool
    models: list[str]
    segment: int | None
    run: Callable[..., Any]
    slow: bool = False


@dataclass
class Timed:
    """What became of an alternative: one entry for each repetition, the rest of the last."""

    seconds: list[float] = field(default_factory=list)
    first_seconds: list[float] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    outside: list[float] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    output: EnsembleOutput | None = None
    load: float = 0.0
    failure: str | None = None


def in_turns(alternatives: Sequence[Alternative], repetitions: int) -> list[Timed]:
    """Each alternative once to warm up, unless it is one that runs once, and then in turns, in an
    order that turns round each time. What fails is left out from there on, and says why."""
    results = [Timed() for _ in alternatives]
    pairs = list(zip(alternatives, results, strict=True))
    for repetition in range(-1, repetitions):
        for one, timed in pairs if repetition % 2 else pairs[::-1]:
            if timed.failure is not None or (one.slow and repetition):
                continue
            try:
                _once(one, timed if repetition >= 0 else Timed())
            except Exception as error:  # one peer's fault is no reason to lose the others' figures
                timed.failure = first_line(error, 120)
    return results


def _once(one: Alternative, timed: Timed) -> None:
    timed.pieces, arrivals = [], list[float]()
    before = resident_kib()

    def note(piece: Piece) -> None:
        arrivals.append(time.perf_counter())
        timed.pieces.append(piece)

    start = time.perf_counter()
    if one.ours:
        with timed_ranges() as clock:
            run: OurRun = one.run()
            for piece in run:
                note(piece)
            taken = time.perf_counter() - start
        timed.output = run.output
        timed.parts.append(shares(clock.seconds, taken))
        timed.outside.append(outside(clock.seconds, taken))
    else:
        one.run(note)
        taken = time.perf_counter() - start
    if not arrivals:
        raise RuntimeError("nothing was written")
    peak = rise_mib(before)
    timed.peaks += [] if peak is None else [peak * 2**20 / 1e6]
    timed.seconds.append(taken)
    timed.first_seconds.append(arrivals[0] - start)
    timed.load = max(timed.load, os.getloadavg()[0])


def as_row(one: Alternative, timed: Timed) -> dict[str, Any]:
    """What a report keeps of an alternative."""
    row: dict[str, Any] = {
        "method": one.method,
        "ours": one.ours,
        "models": one.models,
        "members": len(one.models),
        "segment": one.segment,
        "failure": timed.failure,
    }
    if not timed.seconds or timed.failure is not None:  # what failed late has no figures either
        return row
    tokens = timed.pieces[-1].tokens
    return row | {
        "tokens": tokens,
        "first_tokens": timed.pieces[0].tokens,
        "seconds": timed.seconds,
        "first_seconds": timed.first_seconds,
        "shares": _mean(timed.parts),
        "outside": statistics.median(timed.outside) if timed.outside else None,
        "passes": _passes(timed.output, tokens),
        "peak_mb": max(timed.peaks) if timed.peaks else None,
        "load": timed.load,
    }


def _mean(parts: Sequence[dict[str, float]]) -> dict[str, float] | None:
    if not parts:
        return None
    sums: dict[str, float] = defaultdict(float)
    for one in parts:
        for name, share in one.items():
            sums[name] += share / len(parts)
    return dict(sums)


def _passes(output: EnsembleOutput | None, tokens: int) -> list[float] | None:
    """Forward passes of each member for each token, without the prompt's."""
    if output is None or not tokens:
        return None
    return [max(usage.forward_passes - 1, 0) / tokens for usage in output.usage]
