"""Time on a GPU: events, and calls recorded once and replayed as a CUDA graph.

`HostClock` has the same interface for a dry run on the CPU: its times mean nothing, but the code
that takes them is the code that takes those of a GPU.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

Call = Callable[[Any], Any]


class Event(Protocol):
    def record(self) -> None: ...

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from this event to `end`, both of which have been reached."""
        ...


class Clock(Protocol):
    device: torch.device

    def event(self) -> Event: ...

    def synchronize(self) -> None: ...

    def graph(self, call: Call, buffers: Sequence[Any]) -> Callable[[], Any]:
        """Does all calls again without Python. RuntimeError where they cannot be recorded."""
        ...


class GpuClock:
    def __init__(self) -> None:
        # With its index, as the tensors on it say: maps are kept by the device's name.
        self.device = torch.device("cuda", torch.cuda.current_device())
        # One for all graphs: libraries keep a workspace for each stream that they have seen.
        self._recording = torch.cuda.Stream()

    def event(self) -> Event:
        return torch.cuda.Event(enable_timing=True)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def graph(self, call: Call, buffers: Sequence[Any]) -> Callable[[], Any]:
        torch.cuda.synchronize()  # another stream is about to read what was written on this one
        with torch.cuda.stream(self._recording):
            self._refuse_waits(call, buffers[0])
            torch.cuda.synchronize()
            recorded = torch.cuda.CUDAGraph()
            # Not by `torch.cuda.graph`, which empties the allocator's cache each time: there are
            # many. Garbage that held a graph must not be collected while another is recorded.
            gc.disable()
            try:
                recorded.capture_begin()
                try:
                    for buffer in buffers:
                        call(buffer)
                finally:
                    recorded.capture_end()
            finally:
                gc.enable()
        torch.cuda.synchronize()
        return recorded.replay

    @staticmethod
    def _refuse_waits(call: Call, buffer: Any) -> None:
        """What waits for the GPU cannot be recorded, and a recording that fails may leave the whole
        process unusable: PyTorch tells such a call before."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
            torch.cuda.set_sync_debug_mode("error")
        try:
            call(buffer)
        finally:
            torch.cuda.set_sync_debug_mode("default")


class HostEvent:
    def __init__(self) -> None:
        self.seconds = 0.0

    def record(self) -> None:
        self.seconds = time.perf_counter()

    def elapsed_time(self, end: HostEvent) -> float:
        return 1e3 * (end.seconds - self.seconds)


class HostClock:
    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def event(self) -> Event:
        return HostEvent()

    def synchronize(self) -> None:
        pass

    def graph(self, call: Call, buffers: Sequence[Any]) -> Callable[[], Any]:
        def replay() -> None:
            for buffer in buffers:
                call(buffer)

        return replay
