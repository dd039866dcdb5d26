"""Names the tests that fail in a run and pass alone, and counts them for the next developer.

`.ci/run` repeats what failed, one at a time. What passes then is printed with its count, and added
to `tests/second_tries.json`. Commit the file with the next change; whoever mends a test removes its
entry.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

import pytest

from tests.gate.durations import stored_runs

ROOT = Path(__file__).resolve().parents[2]
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
    """Counts what passes in a run of tests that have just failed; each of them has to pass."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._left: set[str] = set()
        """Failed before, and have not passed since."""
        self._passed: set[str] = set()
        self._failed: set[str] = set()

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Read which tests have failed, before this run forgets those that do not fail again."""
        assert session.config.cache is not None
        self._left = set(session.config.cache.get("cache/lastfailed", {}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run if a test that failed before was skipped, or did not run."""
        self._passed -= self._failed
        self._left -= self._passed | self._failed
        if self._left and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Store and print the tests that passed, each with its count."""
        if self._left:
            terminalreporter.section("failed before, and skipped or absent now")
            for test in sorted(self._left):
                terminalreporter.line(test)
        passed = sorted(self._passed)
        if not passed:
            return
        today = datetime.now(UTC).date().isoformat()
        tries = add_tries(read_tries(self._path), passed, today=today)
        self._path.write_text(json.dumps(tries, indent=2, ensure_ascii=False) + "\n")
        terminalreporter.section(f"failed before and passed alone: entries of {FILE}")
        for test in passed:
            terminalreporter.line(json.dumps({test: tries[test]}))


def register(config: pytest.Config) -> None:
    """Count what passes, where the option is given."""
    if config.getoption(OPTION) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SecondTry(config.rootpath / FILE), "trainyard-second-try")


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Return 0 if a run since a second of Unix time reached its end, with tests that failed."""
    runs = [path for path in stored_runs(root) if path.stat().st_mtime >= int(arguments[0])]
    if runs:
        with runs[-1].open(encoding="utf-8") as file:
            problem = reason_for_no_second_try(json.loads(file.readline()))
    else:
        problem = "the tests broke off: they have stored no run"
    if problem is not None:
        sys.stderr.write(f"{problem}\n")
    return int(problem is not None)


def reason_for_no_second_try(run: Mapping[str, Any]) -> str | None:
    """Return what else than single tests failed in a run, by its stored line, if anything did."""
    if run["exit"] != pytest.ExitCode.TESTS_FAILED:
        return f"the tests ended with {run['exit']}: no failure of single tests"
    if run["died"]:
        return f"processes that died, so that the rest never ran: {', '.join(run['died'])}"
    if run["uncollected"]:
        return f"not collected, so that no test of them ran: {', '.join(run['uncollected'])}"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
