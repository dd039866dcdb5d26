"""Child processes of a rank from `multiprocessing`: they import its script, and write nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import multiprocessing
import os
import time

import trainyard

run = trainyard.init()
run.log({"loss": 1.0}, step=1)
run.progress(1)
run.flush()


def work():
    run.log({"loss": 9.0}, step=9)
    run.progress(9)
    run.close()


def lead():
    os.environ |= {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    import trainyard.run.session.process_run as process

    process._current = None
    own = trainyard.init()
    own.log({"loss": 5.0}, step=5)
    own.close()


if __name__ == "__main__":
    run.log({"loss": 2.0}, step=2)
    run.progress(2)
    run.flush()
    made = multiprocessing.get_context(os.environ["METHOD"]).Process(target=TARGET)
    made.start()
    made.join()
    raise SystemExit(made.exitcode)
"""


def steps(folder: Path, method: str, target: str) -> tuple[list[int], int]:
    """Run the script; return the steps of its records, and the step of its heartbeat."""
    script = folder / "train.py"
    script.write_text(SCRIPT.replace("TARGET", target), encoding="utf-8")
    run = folder / "run"
    run.mkdir()
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    subprocess.run(
        [sys.executable, str(script)],
        env={**inherited, "TRAINYARD_RUN": str(run), "METHOD": method},
        check=True,
        timeout=120,
    )
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    beat = json.loads((run / "heartbeat.json").read_text(encoding="utf-8"))
    return [json.loads(line)["step"] for line in lines], beat["step"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_worker_of_a_loader_writes_nothing_however_it_is_started(
    tmp_path: Path, method: str
) -> None:
    assert steps(tmp_path, method, "work") == ([1, 2], 2)


def test_a_process_with_a_rank_of_its_own_writes(tmp_path: Path) -> None:
    assert steps(tmp_path, "spawn", "lead") == ([1, 2, 5], 2)
