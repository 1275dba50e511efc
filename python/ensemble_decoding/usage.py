"""What a member did in a run, and how long it took."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field


class OperatorClock:
    """Seconds spent in each operator, as seen from the host.

    On a device that works asynchronously these are launch times; a profiler has the rest.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def add(self, operator: str, seconds: float) -> None:
        self.seconds[operator] += seconds


@dataclass
class MemberUsage:
    """What one member did in a run.

    `prompt_tokens`, `drafted_tokens`, `verified_tokens` and `committed_tokens` count tokens that
    were fed to the model: the prompt once, each draft while it was written, all candidates in the
    packed passes, and, in a method without drafts, what was committed.
    `seconds` is the time in the model's forward passes; `operator_seconds` is what our operators
    take, inside them or on their logits. `model_bytes` are the weights as they are stored,
    `cache_bytes` the keys and values that storage was allocated for.
    """

    member: str
    forward_passes: int = 0
    prompt_tokens: int = 0
    drafted_tokens: int = 0
    verified_tokens: int = 0
    seconds: float = 0.0
    operator_seconds: dict[str, float] = field(default_factory=dict)
    model_bytes: int = 0
    cache_bytes: int = 0
    committed_tokens: int = 0
