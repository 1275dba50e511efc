"""A process that interprets kernels cannot compile them."""

from ensemble_kernels import _triton

if _triton.interpreted() or _triton.import_error() is not None:
    collect_ignore_glob = ["test_*.py"]
