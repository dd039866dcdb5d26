"""The folder in which a person types a command has no part in what the command runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from embedded.child import PYTHON

COMMAND = Path(sys.executable).with_name("trainyard")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of a training project, whose modules have the names of our programs."""
    for name in ("embedded", "server", "worker", "trainer", "trainyard"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('this is the module of a user')\n")
    return tmp_path


def test_up_runs_our_control_plane(project: Path) -> None:
    done = subprocess.run(
        [COMMAND, "up", "--help"], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--slots" in done.stdout


@pytest.mark.parametrize("module", ["server", "worker", "trainyard"])
def test_up_runs_our_programs(project: Path, module: str) -> None:
    done = subprocess.run(
        [*PYTHON, module, "--help"], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()
