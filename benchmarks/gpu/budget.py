"""Six minutes for all: each part has its share, and leaves out what would not fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
Now = Callable[[], float]

# Less than six minutes by what PyTorch takes to start, and by a case that takes unusually long.
TOTAL_SECONDS = 335.0


class Budget:
    """The time of the whole run. `left_out` gets a line for everything that did not fit."""

    def __init__(self, seconds: float = TOTAL_SECONDS, now: Now = time.monotonic) -> None:
        self._now = now
        self._end = now() + seconds
        self.left_out: list[str] = []

    def left(self) -> float:
        return self._end - self._now()

    def part(self, name: str, seconds: float) -> Part:
        """With `seconds` at most: less where the run has less left."""
        return Part(name, self, self._now() + min(seconds, self.left()), self._now)


class Part:
    def __init__(self, name: str, budget: Budget, end: float, now: Now) -> None:
        self.name = name
        self._budget, self._end, self._now = budget, end, now

    def left(self) -> float:
        return self._end - self._now()

    def fits(self, seconds: float, what: str = "") -> bool:
        """Whether so many seconds are left; if not, the line is written."""
        left = max(self.left(), 0.0)
        if left >= seconds and left > 0:
            return True
        name = f"{self.name}: {what}" if what else self.name
        self._budget.left_out.append(
            f"{name}: left out, {left:.0f} s left of what may take {seconds:.0f} s"
        )
        return False

    def each(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, most important first, as long as the longest so far would still fit."""
        remaining, longest = list(items), 0.0
        total = len(remaining)
        while remaining:
            if self.left() <= longest:
                self._budget.left_out.append(
                    f"{self.name}: the last {len(remaining)} of {total} left out for want of time"
                )
                return
            start = self._now()
            yield remaining.pop(0)
            longest = max(longest, self._now() - start)
