"""Members that are loaded at first use and let go on request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .member import Member


class LazyMember(Member):
    """A `Member` whose model and tokenizer are loaded when something first asks for them.

    `loaded` says whether they are there, `release()` lets them go; the next use loads them again.
    """

    def __init__(self, load: Callable[[], Member], name: str) -> None:
        self._load = load
        self.name = name

    def __getattr__(self, name: str) -> Any:
        # Only asked for what is not there: everything but the two above, until it is loaded.
        if name.startswith("__") or "_load" not in vars(self):
            raise AttributeError(name)
        if not self.loaded:
            vars(self).update({**vars(self._load()), "name": self.name})
            return getattr(self, name)
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    @property
    def loaded(self) -> bool:
        """Whether model and tokenizer are in memory."""
        return "model" in vars(self)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the model's weights and buffers; 0 while it is not loaded."""
        return super().memory_bytes if self.loaded else 0

    def release(self) -> None:
        """Lets model and tokenizer go. A run that is not over keeps them until it is."""
        for name in set(vars(self)) - {"_load", "name"}:
            del vars(self)[name]
