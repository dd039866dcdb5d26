"""Time of a cluster's slot-time from a served API, on both databases.

1,000 jobs train, each for seven hours with a point every ten seconds, and 10,000 jobs of three
attempts ended in the last 29 days. It measures a computed answer, the first one of a new process: a
page waits for it if there is none from the last ten minutes, and a server that is scraped computes
one every five minutes.

    python -m benchmarks.control_plane.cluster_goodput [--live 1000] [--ended 10000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from datetime import timedelta
from typing import Any

import httpx
import numpy as np
from sqlalchemy import insert, update

from benchmarks.control_plane.capacity.runs import spent
from benchmarks.control_plane.servers import (
    API,
    PACKAGES,
    Running,
    Store,
    add_running,
    run_on_databases,
    served,
    user_token,
)
from benchmarks.report import emit
from server.core.context import Context
from server.core.database.slot_tables import capacity_changes, holdings
from server.core.database.tables import attempts, events, jobs
from server.telemetry.goodput.queries import milliseconds
from server.telemetry.goodput.slot_time import DAY
from server.telemetry.goodput.step_sums import DATA, STEP
from server.telemetry.metrics.points import Points
from server.telemetry.metrics.store import store_points
from trainyard.protocol.event_kinds import EventKind
from trainyard.protocol.goodput import TimeCategory

TRAINED = timedelta(hours=7)
LOGGED = timedelta(seconds=10)
"""Time between two points."""
DAYS, ATTEMPTS, PROJECTS, CHANGES = 29, 3, 20, 4
"""Days, attempts and projects of the ended jobs; changes of each node."""
TARGET_SECONDS = 10.0
SPENT = (
    TimeCategory.PRODUCTIVE,
    TimeCategory.DATA_WAIT,
    TimeCategory.SAVE_STALL,
    TimeCategory.VALIDATION,
    TimeCategory.STARTUP,
    TimeCategory.ENDING,
    TimeCategory.OTHER,
    TimeCategory.LOST,
)


def fill(opened: Store, *, live: int, ended: int) -> None:
    """Store training jobs and the shares of ended jobs, on one node for each live job."""
    context = opened.context
    running = [add_running(context, f"{number}") for number in range(live)]
    for one in running:
        _train(context, one)
    since = context.now() - timedelta(days=DAYS)
    held = [
        _holding(context, number, attempt=attempt, node=running[number % live].node, ended=ended)
        for number in range(ended)
        for attempt in range(1, ATTEMPTS + 1)
    ]
    changes = [
        {
            "node": one.node,
            "since": since + timedelta(days=number),
            "slots": 8,
            "online": number % 2 == 0,
            "takes_jobs": True,
            "withheld": 0,
        }
        for one in running
        for number in range(CHANGES)
    ]
    with context.database.write() as connection:
        connection.execute(insert(holdings), held)
        connection.execute(insert(capacity_changes), changes)


def _train(context: Context, one: Running) -> None:
    began = context.now() - TRAINED
    placed = {
        "at": began,
        "kind": EventKind.PLACED.value,
        "job_id": one.job_id,
        "attempt": 1,
        "actor": "benchmark",
        "message": "",
        "data": {},
    }
    gap = LOGGED.total_seconds()
    steps = np.arange(1, TRAINED // LOGGED + 1, dtype=np.int64) * int(gap)
    times = (began.timestamp() + steps).astype(np.float64)
    ones = np.ones(len(steps))
    with context.database.write() as connection:
        for table, column, key in (
            (jobs, jobs.c.id, one.job_id),
            (attempts, attempts.c.id, one.attempt_id),
        ):
            connection.execute(update(table).where(column == key).values(created_at=began))
        connection.execute(insert(events).values(placed))
        points = {STEP: Points(steps, times, ones), DATA: Points(steps, times, ones / 10)}
        store_points(connection, one.attempt_id, points)


def _holding(
    context: Context, number: int, *, attempt: int, node: str, ended: int
) -> dict[str, Any]:
    until = context.now() - timedelta(days=DAYS * number / ended, hours=attempt)
    since = until - TRAINED
    first, last = milliseconds(since), milliseconds(until)
    categories = {}
    for day in range(first // DAY, last // DAY + 1):
        length = min(last, (day + 1) * DAY) - max(first, day * DAY)
        shares = [length // len(SPENT)] * len(SPENT)
        shares[0] += length - sum(shares)
        categories[str(day)] = dict(zip((each.value for each in SPENT), shares, strict=True))
    return {
        "attempt_id": context.new_id(),
        "node": node,
        "job_id": f"ended-{number}",
        "job_name": f"ended-{number}",
        "project": f"project-{number % PROJECTS}",
        "attempt": attempt,
        "slots": 1,
        "since": since,
        "until": until,
        "spent": categories,
    }


def measure(opened: Store, *, live: int, ended: int, rounds: int) -> bool:
    """Compute the slot-time of 30 days in new processes, and print the figures."""
    fill(opened, live=live, ended=ended)
    headers = {"authorization": f"Bearer {user_token(opened)}"}
    walls: list[float] = []
    processors: list[float] = []
    for _ in range(rounds):
        with served(opened) as api, httpx.Client(base_url=api.url + API, headers=headers) as client:
            client.get("/nodes").raise_for_status()
            with spent(opened, api=[api]) as measured:
                started = time.perf_counter()
                view = client.get("/goodput", timeout=300).raise_for_status().json()
                walls.append(time.perf_counter() - started)
            processors.append(measured.seconds["api"])
        total = sum(each["slot_milliseconds"] for each in view["categories"])
        assert total == view["slot_milliseconds"]
    return emit(
        "cluster_goodput",
        figure=statistics.median(walls),
        unit="s (median)",
        target=TARGET_SECONDS,
        at_least=False,
        packages=PACKAGES,
        database=opened.kind,
        seconds=[round(each, 2) for each in walls],
        processor_seconds=round(statistics.median(processors), 2),
        live=live,
        ended=ended,
    )


def main() -> int:
    """Measure on both databases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--live", type=int, default=1_000)
    parser.add_argument("--ended", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    return run_on_databases(
        parser,
        lambda opened, given: measure(
            opened, live=given.live, ended=given.ended, rounds=given.rounds
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
