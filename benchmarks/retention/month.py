"""Data left by jobs: memory, descriptors and disk by kind, before, after and after a pruning.

Tiny jobs are submitted over HTTP and placed by the scheduler's own round. Over HTTP they report the
data of a short training: 200 steps of ten series, 400 lines of output, an exit. Then the
retention's clock is set two years ahead, and everything is forgotten. It prints one line per
database; `month` extrapolates to 30 days of 1,000 jobs.

    python -m benchmarks.retention.month [--jobs 500] [--databases sqlite postgresql]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import func, select, text

from benchmarks.control_plane.reports import ReportMaker
from benchmarks.control_plane.servers import (
    API,
    PACKAGES,
    Process,
    Running,
    Store,
    run_on_databases,
    served,
    user_token,
)
from benchmarks.report import emit
from benchmarks.simulator.cluster import add_nodes
from server.app.periodic_tasks import TASKS
from server.core.context import Context, SystemClock
from server.core.database.schema import metadata
from server.core.database.slot_tables import holdings
from server.core.database.tables import attempt_nodes, attempts, jobs, nodes
from server.core.periodic import EACH_ROUND, PeriodicWork
from server.jobs.attempts.claim import claim_all
from server.scheduler.retention.forget_jobs import JobPruner
from server.scheduler.rounds.dispatch import Message
from server.scheduler.rounds.round import Placer
from server.telemetry.goodput.holdings import SETTLED_AFTER, Settler
from trainyard.protocol.worker_messages import PROTOCOL, Claim, ClaimReply, WorkerIdentity

REPORTS, STEPS_A_REPORT, LINES_A_REPORT = 4, 50, 100
JOBS_A_MONTH = 30_000
WORKER = WorkerIdentity(folder="0" * 32, boot_id="b007-0000")
LATER = timedelta(days=800)
"""Time by which the retention's clock is set ahead."""
KINDS: Mapping[str, tuple[str, ...]] = {
    "series": ("metric_series", "metric_tails", "metric_chunks", "rank_steps", "rank_progress"),
    "digests": ("step_digests",),
    "logs": ("logs", "log_blocks"),
    "events": ("events",),
    "jobs": ("jobs", "attempts", "attempt_nodes", "idempotency_keys", "notices", "demands"),
    "slot_time": ("holdings", "capacity_changes"),
}
"""Tables by kind; all others are `rest`."""


class _NoBroker:
    """Accepts messages without a worker."""

    up_since: datetime | None = None

    def send(self, message: Message) -> None:
        """Drop a message."""


@dataclass
class _Ahead:
    """A clock ahead of the machine's."""

    by: timedelta = field(default_factory=timedelta)

    def now(self) -> datetime:
        """Return its time."""
        return SystemClock().now() + self.by

    def monotonic(self) -> float:
        """Return the seconds of its time."""
        return self.now().timestamp()


@dataclass(frozen=True)
class Footprint:
    """The server's resources at one moment, in bytes except for the descriptors."""

    memory: int
    """Resident memory of the API."""
    descriptors: int
    """Open file descriptors of the API."""
    log: int
    """Its log."""
    disk: Mapping[str, int]
    """Bytes of the database, by kind."""

    @property
    def view(self) -> dict[str, Any]:
        """The numbers for the output line."""
        return {
            "memory_mib": round(self.memory / 2**20, 1),
            "descriptors": self.descriptors,
            "log_kib": round(self.log / 1024, 1),
            "disk_kib": {kind: round(size / 1024, 1) for kind, size in self.disk.items()},
        }


def measure(opened: Store, given: argparse.Namespace) -> bool:
    """Measure on one database; print its line."""
    context = opened.context
    add_nodes(context, 1)
    with served(opened) as api:
        headers = {"authorization": f"Bearer {user_token(opened)}"}
        with httpx.Client(base_url=api.url + API, headers=headers, timeout=60) as client:
            _run(opened, client, 0)  # one-time loading
            before = footprint(opened, api)
            begin = time.perf_counter()
            for number in range(1, given.jobs + 1):
                _run(opened, client, number)
            seconds = time.perf_counter() - begin
        after = footprint(opened, api)
        pruned = _prune(context)
        left = footprint(opened, api)
    grown = {kind: size - before.disk[kind] for kind, size in after.disk.items()}
    a_job = sum(grown.values()) / given.jobs
    stays = sum(max(size - before.disk[kind], 0) for kind, size in left.disk.items())
    return emit(
        "what a month of jobs leaves behind",
        figure=a_job / 1024,
        unit="KiB a job",
        packages=PACKAGES,
        database=opened.kind,
        jobs=given.jobs,
        seconds=round(seconds, 1),
        before=before.view,
        after=after.view,
        pruned=left.view,
        bytes_a_job={kind: round(size / given.jobs) for kind, size in grown.items()},
        log_bytes_a_job=round((after.log - before.log) / given.jobs),
        pruning=pruned,
        month={
            "jobs": JOBS_A_MONTH,
            "kept_mib": round(a_job * JOBS_A_MONTH / 2**20),
            "pruned_mib": round(stays / given.jobs * JOBS_A_MONTH / 2**20, 1),
        },
    )


def _run(opened: Store, client: httpx.Client, number: int) -> None:
    """Submit a job, place it, report its steps and its end."""
    context = opened.context
    body = {"name": f"tiny-{number}", "training": {"steps": REPORTS * STEPS_A_REPORT}}
    reply = client.post("/jobs", json=body)
    reply.raise_for_status()
    job_id = reply.json()["id"]
    running = _placed(context, job_id)
    reports = ReportMaker(running, seed=number)
    headers = {"authorization": f"Bearer {running.token}", "content-type": "application/json"}
    url = f"/workers/attempts/{running.attempt_id}/report"
    for _ in range(REPORTS):
        sent = reports.make(steps=STEPS_A_REPORT, log_lines=LINES_A_REPORT)
        client.post(url, content=sent, headers=headers).raise_for_status()
    client.post(url, content=reports.last(), headers=headers).raise_for_status()


def _placed(context: Context, job_id: str) -> Running:
    """Place the waiting job, and claim it like its node."""
    with context.database.write() as connection:  # no worker sends heartbeats
        connection.execute(nodes.update().values(heartbeat_at=context.now(), worker=WORKER))
    Placer(context, _NoBroker()).run()
    query = (
        select(attempts.c.id, attempt_nodes.c.node)
        .join(attempt_nodes, attempt_nodes.c.attempt_id == attempts.c.id)
        .where(attempts.c.job_id == job_id)
    )
    with context.database.read() as connection:
        attempt_id, node = connection.execute(query).one()
    claim = Claim(protocol=PROTOCOL, node=node, worker=WORKER)
    (reply,) = claim_all(context, [(attempt_id, claim)])
    assert isinstance(reply, ClaimReply), reply
    return Running(job_id, attempt_id, node, reply.attempt_token)


def _prune(context: Context) -> dict[str, float]:
    """Settle the slot-time of all jobs and forget them; return the times."""
    clock = _Ahead(SETTLED_AFTER + timedelta(minutes=1))
    ahead = Context(settings=context.settings, database=context.database, clock=clock)
    settler = Settler(ahead)
    begin = time.perf_counter()
    while _count(context, select(holdings.c.job_id).where(holdings.c.spent.is_(None))):
        settler.run()
        clock.by += timedelta(seconds=TASKS["settle_slot_time"].every_seconds)
    settled = time.perf_counter() - begin
    clock.by += LATER
    rounds, number = 0, _number(context)
    pruning = PeriodicWork(
        time.monotonic,
        {replace(TASKS["forget_jobs"], every_seconds=EACH_ROUND): JobPruner(ahead).run},
    )
    begin = time.perf_counter()
    longest = 0.0
    while _count(context, select(jobs.c.id)):
        started = time.perf_counter()
        pruning.run_due()
        longest = max(longest, time.perf_counter() - started)
        rounds += 1
    return {
        "settle_seconds": round(settled, 2),
        "jobs": number,
        "rounds": rounds,
        "seconds": round(time.perf_counter() - begin, 2),
        "longest_round_ms": round(1000 * longest, 1),
    }


def _number(context: Context) -> int:
    with context.database.read() as connection:
        return connection.scalar(select(func.count()).select_from(jobs)) or 0


def _count(context: Context, query: Any) -> int:
    with context.database.read() as connection:
        return len(connection.execute(query.limit(1)).all())


def footprint(opened: Store, api: Process) -> Footprint:
    """Measure the API's process, its log, and the database."""
    pages = int(Path(f"/proc/{api.pid}/statm").read_text().split()[1])
    logs = opened.state_dir.glob("api-*.log")
    return Footprint(
        memory=pages * os.sysconf("SC_PAGE_SIZE"),
        descriptors=len(list(Path(f"/proc/{api.pid}/fd").iterdir())),
        log=sum(path.stat().st_size for path in logs),
        disk=_disk(opened),
    )


def _disk(opened: Store) -> dict[str, int]:
    """Return the bytes of tables and indexes by kind, without free space in between."""
    sizes = _sqlite_sizes(opened) if opened.kind == "sqlite" else _postgresql_sizes(opened)
    of_table = {table: kind for kind, tables in KINDS.items() for table in tables}
    found = Counter(dict.fromkeys((*KINDS, "rest"), 0))
    for table, size in sizes.items():
        found[of_table.get(table, "rest")] += size
    return dict(found)


def _sqlite_sizes(opened: Store) -> dict[str, int]:
    sizes = (
        "SELECT s.tbl_name, sum(d.pgsize) FROM dbstat('main', 1) d "
        "JOIN sqlite_schema s ON s.name = d.name GROUP BY s.tbl_name"
    )
    with opened.context.database.read() as connection:
        return {row[0]: row[1] for row in connection.execute(text(sizes))}


def _postgresql_sizes(opened: Store) -> dict[str, int]:
    engine = opened.context.database.engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("VACUUM FULL"))
        size = text("SELECT pg_total_relation_size(cast(:name AS regclass))")
        return {
            table.name: connection.execute(size, {"name": table.name}).scalar_one()
            for table in metadata.sorted_tables
        }


def main() -> int:
    """Measure, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retention.month")
    parser.add_argument("--jobs", type=int, default=500)
    return run_on_databases(parser, measure)


if __name__ == "__main__":
    sys.exit(main())
