"""Where what was fetched or computed once is kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`ENSEMBLE_KERNELS_CACHE`, else `$XDG_CACHE_HOME/ensemble-kernels`, else
    `~/.cache/ensemble-kernels`; it need not exist."""
    if own := os.environ.get("ENSEMBLE_KERNELS_CACHE"):
        return Path(own).expanduser().absolute()
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification tells to ignore a relative path.
    base = xdg if xdg.is_absolute() else Path.home() / ".cache"
    return base / "ensemble-kernels"
