"""The training data of CoSD's tree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from .member import Member
from .progress import progress_bar
from .request import check_member
from .teacher_forcing import Text, checked_texts, forced

# Of each line of a file of examples.
_BEGINNING = b'{"text": "'


class Example(NamedTuple):
    """A place in a known text where exactly one of the two models predicts what follows: the
    probabilities that each gives its likeliest token, and whether the assistant is the one."""

    draft_probability: float
    assistant_probability: float
    replace: bool


def collect_examples(
    draft: Member,
    assistant: Member,
    texts: Sequence[Any],
    path: str | PathLike[str] | None = None,
    *,
    progress: bool = True,
) -> list[Example]:
    """Lets both models predict every token of known texts.

    They are compared where a token of each begins. Places where both are right, so that they
    agree, and where both are wrong, teach nothing and are left out.

    Args:
        draft, assistant: the two members.
        texts: known continuations, see `checked_texts`; three samples were enough in the paper.
        path: a JSON Lines file that each text's examples are added to when it is done. Texts that
            it holds already, by the same two members, are not read again.
        progress: show a bar on standard error.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """
    for name, member in (("draft", draft), ("assistant", assistant)):
        check_member(name, member)
    checked = checked_texts(texts)
    keys = [_key(draft, assistant, text) for text in checked]
    done = {} if path is None else _read(Path(path))
    examples = []
    for key, text in progress_bar(list(zip(keys, checked, strict=True)), "examples", progress):
        if key not in done:
            done[key] = list(_examples(draft, assistant, text))
            if path is not None:
                line = {"text": key, "examples": done[key]}
                with Path(path).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
        examples += done[key]
    return examples


def _examples(draft: Member, assistant: Member, text: Text) -> Iterator[Example]:
    own = {one.start: one for one in forced(draft, text)}
    for theirs in forced(assistant, text):
        ours = own.get(theirs.start)
        if ours is not None and ours.right != theirs.right:
            yield Example(ours.best_probability, theirs.best_probability, theirs.right)


def _key(draft: Member, assistant: Member, text: Text) -> str:
    parts = (draft.name, draft.table.fingerprint, assistant.name, assistant.table.fingerprint)
    return hashlib.sha256(json.dumps([*parts, *text]).encode()).hexdigest()[:16]


def _read(path: Path) -> dict[str, list[Example]]:
    """What the file holds. A last line without its end, which an interrupted run left, is taken
    away, so that its text is read again."""
    if not path.exists():
        return {}
    found = {}
    *lines, begun = path.read_bytes().split(b"\n")
    for number, line in enumerate([*lines, begun], 1):
        try:
            if number <= len(lines):
                read = json.loads(line)
                found[str(read["text"])] = [
                    Example(float(d), float(a), bool(replace)) for d, a, replace in read["examples"]
                ]
            elif not line.startswith(_BEGINNING[: len(line)]):
                raise ValueError("it is no line of examples")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(
                f"path must hold examples that collect_examples wrote, got {path}, line {number}: "
                f"{error}"
            ) from error
    if begun:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - len(begun))
    return found
