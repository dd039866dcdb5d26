"""Time from the commit of a checkpoint until the catalog lists it, through worker and server.

A job on two ranks saves at every step; the list of its checkpoints is polled.

    python -m benchmarks.control_plane.commit_to_catalog [--commits 40]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from benchmarks.control_plane.stack import PACKAGES, Running, stack
from benchmarks.report import emit, percentile
from trainyard.protocol.record_parser import parse_record
from trainyard.protocol.states import TERMINAL_JOB_STATES
from trainyard.run.records import EventRecord

RANKS = 2
TARGET = 1.0
POLL_SECONDS = 0.02
JOB_SECONDS = 600


def measure(running: Running, *, commits: int) -> bool:
    """Print the time from a commit until a poll finds it.

    Raises:
        RuntimeError: the job failed.
        TimeoutError: it did not end in time.
    """
    job = running.yard.submit(
        {
            "name": "bench-commits",
            "model": {"size": "debug"},
            "training": {"steps": commits - 1, "global_batch_size": RANKS, "micro_batch_size": 1},
            "lr_schedule": {"warmup_steps": 0},
            "checkpoint": {"interval_steps": 1, "keep_latest_k": 0},
            "resources": {"world_size": RANKS, "device": "cpu"},
        }
    )
    seen: dict[str, float] = {}
    deadline = time.monotonic() + JOB_SECONDS
    over = False
    while not over:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(seen)} of {commits} commits after {JOB_SECONDS} s")
        # The state first: commits before the end are then polled after it.
        over = running.yard.job(job.id).state in TERMINAL_JOB_STATES
        for checkpoint in running.yard.checkpoints(job.id):
            seen.setdefault(checkpoint.id, time.time())
        time.sleep(POLL_SECONDS)
    running.succeed(job, timeout=0)
    events = Path(running.run(job).events).read_text(encoding="utf-8").splitlines()
    lines = [parse_record(EventRecord, text) for text in events]
    waits = [
        seen[str(line.data["checkpoint_id"])] - line.time
        for line in lines
        if line.kind == "checkpoint_committed"
    ]
    return emit(
        "checkpoint_commit_to_catalog",
        figure=percentile(waits, 0.95),
        unit="s from the commit to the catalog (p95)",
        target=TARGET,
        at_least=False,
        packages=PACKAGES,
        median_seconds=round(statistics.median(waits), 3),
        commits=len(waits),
    )


def main() -> int:
    """Measure on an embedded control plane."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=40)
    given = parser.parse_args()
    with stack() as running:
        return 0 if measure(running, commits=given.commits) else 1


if __name__ == "__main__":
    sys.exit(main())
