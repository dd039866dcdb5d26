"""The program that kills runs at random moments, with few kills; `make soak` has many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.soak import SHORT, soak


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_few_random_kills_change_nothing(tmp_path: Path) -> None:
    figures = soak(tmp_path, kills=6, seed=4)
    assert figures.kills == sum(figures.where.values()) == 6
    assert figures.resumes == 6, "each kill is followed by an attempt that goes on"
    assert figures.steps == figures.runs * SHORT
