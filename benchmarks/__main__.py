"""Runs every benchmark in sequence: `python -m benchmarks [NAME ...]`.

Each prints one JSON object per figure. Exits with 1 if a figure misses its target or a benchmark
could not run; the others run anyway.
"""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAMS = (
    "control_plane.submit_to_first_step",
    "control_plane.launch_times",
    "control_plane.stream_latency",
    "control_plane.stream_clients",
    "control_plane.ingest",
    "control_plane.ingest.against_trackers",
    "control_plane.ingest.growth",
    "control_plane.lists.jobs_list",
    "control_plane.lists.jobs_of_members",
    "control_plane.charts",
    "retention.month",
    "control_plane.goodput",
    "control_plane.capacity",
    "control_plane.cluster_goodput",
    "simulator",
    "simulator.placement",
    "supply",
    "trainer",
    "trainer_overhead",
    "start.first_step",
    "reshard",
    "step_counts",
    "planner_accuracy",
    "strategies",
    "data",
    "run_log",
    "run_log.outage",
    "checkpoints",
    "checkpoint_plans",
    "checkpoint_plans.export_stall",
    "control_plane.commit_to_catalog",
)


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all of them."""
    if unknown := sorted(set(names) - set(PROGRAMS)):
        print(
            f"no benchmark {', '.join(unknown)}; there are {', '.join(PROGRAMS)}", file=sys.stderr
        )
        return 2
    # As in a rank on a busy machine: one thread each.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    missed = []
    for name in names or PROGRAMS:
        command = [sys.executable, "-m", f"benchmarks.{name}"]
        if subprocess.run(command, env=environment, check=False).returncode:
            missed.append(name)
    if missed:
        print(f"missed or not run: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
