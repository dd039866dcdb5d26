"""Time of `GET /jobs` from a served API with 100,000 stored jobs, on both databases.

Most jobs have ended, and a few run or wait, as after a long time of use. It measures the newest
page, deep pages, pages by state, and pages by rare tags, names and texts: for those the query has
to pass almost every job.

    python -m benchmarks.control_plane.lists.jobs_list [--jobs 100000] [--requests 200]
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import httpx
from sqlalchemy import insert, text

from benchmarks.control_plane.servers import PACKAGES, Store, run_on_databases, served_client
from benchmarks.report import emit, percentile
from server.api.http.paging import encode
from server.core.database.tables import jobs
from trainyard.protocol.rest.jobs import Progress
from trainyard.protocol.states import JobState
from trainyard.spec.job import DEFAULT_PROJECT, parse_job_spec

TARGET_MS = 50.0
BATCH = 1000
PAGE_SIZE = 50
STEPS = 10_000
RARE_EVERY = 25_000
"""One job in this many has the rare tag and the rare name."""
SHARES = {
    JobState.SUCCEEDED: 0.80,
    JobState.FAILED: 0.10,
    JobState.STOPPED: 0.06,
    JobState.CANCELLED: 0.0388,
    JobState.QUEUED: 0.001,
    JobState.RUNNING: 0.0002,
}
Query = dict[str, str | int | list[str]]


def measure(opened: Store, *, count: int, requests: int) -> bool:
    """List jobs in each way and print the figures."""
    ids = fill(opened, count)
    chance = random.Random(1)
    passed = True
    with served_client(opened) as client:
        for name, queries in ways(ids, chance, requests).items():
            seconds, rows = send_queries(client, queries)
            passed &= emit(
                f"jobs_list_{name}",
                figure=percentile(seconds, 0.95) * 1000,
                unit="ms (p95)",
                target=TARGET_MS,
                at_least=False,
                packages=PACKAGES,
                database=opened.kind,
                median_ms=round(percentile(seconds, 0.5) * 1000, 1),
                jobs=count,
                rows=rows,
                requests=requests,
            )
    return passed


def fill(opened: Store, count: int, projects: Sequence[str] = (DEFAULT_PROJECT,)) -> list[str]:
    """Store jobs of each project in turn; return their ids, the oldest first."""
    context, chance = opened.context, random.Random(0)
    ids = sorted(context.new_id() for _ in range(count))
    states = chance.choices(list(SHARES), list(SHARES.values()), k=count)
    spec = parse_job_spec({"name": "sweep", "description": "One of many", "model": {"dim": 512}})
    now = context.now()
    for first in range(0, count, BATCH):
        rows: list[dict[str, Any]] = []
        for number, job_id in enumerate(ids[first : first + BATCH], start=first):
            rare = number % RARE_EVERY == RARE_EVERY // 2
            rows.append(
                {
                    "id": job_id,
                    "name": "needle" if rare else f"sweep-{number % 1000}",
                    "tags": ["common", "rare"] if rare else ["common"],
                    "project": projects[number % len(projects)],
                    "spec": spec,
                    "spec_digest": spec.digest,
                    "state": states[number],
                    "desired": "run",
                    "priority": 0,
                    "attempt": 1,
                    "world_size": 8,
                    "layout": "FSDP 8",
                    "progress": Progress(step=STEPS, steps=STEPS, loss=2.0),
                    "created_by": "benchmark",
                    "created_at": now,
                    "updated_at": now,
                }
            )
        with context.database.write() as connection:
            connection.execute(insert(jobs), rows)
    if not context.database.is_sqlite:  # autovacuum would do so within a minute of such load
        engine = context.database.engine.execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text("VACUUM ANALYZE jobs"))
    return ids


def ways(ids: Sequence[str], chance: random.Random, requests: int) -> dict[str, list[Query]]:
    """Return the queries of each way of listing."""
    newest: Query = {"page_size": PAGE_SIZE}
    deep = chance.choices(ids[: len(ids) // 2], k=requests)
    ended = [JobState.FAILED.value, JobState.STOPPED.value]
    return {
        "newest": [newest] * requests,
        "deep": [newest | {"page_token": encode("jobs", f"0{after}0")} for after in deep],
        "running": [newest | {"state": [JobState.RUNNING.value]}] * requests,
        "ended_deep": [
            newest | {"state": ended, "page_token": encode("jobs", f"0{after}0")} for after in deep
        ],
        "by_name": [newest | {"name": "needle"}] * requests,
        "by_rare_tag": [newest | {"tag": ["rare"]}] * requests,
        "by_rare_text": [newest | {"search": "needl"}] * requests,
    }


def send_queries(client: httpx.Client, queries: Sequence[Query]) -> tuple[list[float], int]:
    """Return the time of each request, and the rows of the last answer."""
    seconds: list[float] = []
    rows = 0
    for query in queries:
        started = time.perf_counter()
        response = client.get("/jobs", params=query)
        seconds.append(time.perf_counter() - started)
        rows = len(response.raise_for_status().json()["items"])
        assert rows, f"{query} finds nothing"
    return seconds, rows


def main() -> int:
    """Measure on both databases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=200)
    return run_on_databases(
        parser,
        lambda opened, given: measure(opened, count=given.jobs, requests=given.requests),
    )


if __name__ == "__main__":
    sys.exit(main())
