"""Decoding with several language models at once, over Hugging Face models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .member import Member
    from .safe import SAFE
    from .specem import SpecEM
    from .token_ensemble import TokenEnsemble
    from .trace import DecodingError, EnsembleOutput, Trace

__all__ = ["SAFE", "DecodingError", "EnsembleOutput", "Member", "SpecEM", "TokenEnsemble", "Trace"]

_MODULES = {
    "DecodingError": "trace",
    "EnsembleOutput": "trace",
    "Member": "member",
    "SAFE": "safe",
    "SpecEM": "specem",
    "TokenEnsemble": "token_ensemble",
    "Trace": "trace",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that the command line can say in one line that transformers is
    # missing, and answers --help without loading it.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
