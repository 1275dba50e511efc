"""`token_statistics` against compositions of PyTorch's operators."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks.operators.ceilings import Work, dtype_name
from benchmarks.operators.frame import (
    TOLERANCE,
    Alternative,
    Setting,
    back_ends,
    compiled_peer,
    copies_needed,
)
from ensemble_kernels import token_statistics


@dataclass(frozen=True)
class Case:
    columns: int
    rows: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)}-v{self.columns}-r{self.rows}"


COLUMNS = (49_152, 151_936, 262_144)  # SmolLM2, Qwen 2.5, Gemma 3
ROWS = (1, 8, 64)
DTYPES = (torch.float32, torch.bfloat16)

CASES = {
    "full": [Case(*case) for case in product(COLUMNS, ROWS, DTYPES)],
    "quick": [Case(49_152, 8, torch.float32), Case(262_144, 8, torch.bfloat16)],
    "tiny": [Case(1000, 3, torch.float32)],
}


def test_token_statistics(case: Case, setting: Setting, figures: Callable[..., None]) -> None:
    generator = torch.Generator().manual_seed(case.columns)
    logits = (torch.randn(case.rows, case.columns, generator=generator) * 5).to(case.dtype)
    token_ids = torch.randint(case.columns, (case.rows,), generator=generator)
    buffer = (logits, token_ids)
    size = logits.nbytes
    ours = [
        Alternative(name, lambda b, name=name: token_statistics(*b, backend=name), as_returned)
        for name in back_ends("token_statistics")
    ]
    peers = [
        Alternative("log_softmax, gather, argmax, entropy", lambda b: plain(*b), as_returned),
        Alternative("softmax, max, vecdot", lambda b: frugal(*b), as_returned),
        compiled_peer(
            "the first, compiled",
            plain,
            lambda function, b: function(*b),
            buffer,
            as_returned,
            marker="cpp_fused",
        ),
    ]
    figures(
        "token_statistics",
        case,
        [*ours, *peers],
        [copy.deepcopy(buffer) for _ in range(copies_needed(size, setting.size))],
        Work(size),
        bytes_each=size,
        # All of them compute in float32, whatever the logits are.
        tolerance=TOLERANCE[torch.float32],
        memory=True,
    )


def as_returned(buffer: Any, fields: Sequence[Tensor]) -> Sequence[Tensor]:
    return tuple(fields)


def plain(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, ...]:
    """As it is written where time does not matter."""
    logits = logits.float()
    logprobs = logits.log_softmax(-1)
    return (
        logprobs.gather(1, token_ids[:, None])[:, 0],
        logits.argmax(-1),
        logprobs.amax(-1),
        logits.logsumexp(-1),
        -(logprobs.exp() * logprobs).sum(-1),
    )


def frugal(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, ...]:
    """Three passes over the logits and one temporary of their size (with low precision, two)."""
    logits = logits.float()
    probabilities = logits.softmax(-1)
    maximum, argmax = logits.max(-1)
    max_logprob = probabilities.gather(1, argmax[:, None])[:, 0].log()
    logsumexp = maximum - max_logprob
    return (
        logits.gather(1, token_ids[:, None])[:, 0] - logsumexp,
        argmax,
        max_logprob,
        logsumexp,
        logsumexp - torch.linalg.vecdot(probabilities, logits),
    )
