"""Times from an order, or the death of a rank, to the next completed step, against a bare torchrun.

A resume starts a stopped job on half of its ranks, or on all of them again; its time starts at the
request. A kill ends a random rank of a running job by SIGKILL; its time starts at the signal. Both
end with the first completed step of the next attempt. Before each, the node's idle process listens;
it is the same one all the time, unless it has ended.

    python -m benchmarks.control_plane.launch_times [--rounds 7] [--kills 100] [--ranks 2] [--cold]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.control_plane.stack import PACKAGES, Running, stack
from benchmarks.control_plane.submit_to_first_step import await_idle, bare_seconds
from benchmarks.report import emit, percentile
from trainyard.client.errors import TrainyardError
from trainyard.protocol.record_parser import parse_record
from trainyard.protocol.rest.jobs import JobView
from trainyard.protocol.states import JobState
from trainyard.run.records import MetricRecord, Provenance
from worker.node.files import read_record
from worker.node.node_store import WorkerRun

RESUME_SECONDS, KILL_SECONDS = 2.5, 3.0
WAIT_SECONDS = 180.0
POLL_SECONDS = 0.02
RUNNING_SECONDS = 1.0
"""Minimum time of steps before a kill, which may then fall into a save or a report, or not."""

Found = TypeVar("Found")


def measure_resumes(running: Running, *, rounds: int, ranks: int) -> bool:
    """Resume a stopped job alternately on half of its ranks and on all of them."""
    job = running.yard.submit(spec("bench-resume", ranks))
    seconds: list[float] = []
    bare: list[float] = []
    manners: list[str] = []
    sizes = [max(1, ranks // 2), ranks]
    for number in range(rounds):
        run = attempt_run(running, job, number + 1)
        wait_for(partial(steps_of, run), "first step")
        running.yard.stop(job.id)
        wait_for(lambda: running.yard.job(job.id).state is JobState.STOPPED, "stopped job")
        await_idle(running)
        size = sizes[number % 2]
        bare.append(bare_seconds(run, ranks=size))
        began = time.time()
        running.yard.resume(job.id, world_size=size)
        again = attempt_run(running, job, number + 2)
        first = wait_for(partial(steps_of, again), "first step of the resume")[0]
        seconds.append(first.time - began)
        manners.append(manner_of(again))
    end(running, job)
    return emit(
        "resume_to_first_step",
        figure=statistics.median(seconds),
        unit="s (median)",
        target=RESUME_SECONDS,
        at_least=False,
        packages=PACKAGES,
        seconds=[round(one, 2) for one in seconds],
        bare_torchrun_seconds=[round(one, 2) for one in bare],
        launches=sorted(set(manners)),
        ranks=[sizes[number % 2] for number in range(rounds)],
        rounds=rounds,
    )


def measure_kills(running: Running, *, kills: int, ranks: int, seed: int = 0) -> bool:
    """Repeatedly kill a random rank of a running job."""
    chance = random.Random(seed)
    # Only the first failure since a person's start has no pause; here none may have one.
    retry = {"max_retries": 1000, "backoff_seconds": 0}
    job = running.yard.submit(spec("bench-kills", ranks, retry=retry))
    seconds: list[float] = []
    bare: list[float] = []
    manners: list[str] = []
    for number in range(1, kills + 1):
        run = attempt_run(running, job, number)
        wait_for(partial(steps_of, run), "first step")
        await_idle(running)
        time.sleep(chance.uniform(RUNNING_SECONDS, 2 * RUNNING_SECONDS))
        victim = chance.randrange(ranks)
        pid = rank_pid(run, victim)
        if number % max(1, kills // 10) == 0:  # while the job runs
            bare.append(bare_seconds(run, ranks=ranks))
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        again = attempt_run(running, job, number + 1)
        first = wait_for(partial(steps_of, again), "first step of the retry")[0]
        seconds.append(first.time - killed)
        manners.append(manner_of(again))
    end(running, job)
    return emit(
        "kill_to_next_step",
        figure=percentile(seconds, 0.95) if kills > 1 else seconds[0],
        unit="s (p95)",
        target=KILL_SECONDS,
        at_least=False,
        packages=PACKAGES,
        p50_seconds=round(statistics.median(seconds), 2),
        longest_seconds=round(max(seconds), 2),
        seconds=[round(one, 2) for one in seconds],
        bare_torchrun_seconds=[round(one, 2) for one in bare],
        launches={manner: manners.count(manner) for manner in sorted(set(manners))},
        ranks=ranks,
        kills=kills,
        seed=seed,
    )


def spec(name: str, ranks: int, **sections: Any) -> dict[str, Any]:
    """Return a job of a small model that trains until it is ended."""
    return {
        "name": name,
        "model": {"size": "debug"},
        "training": {
            "steps": 10**6,
            "global_batch_size": ranks,
            "micro_batch_size": 1,
            "log_every_steps": 1,
        },
        "lr_schedule": {"warmup_steps": 0},
        "resources": {"world_size": ranks, "device": "cpu"},
        **sections,
    }


def wait_for(look: Callable[[], Found | None], what: str) -> Found:
    """Return the first truthy result of `look`, which is called repeatedly.

    Raises:
        TimeoutError: there was none in time.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"no {what} after {WAIT_SECONDS:.0f} s")


def attempt_run(running: Running, job: JobView, number: int) -> WorkerRun:
    """Return the run directory of an attempt; it need not exist yet."""
    return WorkerRun(running.folders.node / "runs" / job.id / str(number))


def steps_of(run: WorkerRun) -> list[MetricRecord]:
    """Return the first line of metrics of a run, once there is one."""
    try:
        with run.metrics.open(encoding="utf-8") as file:
            line = file.readline()
    except FileNotFoundError:
        return []
    return [parse_record(MetricRecord, line)] if line.endswith("\n") else []


def rank_pid(run: WorkerRun, rank: int) -> int:
    """Return the pid of a rank from its wrapper's record."""
    words = (run.ranks / f"{rank}.start").read_text(encoding="ascii")
    return int(words.partition('"pid":')[2].partition(",")[0])


def manner_of(run: WorkerRun) -> str:
    """Return how the ranks of an attempt were started."""
    found = read_record(Path(run.provenance), Provenance)
    return (found and found.launch) or "unknown"


def end(running: Running, job: JobView) -> None:
    """Cancel a job, and wait for its end."""
    try:
        running.yard.cancel(job.id)
        running.yard.wait(job.id, timeout=WAIT_SECONDS, poll_seconds=0.5)
    except TrainyardError as error:
        print(f"the job is not cancelled: {error}", file=sys.stderr)


def main() -> int:
    """Measure on an embedded control plane."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="resumes; 0 for none")
    parser.add_argument("--kills", type=int, default=100, help="kills; 0 for none")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--cold", action="store_true", help="without an idle process")
    given = parser.parse_args()
    reached = True
    with stack(WARM=str(not given.cold).lower()) as running:
        if given.rounds:
            reached &= measure_resumes(running, rounds=given.rounds, ranks=given.ranks)
        if given.kills:
            reached &= measure_kills(running, kills=given.kills, ranks=given.ranks)
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
