"""All cells, one after the other."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.end_to_end.cells import CELLS, DEFAULTS, Cell
from benchmarks.end_to_end.checks import Match, same_ids
from benchmarks.end_to_end.methods import SEGMENTS, OurRun, Piece, method
from benchmarks.end_to_end.models import LoadedModel, load
from benchmarks.end_to_end.peers import NAIVE_PEERS, GenerateRun
from benchmarks.end_to_end.text import english
from benchmarks.end_to_end.timed import Alternative, Timed, as_row, in_turns

Say = Callable[[str], None]


def measure(size: str, third: str | None, say: Say, done: Callable[[list[Any]], None]) -> Any:
    """The rows of all cells of a size; `done` gets those that there are, after each cell."""
    rows: list[dict[str, Any]] = []
    cells = CELLS[size]
    for dtype in dict.fromkeys(cell.dtype for cell in cells):
        models = load(getattr(torch, dtype), third)
        for cell in (cell for cell in cells if cell.dtype == dtype):
            say(f"{dtype}, {cell.context} + {cell.new} tokens, {cell.members} members")
            known = {_key(row) for row in rows}
            rows += [row for row in time_cell(cell, models) if _key(row) not in known]
            done(rows)
        del models
        gc.collect()
    return rows


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    """By which a row is found again: a peer in two cells counts in the first."""
    names = ("dtype", "method", "members", "context", "segment", "new")
    return tuple(row[name] for name in names)


def defaults(size: str) -> dict[str, Any]:
    context, new = DEFAULTS[size]
    return {"context": context, "members": 2, "segment": SEGMENTS, "new": new}


def time_cell(cell: Cell, models: Sequence[LoadedModel]) -> list[dict[str, Any]]:
    """A row for each alternative. A naive peer that chose otherwise than ours has no figures: in
    float32, where nothing but a near tie excuses it; in bfloat16 a rounding may part the texts
    anywhere, and what follows is as much work."""
    alternatives = alternatives_of(cell, models)
    results = in_turns(alternatives, cell.repetitions)
    found = matches(cell, alternatives, results, models)
    shared = {"dtype": cell.dtype, "context": cell.context, "new": cell.new}
    rows = []
    for one, result in zip(alternatives, results, strict=True):
        match = found.get(one.method)
        if match and not match.excused and one.method in NAIVE_PEERS and cell.dtype == "float32":
            result = Timed(failure=f"chooses otherwise: {match.text}")
        rows.append(shared | as_row(one, result) | {"match": match.text if match else None})
    return rows


def alternatives_of(cell: Cell, models: Sequence[LoadedModel]) -> list[Alternative]:
    """Ours first, then the peers."""
    used, new = models[: cell.members], cell.new
    prompt, names = english(models[0].tokenizer, cell.context), [model.name for model in used]
    made = []
    for name in cell.methods:
        own = SEGMENTS[name]
        lengths = cell.segments if own and cell.segments else (own,)
        for length in lengths:
            if cell.segments and length == own:
                continue  # timed with the cell of all methods
            ours = _made(partial(method, name, [model.member for model in used], length))
            made.append(
                Alternative(name, True, names, length, lambda m=ours: OurRun(m(), prompt, new))
            )
    made += _generating(used, prompt, new, models[2]) if cell.generate else []
    made += [_naive(name, used, prompt, new) for name in cell.naive]
    return made


def _made(make: Callable[[], Any]) -> Callable[[], Any]:
    """Makes it here, where nothing is timed. An error comes from the result, in the run of the one
    alternative that it belongs to."""
    try:
        made = make()
    except Exception as error:
        reason = error

        def fail() -> Any:
            raise reason

        return fail
    return lambda: made


def _naive(name: str, used: Sequence[LoadedModel], prompt: str, new: int) -> Alternative:
    peer = NAIVE_PEERS[name]
    made = _made(lambda: [peer.made(model) for model in used])

    def run(note: Callable[[Piece], None]) -> None:
        for piece in peer.pieces(made(), prompt, new):
            note(piece)

    segment = SEGMENTS[peer.method]
    return Alternative(name, False, [model.name for model in used], segment, run, slow=True)


def _generating(
    used: Sequence[LoadedModel], prompt: str, new: int, third: LoadedModel
) -> list[Alternative]:
    """Each model alone, and the first with an assistant of other and of equal tokens."""
    first = used[0]
    pairs: list[tuple[str, list[LoadedModel]]] = [(f"generate: {m.name}", [m]) for m in used]
    if used[1:]:
        pairs += [(f"assisted: {other.name}", [first, other]) for other in (*used[1:], third)]
    return [
        Alternative(
            *(name, False, [model.name for model in pair], None),
            lambda note, pair=pair: GenerateRun(prompt, new, *pair).run(note),
        )
        for name, pair in pairs
    ]


def matches(
    cell: Cell,
    alternatives: Sequence[Alternative],
    results: Sequence[Timed],
    models: Sequence[LoadedModel],
) -> dict[str, Match]:
    """What was chosen alike, by the name of the method that says so."""
    pairs = zip(alternatives, results, strict=True)
    by_name = {a.method: r for a, r in pairs if r.pieces and r.failure is None}
    chosen = {name: [piece.chosen for piece in r.pieces] for name, r in by_name.items()}
    found = {}
    for naive, peer in NAIVE_PEERS.items():
        if naive in chosen and peer.method in chosen:
            found[naive] = peer.same(models[: cell.members], chosen[naive], chosen[peer.method])
    alone, prompt = f"generate: {models[0].name}", english(models[0].tokenizer, cell.context)
    for name, result in by_name.items():
        if alone in chosen and name.startswith("assisted"):
            found[name] = same_ids(chosen[alone][-1], chosen[name][-1], models[0], prompt)
        if cell.members == 1 and result.output is not None and alone in chosen:
            ids = result.output.token_ids[0]
            found[name] = same_ids(chosen[alone][-1], ids, models[0], prompt)
    return found
