"""What decides in CoSD whether a drafted token is replaced."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Verdict(Protocol):
    """The rule or a `Tree`, for a place where drafter and assistant differ."""

    def replaces(self, draft_probability: float, assistant_probability: float) -> bool:
        """From the probability that the drafter gives the drafted token, and the one that the
        assistant gives its own likeliest."""
        ...


class Rule(NamedTuple):
    """The drafter doubts, and the assistant is sure enough compared with it."""

    alpha: float
    beta: float

    def replaces(self, draft_probability: float, assistant_probability: float) -> bool:
        return (
            draft_probability < self.alpha and assistant_probability > self.beta * draft_probability
        )
