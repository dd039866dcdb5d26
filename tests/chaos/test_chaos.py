"""Some faults and combinations with ranks of the standard library, on a cluster of namespaces."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.combinations import drawn
from tests.e2e.control_plane import REPOSITORY


def test_a_seed_draws_the_same_combinations_again() -> None:
    texts = [drawn(0, number, latest=8.0).text for number in range(50)]
    assert texts == [drawn(0, number, latest=8.0).text for number in range(50)]
    assert len(set(texts)) == 50


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.skipif(shutil.which("nft") is None, reason="packets are dropped by nft")
@pytest.mark.timeout(600)  # 45 s on a quiet machine
def test_jobs_survive(tmp_path: Path) -> None:
    """A rank is killed while it commits, and two combinations."""
    results = tmp_path / "results.jsonl"
    words = ["rank_killed_in_save", "--seed", "1", "--only", "5", "28", "--results", str(results)]
    command = [sys.executable, "-m", "tests.chaos", "--stand-in", *words]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-8000:]
    assert [json.loads(line)["passed"] for line in results.read_text().splitlines()] == [True] * 3
