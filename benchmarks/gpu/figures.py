"""The arithmetic of the report: medians, shares of the floor, ratios, and what is fastest."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.timing import median_ratio

# A back end must be faster by so much to be preferred to one before it: less is noise.
CLEARLY = 0.03
# Triton first: it needs no compiler at the user's, so native kernels have to earn their place.
PREFERRED = ("triton", "cuda", "reference")

Row = dict[str, Any]


def spread(microseconds: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile."""
    if len(microseconds) == 1:
        return (microseconds[0],) * 3
    low, middle, high = statistics.quantiles(microseconds, n=4)
    return low, middle, high


def figures(times: Sequence[float], ours: Sequence[float], floor_us: float) -> Row:
    """Of the blocks of one alternative, which stood next to those of `ours`; above a ratio of 1
    ours is faster."""
    low, median, high = spread(times)
    ratio = median_ratio(list(times), list(ours))[0] if len(times) > 1 else times[0] / ours[0]
    return {"us": median, "iqr_us": high - low, "floor_share": floor_us / median, "ratio": ratio}


def fastest(medians: Mapping[str, float]) -> str:
    """Of back ends; one that others do not beat clearly stays, in the order of preference."""
    names = [name for name in PREFERRED if name in medians]
    best = names[0]
    for name in names[1:]:
        if medians[name] < (1 - CLEARLY) * medians[best]:
            best = name
    return best


def dispatch(timings: Mapping[str, Sequence[Row]], kind: str) -> dict[str, dict[str, str]]:
    """For each operator and case the back end to choose, by the times of `kind`: "eager" or
    "graph". Cases with a single back end leave nothing to choose."""
    choices: dict[str, dict[str, str]] = {}
    for operator, rows in timings.items():
        medians: dict[str, dict[str, float]] = {}
        for row in rows:
            if row["back_end"] and row.get(kind) is not None:
                medians.setdefault(row["case"], {})[row["alternative"]] = row[kind]["us"]
        found = {case: fastest(own) for case, own in medians.items() if len(own) > 1}
        if found:
            choices[operator] = found
    return choices


def literal(name: str, choices: Mapping[str, Mapping[str, str]]) -> str:
    """A Python assignment to paste. Every case is named, also where all agree: the sizes are what
    a threshold is read from."""
    lines = [f"{name} = {{"]
    for operator, cases in choices.items():
        lines.append(f'    "{operator}": {{')
        lines += [f'        "{case}": "{back_end}",' for case, back_end in cases.items()]
        lines.append("    },")
    return "\n".join([*lines, "}"])


def copies_needed(bytes_each: int, cache: int, most: int) -> int:
    """Buffers to use in turns, so that twice the cache goes by before one is due again; no more
    than `most`, since very small ones would take longer to make than to time."""
    return max(2, min(most, -(-2 * cache // max(bytes_each, 1))))


def allowed_error(same_dtype_error: float, largest: float, epsilon: float) -> float:
    """Twice the error of PyTorch in the same dtype, and a little, since that may happen to be 0:
    one rounding of the largest value in low precision, 2e-5 in float32."""
    little = 2e-5 if epsilon < 1e-6 else epsilon * max(1.0, largest)
    return 2 * same_dtype_error + little
