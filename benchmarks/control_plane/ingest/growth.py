"""Growth with stored data: 100,000 jobs, 20,000,000 points and a log of 1 GiB, over HTTP.

Each part has a new database and is sent in ten stages of the same size. A line has for each stage
the resident memory of the API, the size of the database, the processor time of a request (of the
API and of PostgreSQL), and the times of requests and of a view of the stored data: the newest page
of jobs, a chart of a whole series, or the last page of the log. The figures are the memory of the
last stage relative to the second one, and the processor time of the last two stages relative to the
first two. Nothing is deleted, so a figure independent of the number of rows stays at 1.

    python -m benchmarks.control_plane.ingest.growth [--parts jobs points log] [--jobs 100000]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import text

from benchmarks.control_plane.capacity.load import Lane, send_here
from benchmarks.control_plane.capacity.runs import Run, spent
from benchmarks.control_plane.reports import NAMES, SERIES, ReportMaker
from benchmarks.control_plane.servers import (
    API,
    Store,
    add_running,
    run_on_kinds,
    served,
    store,
    user_token,
)
from benchmarks.report import emit, percentile

MEMORY_TARGET, PROCESSOR_TARGET = 1.2, 1.5
CLIENTS = 4
VALUES = 10_000
"""Values per report in the part of points."""
LINES = 13_000
"""Lines of 80 bytes per report of output: a MiB."""
VIEWS = 50
"""Requests of a view after each stage."""
LONGEST_STAGE = 3600.0


@dataclass(frozen=True)
class Part:
    """What is stored, and the view of it."""

    name: str
    count: int
    """Number of its units, in all stages."""
    unit: str
    stages: Iterator[list[Lane]]
    view: str
    """Path of the view."""


@dataclass(frozen=True)
class Stage:
    """Measurements of one stage."""

    memory_mib: float
    database_mib: float
    api_ms: float
    database_ms: float
    request_ms: tuple[float, float]
    """Median and p95."""
    view_ms: tuple[float, float]
    """Median and p95."""


def jobs(run: Run, given: argparse.Namespace) -> Part:
    """Submit jobs that stay queued: there is no scheduler."""
    token, each = user_token(run.opened), given.jobs // given.stages // CLIENTS

    def stages() -> Iterator[list[Lane]]:
        for stage in range(given.stages):
            yield [
                Lane(
                    "request",
                    f"{run.apis[0].url}{API}/jobs",
                    token,
                    [
                        json.dumps({"name": f"job-{stage}-{client}-{number}"}).encode()
                        for number in range(each)
                    ],
                )
                for client in range(CLIENTS)
            ]

    return Part("jobs", given.stages * CLIENTS * each, "jobs", stages(), "/jobs?page_size=50")


def points(run: Run, given: argparse.Namespace) -> Part:
    """Report metrics of a few attempts, like runs that catch up."""
    each = max(given.points // given.stages // CLIENTS // VALUES, 1)
    count = given.stages * CLIENTS * each * VALUES
    first, lanes = _reports(run, given, each, clients=CLIENTS, steps=VALUES // SERIES)
    view = f"/jobs/{first}/metrics?names={NAMES[0]}&max_points=1000"
    return Part("points", count, "points", lanes, view)


def log(run: Run, given: argparse.Namespace) -> Part:
    """Report the output of one rank."""
    each = max(given.log_mib // given.stages, 1)
    first, lanes = _reports(run, given, each, clients=1, log_lines=LINES)
    return Part("log", given.stages * each, "MiB", lanes, f"/jobs/{first}/logs?limit=500")


PARTS: dict[str, Callable[[Run, argparse.Namespace], Part]] = {
    "jobs": jobs,
    "points": points,
    "log": log,
}


def _reports(
    run: Run,
    given: argparse.Namespace,
    each: int,
    *,
    clients: int,
    steps: int = 0,
    log_lines: int = 0,
) -> tuple[str, Iterator[list[Lane]]]:
    """Return the id of the first of some jobs, and all jobs' reports in each stage."""
    context = run.opened.context
    runnings = [add_running(context, f"running-{client}") for client in range(clients)]
    makers = [ReportMaker(running, seed=seed) for seed, running in enumerate(runnings)]

    def stages() -> Iterator[list[Lane]]:
        for _ in range(given.stages):
            yield [
                Lane(
                    "request",
                    f"{run.apis[0].url}{API}/workers/attempts/{running.attempt_id}/report",
                    running.token,
                    [maker.make(steps=steps, log_lines=log_lines) for _ in range(each)],
                )
                for running, maker in zip(runnings, makers, strict=True)
            ]

    return runnings[0].job_id, stages()


def measure(kind: str, given: argparse.Namespace) -> bool:
    """Measure each part on its own database."""
    passed = True
    quota = str(max(given.log_mib, 1) * 2 * 1024 * 1024)  # nothing is dropped within it
    for name in given.parts:
        with store(kind) as opened, served(opened, LOG_QUOTA_BYTES=quota) as api:
            run = Run(opened, [api], 0.0, 1)
            passed &= _print(run, PARTS[name](run, given))
    return passed


def _print(run: Run, part: Part) -> bool:
    stages = [_stage(run, part, lanes) for lanes in part.stages]
    columns: dict[str, Any] = {
        "memory_mib": [stage.memory_mib for stage in stages],
        "database_mib": [stage.database_mib for stage in stages],
        "api_ms": [stage.api_ms for stage in stages],
        "database_ms": [stage.database_ms for stage in stages],
        "request_median_ms": [stage.request_ms[0] for stage in stages],
        "request_p95_ms": [stage.request_ms[1] for stage in stages],
        "view_median_ms": [stage.view_ms[0] for stage in stages],
        "view_p95_ms": [stage.view_ms[1] for stage in stages],
    }
    common = {"at_least": False, part.unit: part.count, "stages": columns, **run.common}
    memory = stages[-1].memory_mib / stages[min(1, len(stages) - 1)].memory_mib
    passed = emit(
        f"growth_memory_{part.name}",
        figure=memory,
        unit="times the memory of the API after the second stage",
        target=MEMORY_TARGET,
        **common,
    )
    cost = [stage.api_ms + stage.database_ms for stage in stages]
    return passed & emit(
        f"growth_processor_{part.name}",
        figure=statistics.mean(cost[-2:]) / statistics.mean(cost[:2]),
        unit="times the processor time of a request in the first two stages",
        target=PROCESSOR_TARGET,
        **common,
    )


def _stage(run: Run, part: Part, lanes: Sequence[Lane]) -> Stage:
    """Send a stage, then request its view."""
    with spent(run.opened, api=run.apis) as used:
        sent = send_here(lanes, for_seconds=LONGEST_STAGE)
    assert not sent.refused["request"], f"the server refused requests: {sent.refused['request']}"
    took = sent.seconds["request"]
    each = used.each_ms(len(took))
    return Stage(
        memory_mib=_resident_mib(run.apis[0].pid),
        database_mib=_stored_mib(run.opened),
        api_ms=each["api"],
        database_ms=each.get("database", 0.0),
        request_ms=_shown(took),
        view_ms=_shown(_view(run, part.view)),
    )


def _view(run: Run, path: str) -> list[float]:
    headers = {"authorization": f"Bearer {user_token(run.opened)}"}
    seconds = []
    with httpx.Client(base_url=run.apis[0].url + API, headers=headers, timeout=120) as client:
        for _ in range(VIEWS):
            begin = time.perf_counter()
            client.get(path).raise_for_status()
            seconds.append(time.perf_counter() - begin)
    return seconds


def _shown(seconds: Sequence[float]) -> tuple[float, float]:
    """Return median and p95 in milliseconds."""
    p95 = percentile(seconds, 0.95) if len(seconds) > 1 else seconds[0]
    return round(statistics.median(seconds) * 1000, 1), round(p95 * 1000, 1)


def _resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return round(int(line.split()[1]) / 1024, 1)


def _stored_mib(opened: Store) -> float:
    query = (
        "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        if opened.kind == "sqlite"
        else "SELECT pg_database_size(current_database())"
    )
    with opened.context.database.read() as connection:
        return round(int(connection.execute(text(query)).scalar_one()) / 2**20, 1)


def main() -> int:
    """Measure on each database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--points", type=int, default=20_000_000)
    parser.add_argument("--log-mib", type=int, default=1024)
    parser.add_argument("--stages", type=int, default=10)
    return run_on_kinds(parser, measure)


if __name__ == "__main__":
    sys.exit(main())
