"""Decoding with several language models at once, over Hugging Face models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cosd import CoSD
    from .member import Member
    from .safe import SAFE
    from .specem import SpecEM
    from .token_ensemble import TokenEnsemble
    from .trace import DecodingError, EnsembleOutput, Trace
    from .tree import Tree, fit_tree

__all__ = [
    "SAFE",
    "CoSD",
    "DecodingError",
    "EnsembleOutput",
    "Member",
    "SpecEM",
    "TokenEnsemble",
    "Trace",
    "Tree",
    "fit_tree",
]

_MODULES = {
    "CoSD": "cosd",
    "DecodingError": "trace",
    "EnsembleOutput": "trace",
    "Member": "member",
    "SAFE": "safe",
    "SpecEM": "specem",
    "TokenEnsemble": "token_ensemble",
    "Trace": "trace",
    "Tree": "tree",
    "fit_tree": "tree",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that the command line can say in one line that transformers is
    # missing, and answers --help without loading it.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
