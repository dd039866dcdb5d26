"""Four landings run every deep test, and each runs those that its change reaches."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gate.reach import full_id
from tests.gate.test_reach import git
from tests.gate.turns import (
    FILE,
    MAX_COMMITS,
    TURNS,
    Turn,
    advance,
    read_turn,
    reason_to_run_all,
)
from tests.watchdog import MARK

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
from tests.gate import turns

def pytest_addoption(parser):
    parser.addoption(turns.OPTION, action="store_true")

def pytest_configure(config):
    config.addinivalue_line("markers", "deep: repeats another test")
    turns.register(config)
"""
TESTS = """
import pytest

def test_always(): pass

@pytest.mark.deep
@pytest.mark.parametrize("n", range(40))
def test_deep(n): pass
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a file of tests, one of which is not deep."""
    (tmp_path / "tests" / "gate").mkdir(parents=True)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "jobs.py").touch()
    (tmp_path / "tests" / "server").mkdir()
    (tmp_path / "tests" / "server" / "test_jobs.py").write_text(TESTS)
    git(tmp_path, "init", "--quiet")
    store(tmp_path, Turn(TURNS - 1, "0" * 40))
    return tmp_path


def store(root: Path, turn: Turn) -> None:
    (root / FILE).write_text(json.dumps({"turn": turn.turn, "base": turn.base}))
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "turn")


def run(root: Path, *words: str) -> tuple[set[str], str]:
    """Return the tests that a run of pytest passes, and what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # bytecode would be new files of the change
    command = (sys.executable, "-m", "pytest", "-rp", "-p", "no:cacheprovider", "--turn", *words)
    done = subprocess.run(
        command, cwd=root, env=environment, check=True, capture_output=True, text=True
    )
    return set(re.findall(r"^PASSED .*::(.+)$", done.stdout, re.MULTILINE)), done.stdout


def test_four_landings_run_every_deep_test_once(checkout: Path) -> None:
    runs = []
    for turn in range(TURNS):
        store(checkout, Turn(turn, full_id(checkout, "HEAD")))
        runs.append(run(checkout)[0])
    assert all("test_always" in passed for passed in runs)
    deep = [test for passed in runs for test in passed if test != "test_always"]
    assert len(deep) == len(set(deep)) == 40
    assert all(len(passed) > 1 for passed in runs)


def test_the_deep_tests_of_a_changed_module_run(checkout: Path) -> None:
    base = full_id(checkout, "HEAD")
    (checkout / "server" / "jobs.py").write_text("changed = True\n")
    store(checkout, Turn(0, base))
    passed, printed = run(checkout)
    assert len(passed) == 41
    assert "turn 1 of 4, 2 files changed since" in printed
    assert re.search(r"^ +1 always run$", printed, re.MULTILINE)
    assert re.search(r"^ +\d+ deep, reached by the change$", printed, re.MULTILINE)
    assert re.search(r"^ +\d+ deep, of this turn$", printed, re.MULTILINE)
    assert "left to the next turns" not in printed


def test_an_unknown_base_runs_everything(checkout: Path) -> None:
    passed, printed = run(checkout, "-p", "xdist", "--numprocesses", "1")
    assert len(passed) == 41
    assert "every deep test runs: the base is unknown or no ancestor of this commit" in printed
    assert re.search(r"^ +40 deep, all run$", printed, re.MULTILINE)


@pytest.mark.parametrize(
    "name",
    [
        *("constraints.txt", "pyproject.toml", "web/package-lock.json", "Makefile", ".ci/run"),
        *("migrations/versions/0001_first.py", "tests/conftest.py", "tests/integration.py"),
        *("tests/forkserver.py", "tests/gate/reach.py"),
        "server/core/database/engine.py",
    ],
)
def test_a_lock_a_migration_a_fixture_of_all_or_the_selection_runs_everything(name: str) -> None:
    assert reason_to_run_all({"README.md", FILE, name}) == f"{name} has changed"


def test_any_other_change_runs_a_turn() -> None:
    assert reason_to_run_all({FILE, "server/jobs/service.py", "tests/server/conftest.py"}) is None


def test_a_turn_that_nobody_advances_runs_everything() -> None:
    assert reason_to_run_all({"README.md"}, MAX_COMMITS) is None
    reason = reason_to_run_all({"README.md"}, MAX_COMMITS + 1)
    assert reason == f"{MAX_COMMITS + 1} commits have followed: `make turn` names the base anew"


def test_the_turn_of_a_landing_follows_that_of_the_last_one(checkout: Path) -> None:
    landed = full_id(checkout, "HEAD")
    for _ in range(2):  # once more, after a commit of its own
        (checkout / "server" / "jobs.py").write_text("changed = True\n")
        assert advance(checkout, landed[:10]) == read_turn(checkout) == Turn(0, landed)
        git(checkout, "commit", "--quiet", "--all", "--allow-empty", "-m", "part of the landing")
    second = full_id(checkout, "HEAD")
    assert advance(checkout, second) == Turn(1, second)
    with pytest.raises(ValueError, match="'nowhere' is unknown or no ancestor of this commit"):
        advance(checkout, "nowhere")


def test_a_turn_that_was_another_ones_runs_everything(checkout: Path) -> None:
    store(checkout, Turn(1, full_id(checkout, "HEAD")))
    passed, printed = run(checkout)
    assert len(passed) == 41
    assert "every deep test runs: turn 2 does not follow that of the base" in printed


@pytest.mark.parametrize(
    ("turn", "base"),
    [(TURNS, "0" * 40), (-1, "0" * 40), ("0", "0" * 40), (0, "HEAD"), (0, "0" * 12), (0, None)],
)
def test_a_turn_that_no_test_has_and_a_base_that_moves_are_refused(
    checkout: Path, turn: object, base: object
) -> None:
    (checkout / FILE).write_text(json.dumps({"turn": turn, "base": base}))
    with pytest.raises(pytest.UsageError, match="is one of 0 to 3, and base="):
        read_turn(checkout)


def test_another_configuration_of_pytest_is_refused(checkout: Path) -> None:
    (checkout / "pytest.ini").write_text("[pytest]\naddopts = --ignore=tests/server\n")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        run(checkout)
    assert "pytest.ini configures pytest, not pyproject.toml" in refused.value.stderr


def test_the_first_landing_has_the_first_turn(checkout: Path) -> None:
    git(checkout, "rm", "--quiet", FILE)
    git(checkout, "commit", "--quiet", "-m", "before there were turns")
    before = full_id(checkout, "HEAD")
    (checkout / "tests" / "gate").mkdir(exist_ok=True)
    assert advance(checkout, before) == Turn(0, before)


def test_the_stored_turn_can_be_read() -> None:
    turn = read_turn(ROOT)
    assert 0 <= turn.turn < TURNS
    assert re.fullmatch("[0-9a-f]{40}", turn.base)
