"""Chooses the tests on PostgreSQL that always run: together they execute every SQL statement.

`make statements` runs all tests on PostgreSQL, records what each of them executes there, and writes
the cheapest set that it finds to `tests/server/on_postgresql.txt`. The others are deep: they repeat
statements with other data. A new test is deep too, and runs with the change that brings it. Run
`make statements` after a change of many statements.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.gate.durations import FOLDER, duration_of, stored_runs

ROOT = Path(__file__).resolve().parents[2]
OPTION = "--statements"
FILE = "tests/server/on_postgresql.txt"
ALWAYS = {
    "tests/server/api/test_group_commit.py": "requests that share a transaction",
    "tests/server/attempts/test_claims_together.py": "statements, whose number differs by dialect",
    "tests/server/artifacts/test_uploads.py": "uploads that race",
    "tests/server/database": "types, upserts, isolation and migrations, which differ by dialect",
    "tests/server/events/test_notices.py": "commits in the order of an advisory lock",
    "tests/server/ingest/test_ingest.py": "copies of a report that race",
    "tests/server/ingest/test_reports_together.py": "reports that share a transaction",
    "tests/server/jobs/test_jobs.py": "locks, and numbers of statements",
    "tests/server/jobs/test_submissions_together.py": "numbers of statements",
    "tests/server/packs/test_packs.py": "uploads that race",
    "tests/server/scheduling/test_leader.py": "a lead that is taken over",
    "tests/server/scheduling/test_lock_order.py": "locks of rows",
    "tests/server/scheduling/test_races.py": "transactions that race",
}
"""Folders and files whose tests always run on PostgreSQL, which locks and isolates as no SQLite."""
_PARAMETERS = re.compile(r"(?:%\([^)]*\)s(?:::[\w ]+)?(?:\[\])?(?:, )?)+")
"""Parameters, of which an IN has as many as it has values."""
_ROWS = re.compile(r"(?:\(\?\)(?:, )?)+")
"""Rows of values, of which an INSERT may have many."""


def plain(statement: str) -> str:
    """Return a statement without the names and the number of its parameters."""
    return _ROWS.sub("(?)", _PARAMETERS.sub("?", " ".join(statement.split())))


def covering(executed: Mapping[str, Iterable[str]], seconds: Mapping[str, float]) -> list[str]:
    """Return the tests that execute every statement with those of `ALWAYS`, ordered by id.

    Args:
        executed: statements by test.
        seconds: duration by test; the test with the most new statements for a second comes first.
    """
    waiting = {test: set(statements) for test, statements in executed.items()}
    left = set[str]().union(*waiting.values())
    for test in [test for test in waiting if is_in_always(test)]:
        left -= waiting.pop(test)
    chosen = []
    while left:
        test = max(waiting, key=lambda test: (len(waiting[test] & left) / seconds[test], test))
        left -= waiting.pop(test)
        chosen.append(test)
    return sorted(chosen)


def is_in_always(test: str) -> bool:
    """Return whether a place of `ALWAYS` has a test, given by its id."""
    path = Path(test.partition("::")[0])
    return any(place.as_posix() in ALWAYS for place in (path, *path.parents))


def read_chosen(root: Path) -> frozenset[str]:
    """Return the ids of the tests that `main` chose."""
    return frozenset((root / FILE).read_text(encoding="utf-8").splitlines())


def main() -> int:
    """Write the tests that always run, from the newest run, which recorded statements."""
    lines = [line for file in stored_runs(ROOT)[-1:] for line in _tests_of(file)]
    executed = {line["test"]: line["statements"] for line in lines}
    if not executed:
        sys.stderr.write(f"the newest run in {FOLDER} has no statements: it needs {OPTION}\n")
        return 1
    chosen = covering(executed, {line["test"]: duration_of(line) for line in lines})
    (ROOT / FILE).write_text("".join(f"{test}\n" for test in chosen), encoding="utf-8")
    sys.stdout.write(f"{FILE}: {len(chosen)} of {len(executed)} tests execute all statements\n")
    return 0


def _tests_of(file: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the tests of a run that passed and executed statements."""
    for line in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
        if line.get("statements") and line["outcome"] == "passed":
            yield line


if __name__ == "__main__":
    sys.exit(main())
