"""Capacity of the real server on this machine, which it shares with its database and the load.

The API runs under uvicorn in separate processes; the load comes from one other process. Every
figure names the processor time of each of them.

    python -m benchmarks.control_plane.capacity [--parts reports] [--seconds 10] [--api-processes 1]
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack

from benchmarks.control_plane.capacity.heartbeats import measure_heartbeats
from benchmarks.control_plane.capacity.reporting import measure_costs, measure_reports
from benchmarks.control_plane.capacity.runs import Run
from benchmarks.control_plane.capacity.submissions import measure_submissions
from benchmarks.control_plane.servers import run_on_kinds, served, store

PARTS = {
    "costs": measure_costs,
    "reports": measure_reports,
    "submissions": measure_submissions,
    "heartbeats": measure_heartbeats,
}


def measure(kind: str, given: argparse.Namespace) -> bool:
    """Measure each part on its own database: a part leaves attempts that no longer report."""
    passed = True
    for part in given.parts:
        with store(kind) as opened, ExitStack() as running:
            apis = [running.enter_context(served(opened)) for _ in range(given.api_processes)]
            passed &= PARTS[part](Run(opened, apis, given.seconds, given.rounds))
    return passed


def main() -> int:
    """Measure on each database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--api-processes", type=int, default=1)
    return run_on_kinds(parser, measure)


if __name__ == "__main__":
    sys.exit(main())
