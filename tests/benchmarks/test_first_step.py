"""The benchmark of the first step: a real attempt, and the figure of given ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.start.first_step import Start, measure, spec, start


def test_an_attempt_is_measured(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    document = spec(layers=1, compiled=False)
    places = {"kernels": tmp_path / "kernels", "tokens": tmp_path / "tokens"}
    found = start(tmp_path / "run", document, **places)
    assert found.processor_seconds > found.step_seconds > 0
    assert found.stall_seconds >= 0
    assert list(places["kernels"].iterdir()) == [], "eager code has no kernels on a CPU"


def test_a_cold_attempt_finds_no_archive_and_a_warm_one_that_of_the_cold_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(folder: Path, document: dict[str, Any], *, kernels: Path, tokens: Path) -> Start:
        assert tokens.name == "tokens"
        folder.mkdir()
        seconds = 2.0
        if document["compile"]["enabled"]:
            archive = kernels / "archive.zip"
            seconds = 5.0 if archive.exists() else 20.0
            archive.touch()
        return Start(seconds, seconds / 2, 0.0, loss=1.0)

    assert measure(tmp_path, rounds=2, layers=1, start=run)
    line = json.loads(capsys.readouterr().out)
    assert line["figure"] == 0.25
    assert line["eager_processor_seconds"] == [2.0, 2.0]
    assert line["cold_processor_seconds"] == [20.0, 20.0]
    assert line["warm_step_seconds"] == [2.5, 2.5]
