"""The commands of "By hand" in docs/trainer.md, read from the page, one after the other."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "trainer.md"
FENCE = "```"


CHECK = "python -m trainer check run"


def commands() -> list[str]:
    """Return the fenced blocks of the section that start the trainer, in their order."""
    section = PAGE.read_text().partition("\n## By hand\n")[2].partition("\n## ")[0]
    assert f"`{CHECK}`" in section
    blocks = re.findall(rf"^{FENCE}\n(.*?)^{FENCE}$", section, re.MULTILINE | re.DOTALL)
    return [block for block in blocks if " -m trainer " in block]


def run(command: str, folder: Path) -> None:
    """Run a block like a person: in a shell with the active environment."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def digests(folder: Path) -> dict[object, object]:
    records = lines(folder / "metrics.jsonl")
    return {each["step"]: each["data_digest"] for each in records if each["data_digest"]}


@pytest.mark.timeout(600)  # two trainings, on a machine that may be busy
def test_the_recipe_runs_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    first, second = commands()
    prepare, start = first.splitlines()
    for command in (prepare, CHECK, start, second):
        run(command, tmp_path)
    for name, step in (("run", 60), ("run2", 80)):
        outcome = json.loads((tmp_path / name / "outcome.json").read_text())
        assert (outcome["outcome"], outcome["step"]) == ("succeeded", step)
    before, after = digests(tmp_path / "run"), digests(tmp_path / "run2")
    assert [*after] == [*range(41, 81)]
    assert all(after[step] == before[step] for step in range(41, 61))
    (resumed,) = (e for e in lines(tmp_path / "run2/events.jsonl") if e["kind"] == "resumed")
    assert resumed["step"] == 40
