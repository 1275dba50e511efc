"""Options, the cases of the chosen size, the ceilings of the run, and its tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch

from benchmarks.operators import report
from benchmarks.operators.ceilings import Ceilings, highest, last_level_cache, measure
from benchmarks.operators.frame import Setting, compare
from benchmarks.output_file import output_file
from benchmarks.timing import machine, write_json

ROWS = pytest.StashKey[dict[str, list[dict[str, Any]]]]()
CEILINGS = pytest.StashKey[list[Ceilings]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("operators' benchmarks")
    group.addoption("--quick", action="store_true", help="few cases, short")
    group.addoption("--tiny", action="store_true", help="one small case each: does it run?")
    group.addoption(
        "--json", type=output_file, metavar="FILE", help="where to write the figures of the tables"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        cases = metafunc.module.CASES[_size(metafunc.config)]
        metafunc.parametrize("case", cases, ids=str)


def _size(config: pytest.Config) -> str:
    return next((size for size in ("tiny", "quick") if config.getoption(size)), "full")


@pytest.fixture(scope="session")
def setting(pytestconfig: pytest.Config) -> Setting:
    size, threads = _size(pytestconfig), torch.get_num_threads()
    measured = [measure(n, size) for n in sorted({1, 2, threads})]
    pytestconfig.stash[CEILINGS] = measured
    return Setting(size, highest(measured, threads))


@pytest.fixture
def figures(
    request: pytest.FixtureRequest, benchmark: Any, setting: Setting
) -> Callable[..., None]:
    """Compares the alternatives for `operator` and keeps the rows for the report."""

    def run(operator: str, case: object, *args: Any, **options: Any) -> None:
        rows = compare(benchmark, setting, *args, **options)
        rows = [{"case": str(case), **row} for row in rows]
        benchmark.extra_info["rows"] = rows
        request.config.stash[ROWS].setdefault(operator, []).extend(rows)
        assert not [row["refused"] for row in rows if row.get("broken")]  # told, and no success

    return run


def pytest_benchmark_update_machine_info(
    config: pytest.Config, machine_info: dict[str, Any]
) -> None:
    machine_info["ensemble_kernels"] = machine()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    operators = config.stash[ROWS]
    if not any(operators.values()):
        return
    ceilings = config.stash[CEILINGS]
    terminalreporter.write_line(report.render(ceilings, operators))
    results = {
        "last_level_cache": last_level_cache(),
        "ceilings": [asdict(ceiling) for ceiling in ceilings],
        "operators": operators,
    }
    write_json(config.getoption("json"), results)
