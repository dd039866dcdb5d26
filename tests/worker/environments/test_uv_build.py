"""The command of a build: what it writes is bounded while it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from worker.environments import uv_build
from worker.node.folder_usage import FolderWatch, Limit

FILL = """
import os, sys, time
with open(sys.argv[1] + "/large", "wb") as file:
    file.write(os.urandom(2 ** 21))
time.sleep(600)
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A command that writes 2 MiB and does not end."""
    (tmp_path / "target").mkdir()
    return [sys.executable, "-c", FILL, str(tmp_path / "target")]


def test_a_build_that_takes_too_much_is_ended_while_it_runs(
    tmp_path: Path, words: list[str]
) -> None:
    target = tmp_path / "target"
    watch = FolderWatch(target, Limit(2**20, 100), seconds=0.05)
    watch.start()
    failed = uv_build._run(words, tmp_path, {}, seconds=300.0, watches=[watch])
    assert failed == f"was ended: {target} takes more than 1,048,576 bytes of disk"


def test_a_build_that_lasts_too_long_is_ended(tmp_path: Path, words: list[str]) -> None:
    failed = uv_build._run(words, tmp_path, {}, seconds=0.0, watches=[])
    assert failed == "took longer than 3600 s"


@pytest.mark.parametrize(("code", "failed"), [(0, None), (3, "ended with status 3")])
def test_the_status_of_a_command_decides(tmp_path: Path, code: int, failed: str | None) -> None:
    words = [sys.executable, "-c", f"import sys; print('said'); sys.exit({code})"]
    assert uv_build._run(words, tmp_path, {}, seconds=60.0, watches=[]) == failed
    assert (tmp_path / uv_build.BUILD_LOG).read_text() == "said\n"
