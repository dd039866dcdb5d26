"""The command of a build: what uv prints and how it ends."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from worker.environments import uv_build


@pytest.mark.parametrize(("code", "failed"), [(0, None), (3, "ended with status 3")])
def test_the_status_of_a_command_decides(tmp_path: Path, code: int, failed: str | None) -> None:
    words = [sys.executable, "-c", f"import sys; print('said'); sys.exit({code})"]
    assert uv_build._run(words, tmp_path, {}) == failed
    assert (tmp_path / uv_build.BUILD_LOG).read_text() == "said\n"
