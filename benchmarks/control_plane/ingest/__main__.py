"""Points per second through the report endpoint of a served API, on both databases.

Each supervisor is a thread with its own connection that sends prepared reports in sequence, like a
run that catches up after an outage. A line holds ten values and a digest.

    python -m benchmarks.control_plane.ingest [--points 400000] [--values 1000] [--supervisors 2]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx

from benchmarks.control_plane.reports import SERIES, ReportMaker
from benchmarks.control_plane.servers import (
    PACKAGES,
    Running,
    Store,
    add_running,
    run_on_databases,
    served,
    stored_points,
)
from benchmarks.report import emit

TARGETS = {"sqlite": 50_000, "postgresql": 30_000}


def send(url: str, running: Running, bodies: Sequence[bytes]) -> None:
    """Send the reports of one supervisor."""
    headers = {"authorization": f"Bearer {running.token}", "content-type": "application/json"}
    path = f"{url}/api/v1/workers/attempts/{running.attempt_id}/report"
    with httpx.Client(headers=headers, timeout=60) as client:
        for body in bodies:
            client.post(path, content=body).raise_for_status()


def measure_all(opened: Store, given: argparse.Namespace) -> bool:
    """Measure with reports of each size."""
    passed = True
    for values in given.values:
        passed &= measure(opened, points=given.points, values=values, supervisors=given.supervisors)
    return passed


def measure(opened: Store, *, points: int, values: int, supervisors: int) -> bool:
    """Send all points and print the figure."""
    runs = [add_running(opened.context, f"{values}-{number}") for number in range(supervisors)]
    makers = [ReportMaker(run, seed=seed) for seed, run in enumerate(runs)]
    each = points // supervisors // values
    bodies = [[maker.make(steps=values // SERIES) for _ in range(each)] for maker in makers]
    before = stored_points(opened)
    with served(opened) as api, ThreadPoolExecutor(supervisors) as pool:
        started = time.perf_counter()
        for done in [
            pool.submit(send, api.url, run, b) for run, b in zip(runs, bodies, strict=True)
        ]:
            done.result()
        seconds = time.perf_counter() - started
    stored = stored_points(opened) - before
    sent = sum(map(len, bodies)) * values
    assert stored == sent, f"sent {sent} points, but {stored} are stored"
    return emit(
        "ingest",
        figure=stored / seconds,
        unit="points/s",
        target=TARGETS[opened.kind],
        at_least=True,
        packages=PACKAGES,
        database=opened.kind,
        points=stored,
        values_per_report=values,
        supervisors=supervisors,
    )


def main() -> int:
    """Measure on both databases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=400_000)
    parser.add_argument("--values", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--supervisors", type=int, default=2)
    return run_on_databases(parser, measure_all)


if __name__ == "__main__":
    sys.exit(main())
