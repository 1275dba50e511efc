"""Members on different devices at the same time: one worker for each device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Event
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def each_in_turn_or_at_once(
    tasks: Sequence[Callable[[], _Result]], workers: Sequence[str]
) -> list[_Result]:
    """Runs each task on its worker and returns the results in the order of the tasks.

    Tasks of one worker run one after the other, in their order; with one worker only, on this
    thread. All workers have come to rest when this returns or raises, so that nothing still writes
    to what the caller then puts back. Of several errors the first task's is raised; an interrupt of
    this thread goes before them and lets no further task begin.
    """
    groups: dict[str, list[int]] = {}
    for index, worker in enumerate(workers):
        groups.setdefault(worker, []).append(index)
    results: dict[int, Any] = {}
    if len(groups) < 2:
        return [task() for task in tasks]

    interrupted = Event()

    def work(indices: list[int]) -> None:
        for index in indices:
            if interrupted.is_set():
                return
            try:
                results[index] = (tasks[index](), None)
            except BaseException as error:
                results[index] = (None, error)
                return

    with ThreadPoolExecutor(len(groups)) as pool:
        _wait([pool.submit(work, indices) for indices in groups.values()], interrupted)
    for index in sorted(results):
        if results[index][1] is not None:
            raise results[index][1]
    return [results[index][0] for index in range(len(tasks))]


def _wait(running: Sequence[Future[None]], interrupted: Event) -> None:
    """Waits for all, also through further interrupts, and then raises the first of these."""
    first: BaseException | None = None
    while True:
        try:
            wait(running)
            break
        except BaseException as error:
            interrupted.set()
            first = first or error
    if first is not None:
        raise first
