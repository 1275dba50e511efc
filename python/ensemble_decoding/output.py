"""What a run gives back: the response, its trace and its cost, also where it failed midway."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from .trace import Trace
from .usage import MemberUsage

FinishReason = Literal["stop", "length", "error"]


@dataclass
class EnsembleOutput:
    """The result of `generate`.

    Attributes:
        text: the response. Bytes at its end that stop inside a character are not in it but in
            `pending`.
        token_ids: for each member the ids of the response in its own vocabulary, end-of-text
            included where it was chosen and the member has one.
        finish_reason: "stop" (end of text), "length" (`max_new_tokens`, or the context of a member
            is full), "error" (on the output that an error carries), or None for a run that is not
            over.
        rounds: the trace; `rounds.save(path)` writes it.
        usage: for each member what it did.
        seconds: wall time of the run, prompt included.
        unspelled: for each member the bytes of the response for which it has no token.
        ensembled_share: of a token-level ensemble, the share of its rounds in which the mixture
            chose; the main model alone chose in the others. Of SAFE the share of the tokens at
            which the mixture was made.
        full_context: the name of the member whose context was full, where that ended the run.
    """

    text: str
    token_ids: list[list[int]]
    finish_reason: FinishReason | None
    rounds: Trace
    usage: list[MemberUsage]
    seconds: float
    pending: bytes = b""
    unspelled: list[bytes] = field(default_factory=list)
    ensembled_share: float | None = None
    full_context: str | None = None


class DecodingError(RuntimeError):
    """A run failed in the middle. `output` holds what was committed before the failing round."""

    def __init__(self, message: str, output: EnsembleOutput) -> None:
        super().__init__(message)
        self.output = output

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is made again from what its base class was given: the message alone.
        return type(self), (*self.args, self.output), vars(self)
