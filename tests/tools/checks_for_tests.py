"""Checks with every possible end, for the tests of the runner."""

import os
import subprocess
import time
from pathlib import Path

from tools.gpu_check.check import Here
from trainyard.prove.figures import Figure, at_most, equal, reported


def passes(here: Here, times: str) -> list[Figure]:
    with Path(times).open("a", encoding="utf-8") as file:
        file.write("x")
    return [at_most("value", 0.5, 1.0), reported("device", here.device)]


def misses(here: Here) -> list[Figure]:
    return [at_most("value", float("nan"), 1.0)]


def has_no_bound(here: Here) -> list[Figure]:
    return [reported("value", 1.0)]


def raises(here: Here) -> list[Figure]:
    raise ValueError("dim=7 is odd")


def crashes(here: Here) -> list[Figure]:
    subprocess.Popen(["sleep", "600"])  # it outlives its parent until its group is killed
    os.kill(os.getpid(), 11)
    return []


def hangs(here: Here) -> list[Figure]:
    time.sleep(600)
    return []


def meets(here: Here, folder: str, name: str, count: int) -> list[Figure]:
    Path(folder, name).touch()
    deadline = time.monotonic() + 60
    while (met := len(list(Path(folder).iterdir()))) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    return [equal("met", met, count)]


def is_alone(here: Here, folder: str) -> list[Figure]:
    mine = Path(folder, "running")
    mine.touch(exist_ok=False)
    time.sleep(0.2)
    mine.unlink()
    return [equal("alone", "yes", "yes")]
