"""Time to the first step of torchtitan's debug model: as a submitted job, and in torchtitan.

The time of a job is from its submission to an embedded control plane, with an idle process on its
node, to the line of its first step; it includes the preflight save. torchtitan's time is from
its launch by torchrun to the line of its first step, while the control plane runs without a job.
Both train the same shapes on one thread per rank: the node has a slot for each core. The order
alternates, and each has run once before, which has cached its data. `benchmarks.against_torchtitan`
compares cold launches of both; its docstring shows how to install torchtitan.

    python -m benchmarks.start.submit_against_torchtitan titan/bin/python [--rounds 7] [--ranks 2]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.against_torchtitan import WAYS, spec_of, titan_marks, version_of, write_titan
from benchmarks.control_plane.stack import PACKAGES, Running, stack
from benchmarks.control_plane.submit_to_first_step import (
    Launched,
    await_idle,
    launch,
    phase_medians,
)
from benchmarks.report import emit

TARGET_SHARE = 0.5
"""Our time to the first step, as a share of torchtitan's."""
EAGER = WAYS["eager"]


def measure(running: Running, python: Path, folder: Path, *, rounds: int, ranks: int) -> bool:
    """Alternate launches of both; print the median of the rounds' ratios."""
    spec = spec_of(EAGER, ranks, steps=2, log_every=1) | {"name": "bench-start"}
    titans: list[float] = []
    jobs: list[Launched] = []

    def start_titan() -> None:
        await_idle(running)
        titans.append(titan_marks(python, folder, ranks=ranks, steps=1, way=EAGER)[0].seconds)

    def start_ours() -> None:
        jobs.append(launch(running, spec))

    for number in range(rounds + 1):  # the first round caches the data
        for start in (start_titan, start_ours) if number % 2 else (start_ours, start_titan):
            start()
    del titans[0], jobs[0]
    return emit(
        "submit_against_torchtitan",
        figure=statistics.median(
            ours.total / titan for ours, titan in zip(jobs, titans, strict=True)
        ),
        unit="our time to the first step of torchtitan's, median of the rounds",
        target=TARGET_SHARE,
        at_least=False,
        packages=PACKAGES,
        torchtitan_version=version_of(python),
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
