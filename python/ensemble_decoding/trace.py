"""What happened in a run, round by round: its candidates and decisions, and who committed what."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from .typed_json import from_json, to_json


@dataclass
class Candidate:
    """One distinct draft of a round: its bytes, and whether the text ends behind them.

    `drafted_by` lists members by their place; `token_ids[j]` are the ids with which member j judges
    it, `log_likelihoods[j]` the mean log-probability that it gives them (None where there are
    none, or one of them is impossible), `shares[j]` the candidate's share of its vote; `score` is
    the weighted sum of the shares.

    In a token-level ensemble the token that was chosen is the one candidate: `drafted_by` are the
    voters whose own likeliest token it is, perhaps none, `token_ids[j]` what member j appended for
    it, `shares[j]` the probability that it had in member j's vote (0 without one), `score` that in
    the mixture; there are no `log_likelihoods`.
    """

    data: bytes
    ended: bool
    drafted_by: list[int]
    token_ids: list[list[int]]
    log_likelihoods: list[float | None] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    score: float = 0.0


@dataclass
class TokenDecision:
    """What was decided at one token of a draft.

    `drafted` and `drafted_end` are the token (its bytes, or that the text ends there), `chosen` and
    `chosen_end` what stands in its place, the same if it was kept. `probabilities[j]` is what
    member j gives its own token there (None: none of its tokens begins there, or it was not asked),
    `mean` their mean. Where the mixture was made, `mixture` are the probabilities of the drafted
    and the chosen token in it. `same_bytes` says of a token kept without a mixture whether every
    verifier's own token there has its bytes: if not, a mixture might have chosen another.

    In CoSD `probabilities[j]` is, of the first member, that of the drafted token, of another that
    of its likeliest token there, whose bytes are `alternatives[j]` (None: not asked, or none of its
    tokens begins there), and `decided_by` the assistant whose token was taken.
    """

    drafted: bytes
    drafted_end: bool
    chosen: bytes
    chosen_end: bool
    reason: str
    probabilities: list[float | None] = field(default_factory=list)
    mean: float | None = None
    mixture: list[float] = field(default_factory=list)
    same_bytes: bool | None = None
    alternatives: list[bytes | None] = field(default_factory=list)
    decided_by: int | None = None


@dataclass
class Round:
    """One round: the candidates, the weights with which the members voted, who won and why.

    `committed_tokens[j]` counts what member j committed, `text` is what was streamed, `data` the
    bytes behind it. `seconds` has the stages draft, encode, verify and commit, in a token-level
    ensemble mix, encode and commit.

    `voters` and `ensembled` are of a token-level ensemble alone: whose distributions were mixed,
    and whether the mixture chose or the main model alone. `decisions` has what SAFE and CoSD
    decided at each token of the draft that they judged, in order.
    """

    index: int
    candidates: list[Candidate]
    weights: list[float]
    winner: int
    reason: str
    committed_tokens: list[int]
    seconds: dict[str, float]
    text: str = ""
    data: bytes = b""
    voters: list[int] = field(default_factory=list)
    ensembled: bool | None = None
    decisions: list[TokenDecision] = field(default_factory=list)


@dataclass
class Trace:
    """All rounds of a run, in order, with the names of the members."""

    method: str
    members: list[str]
    options: dict[str, Any]
    rounds: list[Round] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rounds)

    def __iter__(self) -> Iterator[Round]:
        return iter(self.rounds)

    def __getitem__(self, index: int) -> Round:
        return self.rounds[index]

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the trace as JSON, bytes in hexadecimal."""
        Path(path).write_text(to_json(self) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Trace:
        """Reads what `save` wrote.

        Raises:
            OSError: the file cannot be read.
            ValueError: it holds no trace; says what is wrong where.
        """
        try:
            trace = from_json(json.loads(Path(path).read_text(encoding="utf-8")), cls, "trace")
            trace._check_places()
        except (ValueError, OverflowError, RecursionError) as error:
            raise ValueError(
                f"path must be a trace that Trace.save wrote, got {path}: {error}"
            ) from error
        return trace

    def _check_places(self) -> None:
        """Everything that a round says of members and candidates by their place must have one."""
        members = range(len(self.members))
        for r, round_ in enumerate(self.rounds):
            sizes: dict[str, Sequence[Any]] = {
                "weights": round_.weights,
                "committed_tokens": round_.committed_tokens,
            }
            for c, candidate in enumerate(round_.candidates):
                sizes[f"candidates[{c}].token_ids"] = candidate.token_ids
                drafters = candidate.drafted_by
                nobody = not drafters and not round_.voters
                if nobody or not set(drafters) <= set(members):
                    raise ValueError(
                        f"trace.rounds[{r}].candidates[{c}].drafted_by must hold places of "
                        f"members, got {drafters}"
                    )
            if not set(round_.voters) <= set(members):
                raise ValueError(
                    f"trace.rounds[{r}].voters must hold places of members, got {round_.voters}"
                )
            for d, decision in enumerate(round_.decisions):
                by = decision.decided_by
                if by is not None and by not in members:
                    raise ValueError(
                        f"trace.rounds[{r}].decisions[{d}].decided_by must be the place of a "
                        f"member, got {by}"
                    )
                for name in ("probabilities", "alternatives"):
                    if values := getattr(decision, name):
                        sizes[f"decisions[{d}].{name}"] = values
            for name, values in sizes.items():
                if len(values) != len(members):
                    raise ValueError(
                        f"trace.rounds[{r}].{name} must have an entry for each of the "
                        f"{len(members)} members, got {len(values)}"
                    )
            if round_.winner not in range(len(round_.candidates)):
                raise ValueError(
                    f"trace.rounds[{r}].winner must be the place of a candidate, "
                    f"got {round_.winner}"
                )
