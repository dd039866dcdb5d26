"""Names the tests that fail in a run and pass alone, and counts them for the next developer.

`make test-again` repeats what failed. What passes then is printed with its count, and added to
`tests/second_tries.json`, which is committed with the next change. Whoever mends a test removes its
entry.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

import pytest

FILE = "tests/second_tries.json"
OPTION = "--second-try"


class SecondTries(TypedDict):
    """Second tries of one test."""

    count: int
    last: str
    """Date of the newest one, in UTC."""


Tries = dict[str, SecondTries]


def add_tries(tries: Mapping[str, SecondTries], passed: Collection[str], *, today: str) -> Tries:
    """Return `tries` with one more for each test of `passed`, ordered by id."""
    added = dict(tries)
    for test in passed:
        count = added[test]["count"] if test in added else 0
        added[test] = {"count": count + 1, "last": today}
    return dict(sorted(added.items()))


def read_tries(path: Path) -> Tries:
    """Return the stored tries, by test id; none where the file is absent."""
    tries: Tries = json.loads(path.read_text()) if path.exists() else {}
    return tries


class SecondTry:
    """Counts what passes in a run of tests that have just failed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._passed: list[str] = []
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self._passed.append(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Store and print the tests that passed."""
        passed = [test for test in self._passed if test not in self._failed]
        if not passed:
            return
        tries = add_tries(
            read_tries(self._path), passed, today=datetime.now(UTC).date().isoformat()
        )
        self._path.write_text(json.dumps(tries, indent=2, ensure_ascii=False) + "\n")
        terminalreporter.section("failed before, passed alone")
        for test in passed:
            terminalreporter.line(f"{test}: second try number {tries[test]['count']}")
        terminalreporter.line(f"Each is a fault of its test: commit {FILE}, mend the test.")


def register(config: pytest.Config) -> None:
    """Count what passes, where the run is asked to."""
    if config.getoption(OPTION):
        config.pluginmanager.register(SecondTry(config.rootpath / FILE), "trainyard-second-try")
