"""The tests on PostgreSQL that always run execute every statement."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gate.statements import FILE, AlwaysRun, covering, plain


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(
            "SELECT a FROM t WHERE id IN (%(id_1_1)s, %(id_1_2)s)",
            "SELECT a\nFROM t WHERE id IN (%(id_1_1)s)",
            id="the values of an IN",
        ),
        pytest.param(
            "INSERT INTO t (a, b) VALUES (%(a__0)s, %(b__0)s), (%(a__1)s, %(b__1)s)",
            "INSERT INTO t (a, b) VALUES (%(a__0)s, %(b__0)s)",
            id="the rows of an INSERT",
        ),
        pytest.param("SELECT %(x_1)s::INTEGER[] = a", "SELECT %(y_1)s::INTEGER[] = a", id="a cast"),
    ],
)
def test_statements_differ_by_more_than_their_parameters(one: str, other: str) -> None:
    assert plain(one) == plain(other)
    assert plain(one) != plain(one.replace("a", "c"))


def test_every_statement_is_covered_by_the_cheapest_test() -> None:
    executed = {"dear": ["a", "b", "c"], "cheap": ["a", "b"], "other": ["c"], "empty": []}
    seconds = {"dear": 9.0, "cheap": 1.0, "other": 1.0, "empty": 0.1}
    assert covering(executed, seconds) == ["cheap", "other"]
    assert covering(executed, seconds | {"dear": 0.5}) == ["dear"]
    assert covering({}, {}) == []


def test_listed_tests_and_those_of_locks_always_run(tmp_path: Path) -> None:
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).write_text("tests/server/jobs/test_jobs.py::test_it[postgresql]\n")
    always = AlwaysRun(tmp_path)
    assert always.has("tests/server/jobs/test_jobs.py::test_it[postgresql]")
    assert not always.has("tests/server/jobs/test_jobs.py::test_that[postgresql]")
    assert always.has("tests/server/database/test_upsert.py::test_any[postgresql]")
    assert always.has("tests/server/scheduling/test_races.py::test_any[postgresql]")
    assert not always.has("tests/server/scheduling/test_drain.py::test_any[postgresql]")
