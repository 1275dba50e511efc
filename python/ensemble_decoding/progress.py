"""Bars on standard error for what takes a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")


def progress_bar(items: Sequence[_Item], what: str, shown: bool = True) -> Iterator[_Item]:
    """The items in turn; where `shown`, with a bar that says how far it is."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    tracked: Iterable[_Item] = track(items, what, console=console, disable=not shown)
    yield from tracked
