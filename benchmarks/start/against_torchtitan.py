"""Time to the first step of torchtitan's debug model: a job of a node, and torchtitan's launch.

A job goes through the API of an embedded control plane, whose node has an idle process: from its
submission to the line of its first step, its preflight save included. torchtitan is launched by
torchrun, as one starts it: from there to the line of its first step. Both train the same shapes on
one thread a rank, and alternate; each has a run before them, which caches its data.
`benchmarks.against_torchtitan` compares cold launches of both, and how to install torchtitan.

    python -m benchmarks.start.against_torchtitan titan/bin/python [--rounds 7] [--ranks 2]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.against_torchtitan import WAYS, titan_marks, write_titan
from benchmarks.control_plane.stack import PACKAGES, Running, stack
from benchmarks.control_plane.submit_to_first_step import launch, phase_medians
from benchmarks.report import emit

TARGET_SHARE = 0.5
"""Our time to the first step, as a share of torchtitan's."""
EAGER = WAYS["eager"]


def spec(ranks: int) -> dict[str, Any]:
    """Return a job of two steps of torchtitan's debug model."""
    training = EAGER.ours["training"]
    batch = {"global_batch_size": ranks * training["micro_batch_size"], "log_every_steps": 1}
    return EAGER.ours | {
        "name": "bench-start",
        "training": {**training, **batch, "steps": 2},
        "lr_schedule": {"warmup_steps": 2},
        "resources": {"world_size": ranks, "device": "cpu"},
    }


def measure(running: Running, python: Path, folder: Path, *, rounds: int, ranks: int) -> bool:
    """Launch both in turn, and print the median of the rounds' ratios."""

    def titan_seconds() -> float:
        return titan_marks(python, folder, ranks, steps=1, way=EAGER)[0].seconds

    titan_seconds()
    launch(running, spec(ranks))
    titans: list[float] = []
    jobs = []
    for _ in range(rounds):
        titans.append(titan_seconds())
        jobs.append(launch(running, spec(ranks)))
    return emit(
        "start_against_torchtitan",
        figure=statistics.median(job.total / its for job, its in zip(jobs, titans, strict=True)),
        unit="our time to the first step of torchtitan's, median of the rounds",
        target=TARGET_SHARE,
        at_least=False,
        packages=PACKAGES,
        submit_to_first_step_seconds=[round(job.total, 2) for job in jobs],
        torchtitan_seconds=[round(seconds, 2) for seconds in titans],
        phase_seconds=phase_medians(jobs),
        launches=sorted({job.launch for job in jobs}),
        ranks=ranks,
        rounds=rounds,
    )


def main() -> int:
    """Measure on an embedded control plane."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", type=Path, help="an interpreter that has torchtitan")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=2)
    given = parser.parse_args()
    python: Path = given.python.absolute()
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name, stack() as running:
        folder = Path(name)
        write_titan(folder)
        reached = measure(running, python, folder, rounds=given.rounds, ranks=given.ranks)
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
