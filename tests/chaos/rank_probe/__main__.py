"""Runs the probe on two machines with planted faults, and prints its findings as JSON lines."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.chaos.cluster import Cluster, Setup
from tests.chaos.network import isolate
from tests.e2e.control_plane import finished, in_state, wait_for
from trainyard.protocol.states import JobState
from trainyard.prove import runner
from trainyard.prove.ladder import ladder
from trainyard.prove.proof_lines import ProofRecord, ProofSubject
from trainyard.prove.rank_probe.probe_job import probe_spec, probed, read_values
from trainyard.prove.rank_probe.probe_verdict import judge

PLANTS = Path(__file__).with_name("plants")
SLOTS = {"n1": 2, "n2": 2}
HOUR = 3600
CHECKS = {"machine/nodes", "layouts/one-rank", "layouts/fsdp-4", "resumes/chain-1"}


@dataclass(frozen=True)
class Case:
    """What is planted during one probe."""

    name: str
    in_ranks: str = ""
    """Fault in the ranks of n1."""
    clock: int = 0
    """Seconds by which the clock of n2 is set ahead while the ranks start: before, the server would
    place nothing on the node."""
    rate: str = ""
    """Limit of what n2 sends."""


CASES = (
    Case("healthy"),
    Case("gradient_and_clock", in_ranks="scaled_gradient", clock=HOUR),
    Case("disk_and_link", in_ranks="slow_disk", rate="200mbit"),
)


def main() -> int:
    """Run all cases on one cluster."""
    isolate()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        healthy, plant = Path(folder, "healthy"), Path(folder, "plant")
        healthy.touch()
        setup = Setup(
            preloaded=True,
            allow_code=True,
            of_nodes={
                "n1": {"CHAOS_PLANT": str(plant), "PYTHONPATH": _path()},
                "n2": {"CHAOS_PLANT": str(healthy), "PYTHONPATH": _path()},
            },
        )
        with Cluster.running(Path(folder, "cluster"), SLOTS, setup) as cluster:
            for case in CASES:
                plant.write_text(case.in_ranks)
                result = run(cluster, case)
                _print({"case": case.name, **result})
            plant.write_text("")
            _print({"case": "ladder", **climb(cluster, Path(folder, "proof"))})
    return 0


def climb(cluster: Cluster, folder: Path) -> dict[str, Any]:
    """Run a part of the ladder of `trainyard prove` on both nodes; return its lines."""
    lines: list[dict[str, Any]] = []
    record = ProofRecord(folder, ProofSubject(slots=4, time="10m", local=False))
    checks = [check for check in ladder(4, "cpu", "10m") if check.name in CHECKS]
    with patch.object(runner, "ladder", lambda *_: checks):
        held = runner.run_ladder(
            cluster.yard, record, folder, tell=lines.append, announce=lambda *_: None
        )
    return {"state": "succeeded", "held": held, "lines": lines}


def _print(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def run(cluster: Cluster, case: Case) -> dict[str, Any]:
    """Run one probe; return its findings, its figures, and the state of its job."""
    yard, problems = cluster.yard, []
    with contextlib.ExitStack() as planted:
        if case.rate:
            planted.enter_context(cluster.nodes["n2"].machine.limited(case.rate))
        job = yard.submit(probe_spec(4, device="cpu", nodes=2, seconds=120, disk_mib=16))
        if case.clock:
            in_state(yard, job.id, JobState.RUNNING)
            planted.enter_context(cluster.preload.clock_moved("n2", case.clock))
            problems = wait_for(
                lambda: [(n.name, each) for n in yard.nodes() for each in n.problems], "a problem"
            )
        ended = finished(yard, job.id)
    (attempt,) = yard.attempts(job.id)
    verdict = judge(probed(attempt, read_values(yard.metrics_csv(job.id, attempt=1))))
    log = [line.text for line in yard.logs(job.id, rank=0, limit=60).lines]
    return {
        "state": ended.state,
        "reason": ended.reason,
        "problems": problems,
        "findings": verdict.findings,
        "figures": {figure.name: figure.value for figure in verdict.figures},
        "log": log if verdict.findings else [],
    }


def _path() -> str:
    """Return a Python path that starts with the plants."""
    return ":".join([str(PLANTS), *filter(None, sys.path)])


if __name__ == "__main__":
    sys.exit(main())
