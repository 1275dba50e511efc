"""Which runs a report times."""

from __future__ import annotations

from typing import NamedTuple


class Cell(NamedTuple):
    """What is timed in turns: all `methods`, with peers or without, on one prompt.

    `context` counts the prompt's tokens, `new` what is asked for, both for the first model.
    `segments` are further lengths of a segment or draft for those methods that have one.
    `naive` names the naive peers. With one member only `generate` of the same model is a peer, and
    what it writes is what the method must write.
    """

    dtype: str
    context: int
    new: int
    repetitions: int
    methods: tuple[str, ...] = ("SpecEM", "SAFE", "SAFE, always", "CoSD", "TokenEnsemble")
    members: int = 2
    segments: tuple[int, ...] = ()
    generate: bool = True
    naive: tuple[str, ...] = ()


NEW, REPETITIONS = 48, 3
DEFAULT_CONTEXT, LONG_CONTEXT = 512, 4096
ENSEMBLES = ("SpecEM", "SAFE", "CoSD", "TokenEnsemble")
NAIVE = ("naive SpecEM", "naive CoSD", "naive union")
# Context and new tokens from which a report starts.
DEFAULTS = {"full": (DEFAULT_CONTEXT, NEW), "quick": (64, 8)}
# A segment of 10 is SpecEM's own, one of 5 that of the others.
LENGTHS = (5, 10, 20)


def _full(dtype: str, contexts: tuple[int, ...], naive_at_length: tuple[str, ...]) -> list[Cell]:
    naive = {DEFAULT_CONTEXT: NAIVE, LONG_CONTEXT: naive_at_length}
    return [
        Cell(dtype, context, NEW, REPETITIONS, naive=naive.get(context, ())) for context in contexts
    ]


CELLS = {
    "full": [
        *_full("float32", (64, DEFAULT_CONTEXT, 1024, LONG_CONTEXT), ("naive SpecEM",)),
        Cell("float32", DEFAULT_CONTEXT, NEW, REPETITIONS, ("SpecEM",), 1),
        Cell("float32", DEFAULT_CONTEXT, NEW, REPETITIONS, ENSEMBLES, 3, generate=False),
        Cell(
            *("float32", DEFAULT_CONTEXT, NEW, REPETITIONS, ("SpecEM", "SAFE", "CoSD")),
            segments=LENGTHS,
            generate=False,
        ),
        *_full("bfloat16", (DEFAULT_CONTEXT, LONG_CONTEXT), ()),
    ],
    "quick": [
        Cell("float32", *DEFAULTS["quick"], 1, naive=NAIVE),
        Cell("float32", 512, 8, 1, ("SpecEM", "SAFE"), generate=False),
    ],
}
