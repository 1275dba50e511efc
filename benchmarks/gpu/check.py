"""Every back end against float64, before anything is timed."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.budget import Part
from benchmarks.gpu.case import Case, Cases, back_ends
from benchmarks.gpu.clock import Clock
from benchmarks.gpu.figures import allowed_error
from ensemble_kernels import _triton


@dataclass(frozen=True)
class Verdict:
    operator: str
    case: str
    back_end: str
    error: float  # the largest of any field, as a share of what is allowed for it; 1 is all
    kernels: dict[str, int]  # of Triton, and how often each was launched: shows that it ran
    reason: str | None = None  # why it fails; None: it does not
    declined: str | None = None  # the back end leaves the case to the reference, by its own word

    def line(self) -> str:
        return f"{self.operator} {self.case}, {self.back_end}: {self.reason}"


def field_error(got: Tensor, exact: Tensor, same_dtype: Tensor | None) -> float:
    """The error over the allowed one. Infinite where shapes, integers or what is not finite
    differ."""
    if got.shape != exact.shape:
        return torch.inf
    if not got.is_floating_point():
        return 0.0 if torch.equal(got, exact) else torch.inf
    finite = exact.isfinite()
    if not torch.equal(got.double()[~finite], exact.double()[~finite]):
        return torch.inf
    if not bool(finite.any()):
        return 0.0
    exact = exact.double()

    def off(values: Tensor) -> float:
        largest = float((values.double() - exact)[finite].abs().max())
        return torch.inf if largest != largest else largest

    theirs = 0.0 if same_dtype is None else off(same_dtype)
    largest = float(exact[finite].abs().max())
    return off(got) / allowed_error(theirs, largest, torch.finfo(got.dtype).eps)


def verdict(case: Case, back_end: str, buffer: Any, expected: Sequence[Tensor]) -> Verdict:
    """`expected` was made from an equal buffer; a call in place gets a copy."""
    own = copy.deepcopy(buffer) if case.in_place else buffer
    before = Counter(_triton.launches)
    error, reason, declined = torch.inf, None, None
    try:
        outcome = list(case.outcome(own, case.call(back_end, own)))
        if case.exact_move:
            equal = all(torch.equal(*pair) for pair in zip(outcome, expected, strict=True))
            error = 0.0 if equal else torch.inf
        else:
            theirs = case.composition(buffer) or [None] * len(expected)
            fields = zip(outcome, expected, theirs, strict=True)
            error = max(field_error(*field) for field in fields)
        if not error <= 1:
            reason = f"{error:.3g} times the error that is allowed"
    except _triton.Unsupported as refusal:
        declined = str(refusal)
    except Exception as failure:  # whatever a kernel raises is what is to be reported
        reason = first_line(failure)
    kernels = dict(Counter(_triton.launches) - before)
    if reason is declined is None and back_end == "triton" and not kernels:
        reason = "it launched no kernel of Triton"
    return Verdict(case.operator, case.name, back_end, error, kernels, reason, declined)


def check(cases: Cases, clock: Clock, part: Part) -> list[Verdict]:
    verdicts = []
    for case in part.each(cases.checked):
        try:
            buffer = case.buffers(clock.device, 1)[0]
            expected = list(case.expected(buffer))
        except Exception as failure:  # too little memory, or a kernel before has broken the device
            reason = first_line(failure)
            verdicts.append(Verdict(case.operator, case.name, "float64", torch.inf, {}, reason))
            continue
        for back_end in back_ends(cases.operator):
            verdicts.append(verdict(case, back_end, buffer, expected))
    return verdicts


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0]}"


def as_json(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """JSON has no infinity: an error of None is one that cannot be measured."""
    rows = []
    for each in verdicts:
        error = each.error if math.isfinite(each.error) else None
        rows.append(asdict(each) | {"error": error, "ok": each.reason is None})
    return rows
