"""Our back ends and their peers, checked for equal results and timed in turns."""

from __future__ import annotations

import copy
import itertools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from benchmarks.operators.ceilings import Ceilings, Work, last_level_cache
from benchmarks.operators.memory import peak_mib
from benchmarks.timing import first_line, median_ratio
from ensemble_kernels import backends

SECONDS = {"full": 3.0, "quick": 0.5, "tiny": 0.01}  # of timing, for each case
LEAST_ROUNDS, MOST_ROUNDS = 5, 200
WARMUP_ROUNDS = 2
# Rotated buffers take so many times the last-level cache, so that it holds none that is due.
CACHES = 2

# Largest difference over the largest value: some 1000 roundings in float32, whose sums run in
# different orders; in low precision a few roundings of the scores, the weights and the result.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 4e-2}


@dataclass(frozen=True)
class Alternative:
    """One way to do the work on a buffer. `outcome` makes what must be equal of the buffer and of
    what `call` returned; None: it does something else and is timed only."""

    name: str
    call: Callable[[Any], Any]
    outcome: Callable[[Any, Any], Sequence[Tensor]] | None


@dataclass(frozen=True)
class Refused:
    """A peer that cannot run the case, or that is `broken`: it failed, or its result is another."""

    name: str
    reason: str
    broken: bool = False

    def as_row(self) -> dict[str, Any]:
        return {"refused": self.reason} | ({"broken": True} if self.broken else {})


@dataclass(frozen=True)
class Setting:
    size: str  # "full", "quick" or "tiny"
    ceilings: Ceilings


def back_ends(operator: str) -> list[str]:
    """Those that `operator` has on the CPU, the fastest first."""
    available = backends()[operator]
    return [name for name in ("cpu", "reference") if available[name] is None]


def copies_needed(bytes_each: int, size: str) -> int:
    """Buffers to use in turns, where a call touches `bytes_each` of its own."""
    return 2 if size == "tiny" else max(2, -(-CACHES * last_level_cache() // bytes_each))


def compiled_peer(
    name: str,
    function: Callable[..., Any],
    use: Callable[[Callable[..., Any], Any], Any],
    buffer: Any,
    outcome: Callable[[Any, Any], Sequence[Tensor]],
    *,
    marker: str,
) -> Alternative | Refused:
    """`use(compiled function, buffer)`, of which inductor must have made code with `marker`:
    what falls back to eager code is another peer."""
    torch._dynamo.reset()
    compiled = torch.compile(function, dynamic=False)

    def call(buffer: Any) -> Any:
        return use(compiled, buffer)

    try:
        _, codes = run_and_get_code(call, buffer)
    except Exception as error:  # whatever a compiler raises is the reason
        return Refused(name, first_line(error, 90))
    if not any(marker in code for code in codes):
        return Refused(name, f"inductor made no {marker}")
    return Alternative(name, call, outcome)


def check_equal(
    name: str, actual: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float
) -> float:
    """The largest difference over the largest value of its result. Raises AssertionError where
    results differ: bit for bit for integers and tolerance 0."""
    furthest = 0.0
    for i, (got, wanted) in enumerate(zip(actual, expected, strict=True)):
        if got.shape != wanted.shape:
            raise AssertionError(f"{name}: result {i} is {list(got.shape)}, not {wanted.shape}")
        if not tolerance or not wanted.is_floating_point():
            if not torch.equal(got, wanted):
                raise AssertionError(f"{name}: result {i} is not that of ours")
            continue
        difference = float((got.double() - wanted.double()).abs().max())
        largest = float(wanted.double().abs().max())
        if not difference <= tolerance * largest:
            raise AssertionError(
                f"{name}: result {i} is off by {difference:.2g} of {largest:.2g}, "
                f"allowed is {tolerance:.2g}"
            )
        if difference:
            furthest = max(furthest, difference / largest)
    return furthest


def compare(
    benchmark: Any,
    setting: Setting,
    alternatives: list[Alternative | Refused],
    buffers: list[Any],
    work: Work,
    *,
    bytes_each: int,
    tolerance: float,
    in_place: bool = False,
    memory: bool = False,
) -> list[dict[str, Any]]:
    """One row of figures for each alternative, of which the first is ours. Empty where
    pytest-benchmark is disabled: then results are compared, and that is all. A broken peer has no
    figures, and the others keep theirs."""
    runnable = [a for a in alternatives if isinstance(a, Alternative)]
    matches, broken = matches_of(runnable, buffers[0], tolerance, in_place)
    alternatives = [broken.get(a.name, a) for a in alternatives]
    runnable = [a for a in runnable if a.name not in broken]
    peaks = {a.name: peak_mib(lambda a=a: a.call(buffers[0])) for a in runnable if memory}
    seconds = in_turns(benchmark, runnable, buffers, SECONDS[setting.size])
    if seconds is None:
        assert not broken, broken
        return []
    floor, bound = setting.ceilings.floor_us(work)
    in_cache = len(buffers) * bytes_each < last_level_cache()
    shared = {"floor_us": floor, "bound": bound, "in_cache": in_cache, "load": os.getloadavg()[0]}
    rows = []
    for alternative in alternatives:
        name = alternative.name
        row = {"alternative": name, "ours": alternative is runnable[0], **shared}
        if isinstance(alternative, Refused):
            rows.append(row | alternative.as_row())
            continue
        row |= figures(seconds[name], seconds[runnable[0].name], floor)
        row |= {"peak_mib": peaks[name]} if memory else {}
        rows.append(row | {"match": matches[name]})
    return rows


def figures(seconds: list[float], ours: list[float], floor_us: float) -> dict[str, Any]:
    """Of one alternative; `ratio` is its time over ours, so above 1 ours is faster."""
    low, median, high = (1e6 * s for s in statistics.quantiles(seconds, n=4))
    ratio, ratio_low, ratio_high = median_ratio(seconds, ours)
    return {
        "rounds": len(seconds),
        "median_us": median,
        "iqr_us": high - low,
        "quartiles_us": [low, high],
        "floor_share": floor_us / median,
        "ratio": ratio,
        "ratio_quartiles": [ratio_low, ratio_high],
    }


def matches_of(
    alternatives: list[Alternative], buffer: Any, tolerance: float, in_place: bool
) -> tuple[dict[str, str], dict[str, Refused]]:
    """What was found of each alternative, in words, and the broken ones of the peers."""
    expected: Sequence[Tensor] | None = None
    matches: dict[str, str] = {}
    broken: dict[str, Refused] = {}
    for alternative in alternatives:
        if alternative.outcome is None:
            matches[alternative.name] = "not compared"
            continue
        own = copy.deepcopy(buffer) if in_place else buffer
        try:
            outcome = alternative.outcome(own, alternative.call(own))
            # Ours is held against itself, since not even a NaN of ours is right.
            wanted = outcome if expected is None else expected
            furthest = check_equal(alternative.name, outcome, wanted, tolerance)
        except Exception as error:
            if expected is None:
                raise
            broken[alternative.name] = Refused(alternative.name, first_line(error, 90), broken=True)
            continue
        if expected is None:
            expected, matches[alternative.name] = outcome, "-"
            continue
        exact = not tolerance or not any(result.is_floating_point() for result in expected)
        matches[alternative.name] = "bit for bit" if exact else f"{furthest:.1e} of {tolerance:.0e}"
    return matches, broken


def in_turns(
    benchmark: Any, alternatives: list[Alternative], buffers: list[Any], budget: float
) -> dict[str, list[float]] | None:
    """Seconds of each call. pytest-benchmark times the first alternative; the others take their
    turns in its setup, in an order that turns round each time. Every call has the next buffer."""
    first, *others = alternatives
    turns = itertools.cycle(buffers)
    seconds: dict[str, list[float]] = {other.name: [] for other in others}
    orders = itertools.cycle([others, others[::-1]])

    def turn() -> tuple[tuple[Any], dict[str, Any]]:
        for other in next(orders):
            buffer = next(turns)
            start = time.perf_counter()
            other.call(buffer)
            seconds[other.name].append(time.perf_counter() - start)
        return (next(turns),), {}

    start = time.perf_counter()
    first.call(turn()[0][0])
    a_round = time.perf_counter() - start
    rounds = min(max(int(budget / a_round), LEAST_ROUNDS), MOST_ROUNDS)
    benchmark.pedantic(first.call, setup=turn, rounds=rounds, warmup_rounds=WARMUP_ROUNDS)
    if benchmark.disabled:
        return None
    measured = {name: times[-rounds:] for name, times in seconds.items()}
    return {first.name: list(benchmark.stats.stats.data), **measured}
