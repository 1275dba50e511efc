"""The stages of a round: their seconds, and ranges for profilers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ensemble_kernels.profiling import annotate


class StageClock:
    """Seconds in each stage of a round."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """The block is a stage, and a range for profilers. The time since the last one counts."""
        with annotate(name):
            yield
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now
