"""Reports: cost of one, maximum rate on the machine, and latencies at 70 % of that."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.control_plane.capacity.load import Lane
from benchmarks.control_plane.capacity.runs import Run, send, spent
from benchmarks.control_plane.lists.jobs_list import PAGE_SIZE, fill
from benchmarks.control_plane.reports import ReportMaker
from benchmarks.control_plane.servers import API, add_running, user_token
from benchmarks.report import emit, percentile

KINDS: Mapping[str, dict[str, Any]] = {
    "heartbeat": {"steps": 0},
    "points": {"steps": 1},
    "log": {"steps": 1, "log_lines": 10},
    "ranks": {"steps": 1, "compares": True},
}
"""Content of a report in addition to the heartbeat."""
USUAL = "points"
"""A step of ten points between two reports."""
LANES = 16
"""Concurrent supervisors in the search for the maximum rate."""
MAX_A_SECOND = 600
"""Reports prepared for each second of that search."""
SHARE = 0.7
"""Load at which latencies are measured, as a share of the maximum rate."""
JOBS = 10_000
LIST_EVERY = 0.1
"""Interval between requests of the list of jobs, in seconds."""
TARGET_RATIO = 3.0


def measure_costs(run: Run) -> bool:
    """Print the cost of a report of each kind."""
    for kind in KINDS:
        _print_cost(run, kind)
    return True


def measure_reports(run: Run) -> bool:
    """Print the maximum rate of reports, and the times of reports and of the list of jobs."""
    fill(run.opened, JOBS)
    rate = _print_rate(run)
    return _print_latencies(run, rate)


def _lanes(run: Run, kind: str, *, count: int, reports: int, interval: float = 0.0) -> list[Lane]:
    """Return supervisors of new attempts, distributed over the API processes."""
    lanes = []
    for number in range(count):
        running = add_running(run.opened.context, run.opened.context.new_id())
        maker = ReportMaker(running, seed=number)
        bodies = [maker.make(**KINDS[kind]) for _ in range(reports)]
        api = run.apis[number % len(run.apis)]
        url = f"{api.url}{API}/workers/attempts/{running.attempt_id}/report"
        lanes.append(Lane("report", url, running.token, bodies, interval))
    return lanes


def _list_lane(run: Run, requests: int) -> Lane:
    url = f"{run.apis[0].url}{API}/jobs?page_size={PAGE_SIZE}"
    return Lane("list", url, user_token(run.opened), [b""] * requests, LIST_EVERY)


def _print_cost(run: Run, kind: str) -> None:
    reports = 400
    costs = []
    for _ in range(run.rounds):
        lanes = _lanes(run, kind, count=2, reports=reports // 2)
        with spent(run.opened, api=run.apis) as used:
            sent = send(lanes, for_seconds=run.seconds * 10)
        costs.append(used.each_ms(reports) | {"load": sent.cpu_seconds / reports * 1000})
    medians = {name: round(statistics.median(c[name] for c in costs), 2) for name in costs[0]}
    emit(
        f"capacity_report_{kind}",
        figure=medians["api"],
        unit="ms of processor time of the API for a report",
        processor_ms=medians,
        reports=reports,
        body_bytes=len(lanes[0].bodies[-1]),
        rounds=run.rounds,
        **run.common,
    )


def _print_rate(run: Run) -> float:
    """Find the maximum rate of reports, in reports/s."""
    rates = []
    for _ in range(run.rounds):
        each = int(MAX_A_SECOND * run.seconds / LANES)
        lanes = _lanes(run, USUAL, count=LANES, reports=each)
        with spent(run.opened, api=run.apis) as used:
            sent = send(lanes, for_seconds=run.seconds)
        rates.append(len(sent.seconds["report"]) / sent.wall_seconds)
    rate = statistics.median(rates)
    pause = run.opened.context.settings.report_seconds
    emit(
        "capacity_reports",
        figure=rate,
        unit="reports/s that the machine carries",
        rates=[round(each, 1) for each in rates],
        attempts=round(rate * pause),
        report_seconds=pause,
        processors_used=used.processors(sent),
        **run.common,
    )
    return rate


def _print_latencies(run: Run, rate: float) -> bool:
    pause = run.opened.context.settings.report_seconds
    requests = int(run.seconds * 2 / LIST_EVERY)
    idle = send([_list_lane(run, requests)], for_seconds=run.seconds * 4)
    count = max(round(rate * SHARE * pause), 1)
    reports = int(run.seconds * 2 / pause)
    lanes = _lanes(run, USUAL, count=count, reports=reports, interval=pause)
    with spent(run.opened, api=run.apis) as used:
        sent = send([*lanes, _list_lane(run, requests)], for_seconds=run.seconds * 4)
    took = sent.seconds["report"]
    passed = emit(
        "capacity_reports_at_70_percent",
        figure=percentile(took, 0.99) * 1000,
        unit="ms (p99)",
        target=pause * 1000,
        at_least=False,
        p95_ms=round(percentile(took, 0.95) * 1000, 1),
        median_ms=round(percentile(took, 0.5) * 1000, 1),
        reports_per_second=round(len(took) / sent.wall_seconds, 1),
        attempts=count,
        processors_used=used.processors(sent),
        **run.common,
    )
    idle_p95, loaded_p95 = (percentile(each.seconds["list"], 0.95) for each in (idle, sent))
    return passed & emit(
        "capacity_jobs_list_at_70_percent",
        figure=loaded_p95 / idle_p95,
        unit="p95 under reports, of the idle p95",
        target=TARGET_RATIO,
        at_least=False,
        idle_p95_ms=round(idle_p95 * 1000, 1),
        p95_ms=round(loaded_p95 * 1000, 1),
        jobs=JOBS,
        **run.common,
    )
