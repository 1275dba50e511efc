"""Members that are loaded at first use and let go on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any

from .context import DecodingContext
from .member import Member
from .sampling import TokenChooser

# One for all members: while transformers loads, torch's default dtype is that of the checkpoint,
# for every thread.
_one_load_at_a_time = RLock()
_OWN = ("_load", "_member", "name")


class LazyMember(Member):
    """A `Member` whose model and tokenizer are loaded when something first asks for them.

    `loaded` says whether they are there, `release()` lets them go; the next use loads them again.
    Threads may share one: it is loaded once for all of them.
    """

    def __init__(self, load: Callable[[], Member], name: str) -> None:
        self._load = load
        self._member: Member | None = None
        self.name = name

    def __repr__(self) -> str:
        return f"<LazyMember {self.name!r}, not loaded>" if not self.loaded else repr(self._member)

    def __getattr__(self, name: str) -> Any:
        # Only asked for what is not there: everything but the three above.
        if name.startswith("__") or "name" not in vars(self):
            raise AttributeError(name)
        return getattr(self.in_memory(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            super().__setattr__(name, value)
        else:
            setattr(self.in_memory(), name, value)

    @property
    def loaded(self) -> bool:
        """Whether model and tokenizer are in memory."""
        return self._member is not None

    @property
    def memory_bytes(self) -> int:
        """Bytes of the model's weights and buffers; 0 while it is not loaded."""
        member = self._member
        return 0 if member is None else member.memory_bytes

    def in_memory(self) -> Member:
        with _one_load_at_a_time:
            if self._member is None:
                member = self._load()
                member.name = self.name
                self._member = member
            return self._member

    def new_context(self, chooser: TokenChooser | None = None) -> DecodingContext:
        return self.in_memory().new_context(chooser)

    def with_end_of_text(self, end_of_text_ids: Sequence[int]) -> Member:
        return self.in_memory().with_end_of_text(end_of_text_ids)

    def release(self) -> None:
        """Lets model and tokenizer go. A run that uses them keeps them for as long as it is
        there, its output does not."""
        self._member = None
