"""Each measured second of a run belongs to one folder and one cause."""

from __future__ import annotations

import re
from typing import Any

from tools.durations import page

RUN = {
    "run": ["-m", "not slow"],
    "seconds": 120.0,
    "busy_cpu": 200.0,
    "load_before": [0.5, 0, 0],
    "load_after": [3.0, 0, 0],
    "cores": 2,
    "machine": "a processor",
    "python": "3.11",
    "exit": 0,
}


def line(test: str, **values: Any) -> dict[str, Any]:
    nothing = {"outcome": "passed", "cpu": 0.0, "ranks_cpu": 0.0, "fixtures": {}, "spans": {}}
    return {"test": test, **nothing, "setup": 0.0, "call": 0.0, "teardown": 0.0, **values}


LINES = [
    RUN,
    {"collection": "gw0", "seconds": 30.0, "cpu": 20.0},
    line("tests/server/jobs/test_a.py::test_x[sqlite]", call=20.0, cpu=3.0),
    line("tests/server/test_b.py::test_y[held-postgresql]", setup=15.0, fixtures={"url": 15.0}),
    line(
        "tests/trainer/loop/test_kills.py::test_z", call=40.0, ranks_cpu=7.0, spans={"ranks": 28.0}
    ),
    line("tests/test_c.py::test_c", call=11.0, outcome="failed"),
]


def rows(text: str, heading: str) -> dict[str, list[float]]:
    """Return the numbers of each row of a table, by its first cell."""
    table = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    found = {}
    for row in re.findall(r"^\| (.+) \|$", table, re.MULTILINE)[1:]:
        name, *cells = row.split(" | ")
        found[name] = [float(cell) for cell in cells]
    return found


def test_seconds_are_summed_by_folder_and_by_cause() -> None:
    text = page(LINES)
    assert "4 tests (1 failed, 0 skipped) in 2.0 minutes.\n2 cores" in text
    assert "load 0.5 before, 3.0 after.\n1 processes collected for 30 s" in text
    assert rows(text, "By folder") == {
        "tests/trainer/loop": [1, 40, 7],
        "tests/server/jobs": [1, 20, 3],
        "tests/server": [1, 15, 0],
        "tests": [1, 11, 0],
    }
    assert rows(text, "By cause") == {
        "collection": [30],
        "span `ranks`": [28],
        "tests on sqlite in `tests/server`": [20],
        "fixture `url`": [15],
        "`tests/trainer/loop/test_kills.py`: a run that is killed at each point of a save": [12],
        "other tests of `tests/test_c.py`": [11],
        "causes of less than 10 s each": [0],
    }
    slowest = rows(text, "The 50 slowest tests")
    assert next(iter(slowest)) == "`tests/trainer/loop/test_kills.py::test_z`"
    assert list(slowest.values()) == [[40, 7], [20, 3], [15, 0], [11, 0]]
