"""Submissions at 200 a second: each job is stored once, placed once and claimed once."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from sqlalchemy import func, select

from benchmarks.control_plane.capacity.load import Lane
from benchmarks.control_plane.capacity.nodes import ClaimingWorkers, register_nodes
from benchmarks.control_plane.capacity.runs import Run, send, spent
from benchmarks.control_plane.servers import API, Process, server_process, user_token
from benchmarks.report import emit, percentile
from embedded.broker import answers, choose_broker
from server.core.database.tables import attempts, jobs

PER_SECOND, SECONDS = 200, 10
CLIENTS = 20
NODES, SLOTS = 20, 128
SHARE = 0.95
"""Required share of the rate: the last answers arrive after the time is over."""
PLACED_SECONDS = 180
NAME = "submitted-"


def measure_submissions(run: Run) -> bool:
    """Submit jobs while a scheduler places them; print the times of both."""
    context = run.opened.context
    nodes = register_nodes(run.opened, "cpu", count=NODES, slots=SLOTS, gpus=0)
    count = PER_SECOND * SECONDS
    with (
        broker(run) as broker_url,
        server_process(run.opened, "scheduler", BROKER_URL=broker_url) as (scheduler, _),
    ):
        workers = ClaimingWorkers(
            nodes,
            url=run.apis[0].url,
            broker_url=broker_url,
            pause=context.settings.heartbeat_seconds,
        )
        workers.start()
        _wait_for_scheduler(run, workers)
        with spent(run.opened, api=run.apis, scheduler=[Process("", scheduler.pid)]) as used:
            busy = time.process_time()
            sent = send(_lanes(run), for_seconds=PLACED_SECONDS)
            deadline = time.monotonic() + PLACED_SECONDS
            while len(workers.claims) <= count and time.monotonic() < deadline:
                time.sleep(0.1)
            busy = time.process_time() - busy
        used.seconds |= {"workers": busy, "load": sent.cpu_seconds}
        workers.close()
    took = sent.seconds["submit"]
    placed_seconds = _check_and_time(run, count, workers)
    return emit(
        "capacity_submissions",
        figure=len(took) / sent.wall_seconds,
        unit="submissions/s",
        target=SHARE * PER_SECOND,
        at_least=True,
        p99_ms=round(percentile(took, 0.99) * 1000, 1),
        median_ms=round(percentile(took, 0.5) * 1000, 1),
        jobs=count,
        placements_per_second=round(count / placed_seconds, 1),
        claims_refused=workers.refused,
        messages_repeated=workers.repeated,
        processor_ms=used.each_ms(count),
        **run.common,
    )


def _wait_for_scheduler(run: Run, workers: ClaimingWorkers) -> None:
    """Submit a first job and wait for its claim, which shows that a scheduler leads."""
    url, body = f"{run.apis[0].url}{API}/jobs", {"name": "first", "resources": {"device": "cpu"}}
    headers = {"authorization": f"Bearer {user_token(run.opened)}"}
    httpx.post(url, json=body, headers=headers, timeout=60).raise_for_status()
    deadline = time.monotonic() + PLACED_SECONDS
    while not workers.claims:
        assert time.monotonic() < deadline, "the scheduler places nothing"
        time.sleep(0.1)


def _lanes(run: Run) -> list[Lane]:
    token, each = user_token(run.opened), PER_SECOND * SECONDS // CLIENTS
    lanes = []
    for client in range(CLIENTS):
        specs = [
            {"name": f"{NAME}{client}-{number}", "resources": {"device": "cpu"}}
            for number in range(each)
        ]
        url = f"{run.apis[client % len(run.apis)].url}{API}/jobs"
        bodies = [json.dumps(spec).encode() for spec in specs]
        lanes.append(Lane("submit", url, token, bodies, CLIENTS / PER_SECOND))
    return lanes


def _check_and_time(run: Run, count: int, workers: ClaimingWorkers) -> float:
    """Return the seconds from the first submission to the last placement.

    Raises:
        AssertionError: a job is not stored, placed or claimed exactly once.
    """
    submitted = jobs.c.name.like(f"{NAME}%")
    per_job = (
        select(jobs.c.id, func.count(attempts.c.id).label("attempts"))
        .outerjoin(attempts, attempts.c.job_id == jobs.c.id)
        .where(submitted)
        .group_by(jobs.c.id)
    )
    with run.opened.context.database.read() as connection:
        placed = [row.attempts for row in connection.execute(per_job)]
        names = connection.scalar(select(func.count(jobs.c.name.distinct())).where(submitted))
        first = connection.scalar(select(func.min(jobs.c.created_at)).where(submitted))
        last = connection.scalar(select(func.max(attempts.c.created_at)))
    assert (len(placed), names) == (count, count), f"{len(placed)} jobs, {names} names are stored"
    assert set(placed) == {1}, f"attempts of a job: {sorted(set(placed))}"
    claimed = len(workers.claims) - 1  # without the first job's
    assert claimed == count, f"{claimed} of {count} attempts are claimed"
    assert set(workers.claims.values()) == {1}
    assert first is not None
    assert last is not None
    return float((last - first).total_seconds())


@contextmanager
def broker(run: Run) -> Iterator[str]:
    """Run a broker, and yield its URL."""
    chosen = choose_broker(run.opened.state_dir)
    if chosen.command is None:
        yield chosen.url
        return
    with (run.opened.state_dir / "broker.log").open("wb") as output:
        process = subprocess.Popen(chosen.command, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 30
        while not answers(chosen.url):
            assert time.monotonic() < deadline, "the broker does not answer"
            time.sleep(0.1)
        yield chosen.url
    finally:
        process.terminate()
        process.wait()
