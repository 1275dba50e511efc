"""Decoding with several language models at once, over Hugging Face models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .calibration import Calibration, calibrate
    from .cosd import CoSD
    from .examples import Example, collect_examples
    from .member import Member
    from .output import DecodingError, EnsembleOutput
    from .rule_sweep import Sweep, sweep
    from .safe import SAFE
    from .specem import SpecEM
    from .token_ensemble import TokenEnsemble
    from .trace import Trace
    from .tree import Tree, fit_tree

__all__ = [
    "SAFE",
    "Calibration",
    "CoSD",
    "DecodingError",
    "EnsembleOutput",
    "Example",
    "Member",
    "SpecEM",
    "Sweep",
    "TokenEnsemble",
    "Trace",
    "Tree",
    "calibrate",
    "collect_examples",
    "fit_tree",
    "sweep",
]

_MODULES = {
    "Calibration": "calibration",
    "CoSD": "cosd",
    "DecodingError": "output",
    "EnsembleOutput": "output",
    "Member": "member",
    "SAFE": "safe",
    "SpecEM": "specem",
    "TokenEnsemble": "token_ensemble",
    "Trace": "trace",
    "Tree": "tree",
    "Example": "examples",
    "Sweep": "rule_sweep",
    "calibrate": "calibration",
    "collect_examples": "examples",
    "fit_tree": "tree",
    "sweep": "rule_sweep",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that the command line can say in one line that transformers is
    # missing, and answers --help without loading it.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
