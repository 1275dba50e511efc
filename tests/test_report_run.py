"""The report as a program: what it needs, what it writes, and what it does where a part fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.report import __main__ as report
from benchmarks.report import facts, needs
from ensemble_kernels import backends

ROOT = Path(__file__).parents[1]
OPERATORS = {
    "last_level_cache": 1 << 20,
    "ceilings": [{"threads": 1, "products": {"float32": 100.0}, "read": 20.0, "copy": 10.0}],
    "operators": {
        "compact_kv_": [
            {
                "case": "float32-one",
                "alternative": name,
                "ours": name == "cpu",
                "floor_us": 1.0,
                "bound": "memory",
                "in_cache": False,
                "load": 1.0,
                "rounds": 5,
                "median_us": 2.0,
                "iqr_us": 0.2,
                "quartiles_us": [1.9, 2.1],
                "floor_share": 0.5,
                "ratio": 1.0,
                "ratio_quartiles": [1.0, 1.0],
                "match": "-" if name == "cpu" else "bit for bit",
            }
            for name in ("cpu", "index_select")
        ]
    },
}


def run(method, failure=None, **changes):
    shared = {"method": method, "ours": True, "models": ["a", "b"], "members": 2, "segment": 10}
    shared |= {"dtype": "float32", "context": 512, "new": 48, "failure": failure, "match": None}
    if failure is not None:
        return shared
    timed = {"tokens": 48, "first_tokens": 10, "seconds": [4.0], "first_seconds": [1.0]}
    parts = ("prompt", "draft", "verify", "align", "mix", "commit", "tokenizers", "Python")
    timed |= {"shares": dict.fromkeys(parts, 1 / len(parts)), "outside": 0.02, "load": 1.0}
    return shared | timed | {"passes": [1.0, 1.5], "peak_mb": 50.0} | changes


@pytest.fixture
def measured(monkeypatch):
    """What the two parts are made to give; the cells come one by one."""
    parts = {"operators": (OPERATORS, None), "runs": [run("SpecEM"), run("CoSD", segment=5)]}

    def measure(size, third, say, done):
        for count in range(1, len(parts["runs"]) + 1):
            done(parts["runs"][:count])
        return parts["runs"]

    monkeypatch.setattr(report, "without_native", lambda: None)
    monkeypatch.setattr(report, "check_models", lambda third: None)
    monkeypatch.setattr(report, "operators", lambda size, folder: parts["operators"])
    monkeypatch.setattr(report, "measure", measure)
    return parts


def call(monkeypatch, folder, *arguments):
    monkeypatch.setattr(sys, "argv", ["report", "--output", str(folder), *arguments])
    return report.main()


def test_it_writes_one_folder(measured, monkeypatch, tmp_path):
    assert call(monkeypatch, tmp_path / "new" / "folder", "--quick") == 0
    written = json.loads((tmp_path / "new/folder/report.json").read_text())
    assert written["size"] == "quick"
    assert written["operators"] == OPERATORS
    assert written["end_to_end"]["runs"] == measured["runs"]
    assert written["end_to_end"]["goals"]
    assert written["machine"]["commit"]
    assert written["machine"]["library"]
    assert set(written["machine"]["native"]) == set(backends())
    text = (tmp_path / "new/folder/report.md").read_text()
    for word in ("SpecEM", "CoSD", "compact_kv_", "index_select", written["machine"]["processor"]):
        assert word in text
    for picture in (tmp_path / "new/folder").glob("*.png"):
        assert picture.name in text
    assert list((tmp_path / "new/folder").glob("*.png"))


@pytest.mark.parametrize(
    ("part", "has", "lacks"),
    [("operators", "operators", "end_to_end"), ("end-to-end", "end_to_end", "operators")],
)
def test_one_part_alone(measured, monkeypatch, tmp_path, part, has, lacks):
    assert call(monkeypatch, tmp_path, "--only", part) == 0
    written = json.loads((tmp_path / "report.json").read_text())
    assert has in written
    assert lacks not in written
    assert (tmp_path / "report.md").exists()


def test_what_got_slower_is_marked(measured, monkeypatch, tmp_path):
    earlier = tmp_path / "earlier"
    assert call(monkeypatch, earlier) == 0
    measured["runs"] = [run("SpecEM", seconds=[8.0]), run("CoSD", segment=5)]
    against = ("--against", str(earlier / "report.json"))
    assert call(monkeypatch, tmp_path / "later", *against) == 0
    marked = [
        line
        for line in (tmp_path / "later/report.md").read_text().splitlines()
        if "slower" in line and "SpecEM" in line
    ]
    assert marked


def test_what_fails_is_said_and_the_rest_is_kept(measured, monkeypatch, tmp_path, capsys):
    measured["operators"] = ({"operators": {}}, "benchmarks of operators ended with status 1")
    measured["runs"].append(run("SAFE", failure="RuntimeError: no room"))
    assert call(monkeypatch, tmp_path) == 1
    errors = capsys.readouterr().err
    assert "ended with status 1" in errors
    assert "SAFE: RuntimeError: no room" in errors
    text = (tmp_path / "report.md").read_text()
    assert "no room" in text
    assert "SpecEM" in text


def test_without_the_native_library_nothing_is_measured(measured, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, "without_native", facts.without_native)
    missing = {"compact_kv_": {"cpu": None}, "mix_distributions": {"cpu": "no compiler"}}
    monkeypatch.setattr(facts, "backends", lambda: missing)
    assert call(monkeypatch, tmp_path) == 2
    assert "mix_distributions: no compiler" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("ENSEMBLE_KERNELS_BACKEND", "reference")
    assert call(monkeypatch, tmp_path) == 2
    assert "ENSEMBLE_KERNELS_BACKEND is 'reference'" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["missing", "broken", "other", "folder"])
def test_an_earlier_report_is_read_before_anything_is_measured(
    measured, monkeypatch, tmp_path, capsys, kind
):
    earlier = tmp_path / "earlier.json"
    if kind == "folder":
        earlier.mkdir()
    elif kind != "missing":
        # A file of another benchmark has the machine as well.
        other = {"machine": {"processor": "A"}, "operators": {"compact_kv_": [{"case": "a"}]}}
        earlier.write_text("{" if kind == "broken" else json.dumps(other))
    monkeypatch.setattr(report, "measure", lambda *arguments: pytest.fail("was measured"))
    assert call(monkeypatch, tmp_path / "new", "--against", str(earlier)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"--against: {earlier} ")


def test_a_report_over_the_earlier_one_is_compared_with_what_was_there(
    measured, monkeypatch, tmp_path
):
    assert call(monkeypatch, tmp_path) == 0
    measured["runs"] = [run("SpecEM", seconds=[8.0]), run("CoSD", segment=5)]
    assert call(monkeypatch, tmp_path, "--against", str(tmp_path / "report.json")) == 0
    assert "1 slower" in (tmp_path / "report.md").read_text()


def test_a_file_is_no_folder(measured, monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert call(monkeypatch, tmp_path / "file") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("--output: ")


@pytest.mark.parametrize("package", ["matplotlib", "pytest-benchmark"])
def test_packages_are_looked_for_first(measured, monkeypatch, tmp_path, capsys, package):
    module = package.replace("-", "_")
    monkeypatch.setattr(needs, "find_spec", lambda name: None if name == module else name)
    assert call(monkeypatch, tmp_path / "new") == 2
    assert capsys.readouterr().err.strip().endswith(f"pip install {package}")


def test_a_model_that_does_not_load_is_said(measured, monkeypatch, tmp_path, capsys):
    """One line, with what failed before; what was measured before is there."""

    def measure(size, third, say, done):
        done([*measured["runs"], run("SAFE", failure="RuntimeError: no room")])
        raise MemoryError("too large\nby far")

    monkeypatch.setattr(report, "measure", measure)
    assert call(monkeypatch, tmp_path) == 1
    _, *lines = capsys.readouterr().err.splitlines()
    assert lines == ["end to end: MemoryError: too large", "SAFE: RuntimeError: no room"]
    assert "CoSD" in (tmp_path / "report.md").read_text()


def test_an_interrupted_run_keeps_what_it_has(measured, monkeypatch, tmp_path, capsys):
    def measure(size, third, say, done):
        done(measured["runs"][:1])
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "measure", measure)
    assert call(monkeypatch, tmp_path) == 130
    assert "interrupted" in capsys.readouterr().err
    written = json.loads((tmp_path / "report.json").read_text())
    assert [row["method"] for row in written["end_to_end"]["runs"]] == ["SpecEM"]


def test_interrupted_operators_keep_what_they_have(monkeypatch, tmp_path):
    class Process:
        """Writes its record when it is interrupted, as pytest does."""

        def __init__(self, command, cwd):
            self.record = Path(command[command.index("--json") + 1])

        def wait(self):
            if self.record.exists():
                return 2
            self.record.write_text(json.dumps({"machine": {}, **OPERATORS}))
            raise KeyboardInterrupt

    monkeypatch.setattr(report.subprocess, "Popen", Process)
    assert report.operators("quick", tmp_path) == (OPERATORS, report.INTERRUPTED)


def test_operators_that_fail_have_no_figures(monkeypatch, tmp_path):
    (tmp_path / "operators.json").write_text("{}")  # of an earlier run
    monkeypatch.setattr(report, "ROOT", tmp_path)  # where there are no benchmarks
    measured, failure = report.operators("quick", tmp_path)
    assert measured == {"operators": {}}
    assert failure.startswith("benchmarks of operators ended with status")


def test_the_installed_package_comes_before_the_folder(tmp_path):
    """From the root, whose folder of the same name may lack the native library."""
    package = tmp_path / "ensemble_kernels"
    package.mkdir()
    (package / "__init__.py").write_text("from . import part")
    (package / "part.py").write_text("")
    program = "import benchmarks, ensemble_kernels; print(ensemble_kernels.part.__file__)"
    environment = {"PYTHONPATH": str(tmp_path), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(package / "part.py"), done.stderr
