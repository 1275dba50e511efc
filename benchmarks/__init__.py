"""Benchmarks, run from the repository's root: python -m benchmarks.report

There the folder `ensemble_kernels` would stand before the installed package of this name, and only
that one has the native library. Where the package is installed in editable mode, or not at all,
the folder is what is used.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_PACKAGE = "ensemble_kernels"
_elsewhere = [path for path in sys.path if Path(path).resolve() != Path(__file__).parents[1]]
_installed = PathFinder.find_spec(_PACKAGE, _elsewhere)
if _PACKAGE not in sys.modules and _installed is not None and _installed.loader is not None:
    sys.modules[_PACKAGE] = module_from_spec(_installed)
    _installed.loader.exec_module(sys.modules[_PACKAGE])
