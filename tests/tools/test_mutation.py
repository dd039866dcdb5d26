"""The count of mutants: killed ones by module, and the failing bound."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from tools.mutation import LEAST_KILLED, flatten, killed_share, listed_modules, main, report

ROOT = Path(__file__).parents[2]

RESULTS = [
    ("trainyard.training.batch_partition.x_deal__mutmut_1", "killed"),
    ("trainyard.training.batch_partition.x_deal__mutmut_2", "survived"),
    ("worker.supervisor.spool.x_next__mutmut_1", "timeout"),
    ("worker.supervisor.spool.x_next__mutmut_2", "no tests"),
    ("worker.supervisor.spool.x_next__mutmut_3", "killed"),
]


def test_each_module_and_all_together_are_counted() -> None:
    assert list(report(RESULTS)) == [
        {"module": "trainyard.training.batch_partition", "mutants": 2, "killed": 1, "share": 0.5},
        {"module": "worker.supervisor.spool", "mutants": 3, "killed": 2, "share": 0.667},
        {"module": "all", "mutants": 5, "killed": 3, "share": 0.6},
    ]
    assert killed_share(RESULTS) == 0.6


def test_a_run_that_tried_nothing_is_no_success() -> None:
    assert killed_share([]) < LEAST_KILLED


def test_every_module_and_test_that_is_listed_is_there() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
    paths = [*listed["only_mutate"], *listed["pytest_add_cli_args_test_selection"]]
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    assert "worker.supervisor.spool" in listed_modules(ROOT / "pyproject.toml")


def test_a_module_that_is_not_listed_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text('[tool.mutmut]\nonly_mutate = ["library/a/b.py", "c.py"]\n')
    assert main(["a.b", "a.x"]) == 2
    assert capsys.readouterr().out == "a.x: not mutated; legal: a.b, c\n"


def test_the_copy_has_the_library_at_the_top(tmp_path: Path) -> None:
    root, copy = tmp_path / "root", tmp_path / "copy"
    for name in ("library/trainyard/base/ids.py", "library/README.md", "server/app.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    (root / "pyproject.toml").write_text('only_mutate = ["library/trainyard/base/ids.py"]')
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    flatten(root, copy)
    found = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    assert found == {
        "trainyard/base/ids.py",
        "library/README.md",
        "server/app.py",
        "pyproject.toml",
    }
    assert (copy / "pyproject.toml").read_text() == 'only_mutate = ["trainyard/base/ids.py"]'
