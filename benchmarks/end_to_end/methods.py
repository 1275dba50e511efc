"""Our methods as alternatives to time, and the stages of a round that their seconds go to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ensemble_decoding import SAFE, CoSD, EnsembleOutput, Member, SpecEM, TokenEnsemble

# As the methods have them: tokens of a segment or draft.
SEGMENTS = {"SpecEM": 10, "SAFE": 5, "SAFE, always": None, "CoSD": 5, "TokenEnsemble": None}
# What a report tells apart; "Python" is the rest, small calls of PyTorch included.
SHARES = ("prompt", "draft", "verify", "align", "mix", "commit", "tokenizers", "Python")
# The innermost of these around a forward pass or an operator says what it was for.
STAGES = {"prefill": "prompt", "draft": "draft", "verify": "verify", "mix": "mix"}
STAGES |= {"decide": "verify", "commit": "commit"}
MIXING = {"mix_distributions", "sharpen_prefixes", "top_k_union"}
OPERATORS = MIXING | {"segment_attention", "token_statistics", "segment_mean", "compact_kv_"}


class Piece(NamedTuple):
    """What a run has come to: new tokens so far, counted by the first model, and what was chosen
    since the last piece, in a form that the peer of a method gives as well."""

    tokens: int
    chosen: Any


def method(name: str, members: Sequence[Member], segment: int | None) -> Any:
    """The method of that name, with what else it takes at its defaults."""
    first, *others = members
    made: dict[str, Callable[[], Any]] = {
        "SpecEM": lambda: SpecEM(members, segment_length=segment or SEGMENTS["SpecEM"] or 0),
        "SAFE": lambda: SAFE(first, others, draft_length=segment or SEGMENTS["SAFE"] or 0),
        "SAFE, always": lambda: SAFE(first, others, ensemble_when="always"),
        "CoSD": lambda: CoSD(first, others, draft_length=segment or SEGMENTS["CoSD"] or 0),
        "TokenEnsemble": lambda: TokenEnsemble(members),
    }
    return made[name]()


class OurRun:
    """An iterator over the pieces of a run; `output` is what it came to."""

    def __init__(self, made: Any, prompt: str, new: int) -> None:
        self._run = made.stream(prompt, max_new_tokens=new)

    def __iter__(self) -> Iterator[Piece]:
        for piece in self._run:
            tokens = len(self._run.contexts[0].response_ids)
            yield Piece(tokens, piece.round)

    @property
    def output(self) -> EnsembleOutput:
        output: EnsembleOutput = self._run.output
        return output


def shares(seconds: Mapping[tuple[str, ...], float], whole: float) -> dict[str, float]:
    """The parts of `whole` seconds, of which `seconds` are in ranges, by the path of the range."""
    parts: dict[str, float] = defaultdict(float)
    for path, taken in seconds.items():
        parts[part_of(path)] += taken
    parts["Python"] += whole - sum(seconds.values())
    return {name: parts[name] / whole for name in SHARES}


def part_of(path: tuple[str, ...]) -> str:
    """Where the seconds count that a range takes by itself."""
    if "tokenize" in path:
        return "tokenizers"
    if path[-1] in MIXING:
        return "mix"
    # Who does not decode drafts puts them into its own tokens: our part of "encode".
    if "align" in path or path[-1] == "encode":
        return "align"
    if "forward" in path or path[-1] in OPERATORS:
        return next((STAGES[name] for name in reversed(path) if name in STAGES), "Python")
    return "Python"


def outside(seconds: Mapping[tuple[str, ...], float], whole: float) -> float:
    """The share of `whole` that is not in forward passes."""
    return 1 - sum(taken for path, taken in seconds.items() if "forward" in path) / whole
