"""Blocks of calls between two events, in turns; and the same calls replayed as a CUDA graph.

A block queues its calls one behind the other, each with the next buffer. What it shows of a short
call is therefore the longer of what Python takes to launch it and what the GPU takes to run it;
the graph shows the GPU alone.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.case import Case, back_ends
from benchmarks.gpu.check import first_line
from benchmarks.gpu.clock import Clock
from benchmarks.gpu.figures import Row, copies_needed, figures, spread
from benchmarks.operators.ceilings import Ceilings
from benchmarks.operators.frame import TOLERANCE, Alternative, Refused, check_equal

LOW_PRECISION = TOLERANCE[torch.bfloat16]


@dataclass(frozen=True)
class Plan:
    blocks: int
    block_us: float  # the time that a block should take
    most_calls: int  # in a block, and of a graph in all
    launch_bound_us: float  # calls up to this are replayed as a graph as well


FULL = Plan(blocks=7, block_us=2000.0, most_calls=512, launch_bound_us=300.0)
TINY = Plan(blocks=2, block_us=0.0, most_calls=2, launch_bound_us=1e9)


def time_case(case: Case, clock: Clock, ceilings: Ceilings, cache: int, plan: Plan) -> list[Row]:
    """A row for each back end and each peer. "Ours", to which ratios relate, is the back end that
    is fastest as called from Python."""
    buffers = case.buffers(clock.device, copies_needed(case.bytes_each, cache, plan.most_calls))
    own = [_back_end(case, name) for name in back_ends(case.operator)]
    every = [*own, *case.peers(buffers)]
    names = {one.name for one in own}
    alternatives, refusals = _runnable(case, every, names, buffers[0], clock)
    floor, bound = ceilings.floor_us(case.work())
    shared = {
        "case": case.name,
        "floor_us": floor,
        "bound": bound,
        "in_cache": len(buffers) * case.bytes_each < cache,
    }
    rows: list[Row] = []
    if alternatives:
        eager = in_turns(_calls(alternatives, buffers), clock, plan)
        graphs, reasons = _recorded(alternatives, buffers, eager, clock, plan)
        per_replay = in_turns(graphs, clock, plan)
        graph = {name: [us / len(buffers) for us in times] for name, times in per_replay.items()}
        ours = _fastest(eager, names)
        for one in alternatives:
            rows.append(
                {
                    **shared,
                    "alternative": one.name,
                    "back_end": one.name in names,
                    "ours": one.name == ours,
                    "eager": figures(eager[one.name], eager[ours], floor),
                    "graph": _graph_figures(one.name, ours, graph, floor),
                    "graph_refused": reasons.get(one.name),
                }
            )
    return rows + [
        {**shared, "alternative": r.name, "back_end": r.name in names, "refused": r.reason}
        for r in refusals
    ]


def _back_end(case: Case, name: str) -> Alternative:
    return Alternative(name, lambda buffer: case.call(name, buffer), case.outcome)


def _runnable(
    case: Case, every: Sequence[Alternative | Refused], own: set[str], buffer: Any, clock: Clock
) -> tuple[list[Alternative], list[Refused]]:
    """The first call of each compiles what there is to compile, and may fail. What a peer gives
    must be what `own`, the back ends, give, or it would be timed for other work; those have been
    checked already."""
    alternatives: list[Alternative] = []
    refusals: list[Refused] = []
    expected: Sequence[Tensor] | None = None
    for one in every:
        if isinstance(one, Refused):
            refusals.append(one)
            continue
        copied = copy.deepcopy(buffer) if case.in_place else buffer
        try:
            returned = one.call(copied)
            if one.outcome is not None and expected is None:
                expected = one.outcome(copied, returned)
            elif one.outcome is not None and one.name not in own:
                outcome = one.outcome(copied, returned)
                _check_agreement(one.name, outcome, expected, exact=case.exact_move)
            clock.synchronize()
        except Exception as error:  # whatever it raises is the reason
            refusals.append(Refused(one.name, first_line(error)))
        else:
            alternatives.append(one)
    return alternatives, refusals


def _check_agreement(
    name: str, outcome: Sequence[Tensor], expected: Sequence[Tensor], *, exact: bool
) -> None:
    """Of the fields that both have. Columns of a maximum may differ: of equal logits PyTorch takes
    any on a GPU."""
    for got, wanted in zip(outcome, expected, strict=False):
        if wanted.is_floating_point():
            tolerance = 0.0 if exact else TOLERANCE.get(wanted.dtype, LOW_PRECISION)
            check_equal(name, [got], [wanted], tolerance)


def _fastest(times: dict[str, list[float]], names: set[str]) -> str:
    """Of ours; where none of them runs, of all."""
    medians = {name: spread(own)[1] for name, own in times.items()}
    return min({n: m for n, m in medians.items() if n in names} or medians, key=medians.__getitem__)


def _calls(
    alternatives: Sequence[Alternative], buffers: Sequence[Any]
) -> dict[str, Callable[[], Any]]:
    turns: Iterator[Any] = itertools.cycle(buffers)
    return {one.name: lambda one=one: one.call(next(turns)) for one in alternatives}


def _recorded(
    alternatives: Sequence[Alternative],
    buffers: Sequence[Any],
    eager: dict[str, list[float]],
    clock: Clock,
    plan: Plan,
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Replays over all buffers of what is launch-bound, and why the others have none."""
    replays, reasons = {}, {}
    for one in alternatives:
        if spread(eager[one.name])[1] > plan.launch_bound_us:
            reasons[one.name] = "not launch-bound"
            continue
        try:
            replays[one.name] = clock.graph(one.call, buffers)
        except Exception as error:  # of PyTorch or of Triton
            reasons[one.name] = first_line(error)
            clock.synchronize()
    return replays, reasons


def _graph_figures(name: str, ours: str, graph: dict[str, list[float]], floor: float) -> Row | None:
    if name not in graph:
        return None
    row = figures(graph[name], graph.get(ours, graph[name]), floor)
    return row if ours in graph else {**row, "ratio": None}


def in_turns(
    calls: dict[str, Callable[[], Any]], clock: Clock, plan: Plan
) -> dict[str, list[float]]:
    """Microseconds of a call in each block, in an order that turns round each time."""
    counts = {}
    for name, call in calls.items():
        call()
        once = max(_block(call, 2, clock), 1e-3)
        counts[name] = min(max(int(plan.block_us / once), 1), plan.most_calls)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for block in range(plan.blocks):
        for name in list(calls)[:: -1 if block % 2 else 1]:
            times[name].append(_block(calls[name], counts[name], clock))
    return times


def _block(call: Callable[[], Any], count: int, clock: Clock) -> float:
    start, end = clock.event(), clock.event()
    clock.synchronize()
    start.record()
    for _ in range(count):
        call()
    end.record()
    clock.synchronize()
    return 1e3 * start.elapsed_time(end) / count
