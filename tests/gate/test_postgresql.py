"""The tests on PostgreSQL that always run execute every statement."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gate.postgresql import covering, is_in_always, plain, read_chosen

ROOT = Path(__file__).resolve().parents[2]


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


def test_what_always_runs_is_not_chosen_again() -> None:
    always = "tests/server/database/test_engine.py::test_it[postgresql]"
    executed = {always: ["a", "b"], "other": ["b", "c"], "third": ["a"]}
    assert covering(executed, dict.fromkeys(executed, 1.0)) == ["other"]


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("tests/server/database/test_upsert.py::test_any[postgresql]", True),
        ("tests/server/scheduling/test_races.py::test_any[postgresql]", True),
        ("tests/server/scheduling/test_drain.py::test_any[postgresql]", False),
    ],
)
def test_a_place_has_the_tests_below_it(test: str, expected: bool) -> None:
    assert is_in_always(test) == expected


def test_each_chosen_test_exists() -> None:
    chosen = read_chosen(ROOT)
    assert len(chosen) > 100
    for test in chosen:
        path, _, name = test.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {name.partition('[')[0]}(" in text, f"{test}: run `make statements`"
