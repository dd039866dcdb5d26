"""Cost of `run.log` per step, and the stored points, while the server is killed and away.

A job of a real control plane logs 100 values at 10 Hz from each of its processes, and times the
calls. In the middle the server is killed with SIGKILL, and restarted on the same data after a
while. After the end of the job, each point at the server is compared with the logged value.

    python -m benchmarks.run_log.outage [--processes 16] [--away-seconds 60]
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.control_plane.servers import PACKAGES
from benchmarks.control_plane.stack import Running, stack
from benchmarks.report import emit
from benchmarks.run_log.calls import emit_calls

VALUES = 100
HERTZ = 10
WAIT_SECONDS = 300
FOLDED = ("min", "mean", "max")
RANK = """
import json, os, sys, time
from pathlib import Path
import trainyard

run = trainyard.init()
here, hertz, number = Path(), float(sys.argv[1]), int(sys.argv[2])
Path(f"ready-{run.rank}").touch()
if run.rank == 0:
    while len(list(here.glob("ready-*"))) < run.world_size:
        time.sleep(0.05)
    Path("starting").write_text(str(time.time() + 1))
    os.replace("starting", "start")
while not Path("start").exists():
    time.sleep(0.05)
start, step, last, calls = float(Path("start").read_text()), 0, None, []
while last is None or step < last:
    step += 1
    time.sleep(max(0.0, start + step / hertz - time.time()))
    values = {f"bench/value_{n}": step * 64 + run.rank + n / 128 for n in range(number)}
    before, processor = time.perf_counter(), time.thread_time()
    run.log(values, step=step)
    calls.append((time.perf_counter() - before, time.thread_time() - processor, time.time()))
    if last is None and os.path.exists("last"):
        last = int(Path("last").read_text())
Path(f"calls-{run.rank}.json").write_text(json.dumps(calls))
"""
"""Logs until the step named in the file `last`; its values and their means are exact."""


def job_of(folder: Path, *, processes: int, values: int) -> dict[str, Any]:
    """Write the script into a folder below the root `data`; return the spec of its job."""
    folder.mkdir()
    (folder / "log.py").write_text(RANK, encoding="utf-8")
    return {
        "name": folder.name,
        "program": {
            "command": ["log.py", str(HERTZ), str(values)],
            "code": {"folder": f"data:{folder.name}"},
        },
        "resources": {"world_size": processes, "device": "cpu"},
    }


def end_after(folder: Path, seconds: float) -> int:
    """Make all processes end in `seconds`, after the same step; return that step."""
    start = float((folder / "start").read_text())
    last = math.ceil((time.time() - start + seconds) * HERTZ)
    (folder / "ending").write_text(str(last))
    (folder / "ending").replace(folder / "last")
    return last


def deviations(lines: Iterable[str], *, processes: int, values: int, steps: int) -> Counter[str]:
    """Compare the points of a job with the values that its processes logged.

    Args:
        lines: the points as CSV, header first.
        processes: number of processes.
        values: values that each process logged per step.
        steps: last step.

    Returns:
        Numbers of lost, duplicated and changed points; and `points`, the number of correct ones.
    """
    left = expected(processes=processes, values=values, steps=steps)
    found: Counter[str] = Counter(points=0, lost=0, doubled=0, other=0)
    seen: set[tuple[str, int]] = set()
    for row in csv.DictReader(lines):
        point = row["name"], int(row["step"])
        if not row["name"].startswith("bench/"):
            continue
        if point in seen:
            found["doubled"] += 1
        elif left.pop(point, None) == float(row["value"]):
            found["points"] += 1
        else:
            found["other"] += 1
        seen.add(point)
    found["lost"] = len([point for point in left if point not in seen])
    return found


def expected(*, processes: int, values: int, steps: int) -> dict[tuple[str, int], float]:
    """Return the value of each point, by name and step."""
    ranks = {"min": 0.0, "mean": (processes - 1) / 2, "max": processes - 1.0}
    endings = {"": 0.0} | {f"/{each}": ranks[each] for each in FOLDED if processes > 1}
    return {
        (f"bench/value_{n}{ending}", step): step * 64 + rank + n / 128
        for step in range(1, steps + 1)
        for n in range(values)
        for ending, rank in endings.items()
    }


def measure(running: Running, *, processes: int, away: float, around: float) -> bool:
    """Log, kill the server, compare; print the figures.

    Args:
        running: the control plane, with a slot for each process.
        processes: number of processes.
        away: seconds for which the server is away.
        around: seconds of logging before and after that.
    """
    folder = running.folders.data / "run-log-outage"
    job = running.yard.submit(job_of(folder, processes=processes, values=VALUES))
    _wait_for((folder / "start").exists, "the first step")
    time.sleep(around)
    _wait_for(lambda: running.yard.metrics(job.id, max_points=1).last_step, "points")
    with running.killed_server():
        killed_at = time.time()
        time.sleep(away)
        back_at = time.time()
    answered_at = time.time()
    steps = end_after(folder, around)
    running.succeed(job, timeout=WAIT_SECONDS + around)
    calls = np.array([_calls(folder, rank) for rank in range(processes)])
    if calls.shape != (processes, steps, 3):
        raise RuntimeError(f"calls of shape {calls.shape}, not of {steps} steps")
    wall, processor, at = calls.reshape(-1, 3).T
    without = wall[(at > killed_at) & (at < back_at)]
    fast = emit_calls(
        "run_log_outage_call",
        wall,
        processor,
        processes=processes,
        values=VALUES,
        hertz=HERTZ,
        p99_without_server=float(f"{np.quantile(without, 0.99):.3g}"),
    )
    points = running.yard.metrics_csv(job.id)
    found = deviations(points, processes=processes, values=VALUES, steps=steps)
    kept = emit(
        "run_log_outage_points",
        figure=found["lost"] + found["doubled"] + found["other"],
        unit="points lost, doubled or other than logged",
        target=0,
        at_least=False,
        packages=PACKAGES,
        **found,
        steps=steps,
        seconds_without_server=round(answered_at - killed_at, 1),
        steps_without_server=len(without) // processes,
    )
    return fast and kept


def _calls(folder: Path, rank: int) -> list[list[float]]:
    found: list[list[float]] = json.loads((folder / f"calls-{rank}.json").read_bytes())
    return found


def _wait_for(look: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not look():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} after {WAIT_SECONDS} s")
        time.sleep(0.1)


def main() -> int:
    """Measure on an embedded control plane; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--away-seconds", type=float, default=60)
    parser.add_argument("--around-seconds", type=float, default=20)
    given = parser.parse_args()
    with stack(slots=given.processes, ALLOW_CODE="true") as running:
        passed = measure(
            running,
            processes=given.processes,
            away=given.away_seconds,
            around=given.around_seconds,
        )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
