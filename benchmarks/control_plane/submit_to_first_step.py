"""Time from a submission to the trainer's first completed step, against a bare torchrun.

A job goes through the API of a running embedded control plane: stored, placed, sent, claimed,
checked, launched, with its dataset opened and its preflight saved during the first step. The node
has an idle process at each submission, unless launches are to be cold. The bare launch is
`torchrun` of a script that imports torch and joins the process group, on the same number of ranks.
Both alternate, so that other load on the machine affects both alike. The first job, which also
builds the token cache, is reported separately.

    python -m benchmarks.control_plane.submit_to_first_step [--rounds 7] [--ranks 2] [--cold]
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.control_plane.stack import PACKAGES, Running, stack
from benchmarks.launch import torchrun
from benchmarks.report import emit
from trainyard.protocol.record_parser import parse_record
from trainyard.run.records import EventRecord, MetricRecord, Provenance
from worker.node.files import read_record
from worker.node.node_store import LaunchRecord, NodeStore, WorkerRun
from worker.warm.hand_over import connected

TARGET_SECONDS = 1.5
IDLE_SECONDS = 120.0
JOB_SECONDS = 180
BARE_SCRIPT = """
import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if os.environ["RANK"] == "0":
    with open(sys.argv[1], "w") as file:
        file.write(str(time.time()))
dist.barrier()
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Launched:
    """A job that has run, with the times of its phases up to the first step."""

    run: WorkerRun
    at: dict[str, float]
    """Unix time of the end of each phase, in order; the first is the submission's."""
    launch: str
    """How the ranks were started."""

    @property
    def phases(self) -> dict[str, float]:
        """Seconds of each phase."""
        return {
            name: ended - began for (_, began), (name, ended) in itertools.pairwise(self.at.items())
        }

    @property
    def total(self) -> float:
        """Seconds from the submission to the first completed step."""
        return sum(self.phases.values())


def measure(running: Running, *, rounds: int, ranks: int) -> bool:
    """Alternate launches of jobs and bare scripts; print the figure with its phases."""
    first = launch(running, spec(ranks))
    jobs: list[Launched] = []
    bare: list[float] = []
    for _ in range(rounds):
        bare.append(bare_seconds(first.run, ranks=ranks))
        jobs.append(launch(running, spec(ranks)))
    totals = [job.total for job in jobs]
    return emit(
        "submit_to_first_step",
        figure=statistics.median(totals),
        unit="s (median)",
        target=TARGET_SECONDS,
        at_least=False,
        packages=PACKAGES,
        submit_to_first_step_seconds=[round(seconds, 2) for seconds in totals],
        bare_torchrun_seconds=[round(seconds, 2) for seconds in bare],
        first_job_seconds=round(first.total, 2),
        launches=sorted({job.launch for job in jobs}),
        phase_seconds=phase_medians(jobs),
        ranks=ranks,
        rounds=rounds,
    )


def phase_medians(jobs: Sequence[Launched]) -> dict[str, float]:
    """Return the median seconds of each phase."""
    phases = [job.phases for job in jobs]
    return {name: round(statistics.median(each[name] for each in phases), 2) for name in phases[0]}


def launch(running: Running, document: Mapping[str, Any]) -> Launched:
    """Run a short job to its end, so that the next one finds the machine in the same state."""
    await_idle(running)
    submitted = time.time()
    job = running.yard.submit(document)
    stored = time.time()
    running.succeed(job, timeout=JOB_SECONDS)
    run = running.run(job)
    seen = {event.kind: event.at.timestamp() for event in running.yard.events(job.id)}
    phases = told_by_trainer(run)
    at = {
        "submitted": submitted,
        "request": stored,
        "placing": seen["placed"],
        "message_and_claim": seen["claimed"],
        "supervisor": run.identity.stat().st_mtime,
        "launcher": born(run.launcher_log),
        "ranks_begin": (run.ranks / "0.start").stat().st_mtime,
        "imports_without_torch": phases["starting"],
        "torch_and_process_group": phases["building_cache"],
        "dataset": phases["loading"],
        "model": phases["training"],
        "first_step_and_preflight": first_line(run).time,
    }
    found = read_record(Path(run.provenance), Provenance)
    return Launched(run, at, (found and found.launch) or "unknown")


def await_idle(running: Running) -> None:
    """Wait until the node has an idle process, unless its worker keeps none."""
    deadline = time.monotonic() + IDLE_SECONDS
    while running.is_warm:
        try:
            with connected(NodeStore(running.folders.node)):
                return
        except OSError:  # no process listens, though a former one's socket exists
            if time.monotonic() > deadline:
                raise TimeoutError(f"no idle process after {IDLE_SECONDS:.0f} s") from None
            time.sleep(0.1)


def spec(ranks: int) -> dict[str, Any]:
    """Return a job of two short steps."""
    return {
        "name": "bench-start",
        "model": {"size": "debug"},
        "training": {"steps": 2, "global_batch_size": ranks, "micro_batch_size": 1},
        "lr_schedule": {"warmup_steps": 0},
        "resources": {"world_size": ranks, "device": "cpu"},
    }


def told_by_trainer(run: WorkerRun) -> dict[str, float]:
    """Return the time at which each phase was first entered."""
    phases: dict[str, float] = {}
    for text in run.events.read_text(encoding="utf-8").splitlines():
        line = parse_record(EventRecord, text)
        if line.kind == "phase":
            phases.setdefault(str(line.data["phase"]), line.time)
    return phases


def first_line(run: WorkerRun) -> MetricRecord:
    """Return the line of the first step."""
    with run.metrics.open(encoding="utf-8") as file:
        return parse_record(MetricRecord, file.readline())


def born(path: Path) -> float:
    """Return the creation time of a file according to its file system."""
    result = subprocess.run(
        ["stat", "--format=%.W", path], capture_output=True, text=True, check=True
    ).stdout
    return float(result)


def bare_seconds(like: WorkerRun, *, ranks: int) -> float:
    """Return the time for a script under torchrun to join its group, in a job's environment."""
    record = read_record(like.launch, LaunchRecord)
    assert record is not None
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        script, answer = Path(name) / "bare.py", Path(name) / "joined"
        script.write_text(BARE_SCRIPT, encoding="utf-8")
        started = time.time()
        subprocess.run(
            torchrun(ranks, str(script), str(answer)),
            env=os.environ | record.environment,
            check=True,
        )
        return float(answer.read_text(encoding="utf-8")) - started


def main() -> int:
    """Measure on an embedded control plane."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--cold", action="store_true", help="without an idle process")
    given = parser.parse_args()
    with stack(WARM=str(not given.cold).lower()) as running:
        return 0 if measure(running, rounds=given.rounds, ranks=given.ranks) else 1


if __name__ == "__main__":
    sys.exit(main())
