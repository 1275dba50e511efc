"""The wheel: it builds without a compiler and holds every module of the tree."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = {"ensemble_kernels": ROOT, "ensemble_decoding": ROOT / "python"}


def test_the_wheel_holds_every_module_and_needs_no_compiler(tmp_path):
    # From a copy: a build folder left in the tree would lend the wheel its old modules.
    source = tmp_path / "source"
    for folder in ("ensemble_kernels", "python"):
        shutil.copytree(
            ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*pip, "--wheel-dir", str(tmp_path), str(source)],
        check=True,
        env={**os.environ, "CC": "/bin/false", "CXX": "/bin/false"},
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info" not in name}
    tree = {
        str(file.relative_to(base))
        for package, base in PACKAGES.items()
        for file in (base / package).rglob("*")
        if file.suffix == ".py" or file.name == "py.typed"
    }
    assert shipped == tree | {"ensemble_kernels/_native_build.json"}  # why there is no library
