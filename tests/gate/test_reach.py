"""A change reaches tests by imports, helpers, fixtures, and the folder that theirs mirrors."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.gate.reach import MIRRORS, changed_files, covered_by, full_id, is_reached
from tests.integration import DEEP

ROOT = Path(__file__).resolve().parents[2]
TREE = {
    "server/metrics/store.py": "import server.database\n",
    "server/metrics/charts.py": "",
    "server/database.py": "",
    "library/trainyard/spec/job.py": "",
    "library/trainyard/spec/layout.py": "",
    "tests/conftest.py": "",
    "tests/server/conftest.py": "from tests.server.clock import Clock\n",
    "tests/server/clock.py": "import server.database\n",
    "tests/server/metrics/test_store.py": "from server.metrics import store\n",
    "tests/server/metrics/helper.py": "",
    "tests/server/jobs/test_jobs.py": "from tests.server.metrics.helper import anything\n"
    'command = ("-m", "tests.jobs.stand_in")\n',
    "tests/jobs/stand_in.py": "",
    "tests/benchmarks/test_plans.py": "",
    "tests/library/spec/test_job.py": "from trainyard.spec.job import JobSpec\n",
}


def git(root: Path, *words: str) -> None:
    own = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    subprocess.run(("git", *own, *words), cwd=root, check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with one commit."""
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        pytest.param("server/metrics/store.py", {"metrics"}, id="a module that it imports"),
        pytest.param("server/metrics/charts.py", {"metrics"}, id="a module of its folder"),
        pytest.param("server/database.py", set(), id="what a module imports in turn"),
        pytest.param("library/trainyard/spec/layout.py", {"spec"}, id="a folder of the library"),
        pytest.param("tests/server/metrics/test_store.py", {"metrics"}, id="the file itself"),
        pytest.param("tests/server/metrics/helper.py", {"jobs"}, id="a helper that it imports"),
        pytest.param("tests/server/conftest.py", {"metrics", "jobs"}, id="fixtures above it"),
        pytest.param("tests/server/clock.py", {"metrics", "jobs"}, id="a helper of fixtures"),
        pytest.param(
            "tests/conftest.py", {"metrics", "jobs", "spec", "benchmarks"}, id="fixtures of all"
        ),
        pytest.param("tests/server/metrics/old/data.json", {"metrics"}, id="data of its folder"),
        pytest.param(
            "tests/all.json", {"metrics", "jobs", "spec", "benchmarks"}, id="data above it"
        ),
        pytest.param("tests/second_tries.json", set(), id="second tries, which no test reads"),
        pytest.param("tests/gate/turn.json", set(), id="the turn, which every landing advances"),
        pytest.param("tests/jobs/stand_in.py", {"jobs"}, id="a process that it starts by name"),
        pytest.param("docs/design.md", set(), id="a page"),
        pytest.param("benchmarks/plans/lines.py", {"benchmarks"}, id="any part of a benchmark"),
    ],
)
def test_a_change_reaches_the_tests_that_use_what_changed(
    root: Path, changed: str, reached: set[str]
) -> None:
    files = {
        "metrics": root / "tests/server/metrics/test_store.py",
        "jobs": root / "tests/server/jobs/test_jobs.py",
        "spec": root / "tests/library/spec/test_job.py",
        "benchmarks": root / "tests/benchmarks/test_plans.py",
    }
    found = {name for name, path in files.items() if is_reached(root, {changed}, path)}
    assert found == reached


def test_a_change_is_all_that_differs_from_a_commit(root: Path) -> None:
    first = full_id(root, "HEAD")
    assert not changed_files(root, first)
    (root / "server/database.py").write_text("x = 1\n")
    git(root, "commit", "--quiet", "--all", "-m", "second")
    (root / "server/metrics/charts.py").unlink()
    (root / "new.py").touch()
    changed = frozenset({"server/database.py", "server/metrics/charts.py", "new.py"})
    assert changed_files(root, first) == changed


def test_a_commit_that_is_no_ancestor_has_no_change(root: Path) -> None:
    assert changed_files(root, "0" * 40) is None
    git(root, "checkout", "--quiet", "-b", "other")
    (root / "server/database.py").write_text("x = 1\n")
    git(root, "commit", "--quiet", "--all", "-m", "elsewhere")
    elsewhere = full_id(root, "HEAD")
    git(root, "checkout", "--quiet", "-")
    assert changed_files(root, elsewhere) is None


def test_fixtures_that_are_gone_reach_the_tests_below_them(root: Path) -> None:
    path = root / "tests/server/metrics/test_store.py"
    (root / "tests/server/conftest.py").unlink()
    assert is_reached(root, {"tests/server/conftest.py"}, path)


def test_each_place_of_the_list_is_found_by_its_name() -> None:
    assert [place for place in MIRRORS if place != Path(place).as_posix()] == []


@pytest.mark.parametrize("place", ["tests/server", *MIRRORS, *DEEP])
def test_each_place_covers_files(place: str) -> None:
    path = ROOT / place
    for file in path.rglob("test_*.py") if path.is_dir() else (path,):
        patterns = covered_by(file.relative_to(ROOT))
        assert all(list(ROOT.glob(pattern)) for pattern in patterns), (file, patterns)
