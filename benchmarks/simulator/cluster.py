"""The tables of a simulated cluster: nodes, projects, jobs and their attempts, in bulk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import bindparam, insert, select, update

from benchmarks.simulator.trace import SLOTS_PER_NODE, Known, TracedJob
from server.core.context import Context
from server.core.database.scheduler_tables import projects
from server.core.database.tables import attempt_nodes, attempts, events, jobs, nodes
from server.core.subject import Actor
from server.core.visibility.scope import SYSTEM_SCOPE
from trainyard.base.ids import make_id
from trainyard.protocol.event_kinds import EventKind
from trainyard.protocol.rest.jobs import PendingLaunch, Progress
from trainyard.protocol.states import (
    AttemptCause,
    AttemptNodeState,
    AttemptOutcome,
    AttemptState,
    DesiredState,
    JobState,
)
from trainyard.protocol.worker_messages import PROTOCOL, Hardware
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout

ACTOR = Actor("simulator", scope=SYSTEM_SCOPE)
STEPS = 100
"""Steps of each job."""
ROOTS = {"checkpoints": "root-1", "data": "root-2"}


@dataclass(frozen=True)
class Placed:
    """An attempt that a round placed."""

    attempt_id: str
    job_id: str
    backfilled_before: str | None
    """Name of the waiting job that keeps its nodes, if it is backfilled."""
    number: int
    """Number of the attempt."""
    expected_end_at: datetime | None
    gives_way: bool
    """Whether it is backfilled on an expected duration alone."""


def add_nodes(context: Context, count: int) -> None:
    """Register nodes of `SLOTS_PER_NODE` slots."""
    now = context.now()
    hardware = Hardware(
        device="cpu",
        slots=SLOTS_PER_NODE,
        device_name="none",
        device_memory_bytes=0,
        cores=SLOTS_PER_NODE,
        memory_bytes=2**36,
    )
    rows = [
        {
            "name": f"node-{number:04}",
            "address": f"10.0.{number // 256}.{number % 256}",
            "hardware": hardware,
            "device": hardware.device,
            "slots": SLOTS_PER_NODE,
            "roots": ROOTS,
            "version": "0",
            "protocol": PROTOCOL,
            "registered_at": now,
            "heartbeat_at": now,
        }
        for number in range(count)
    ]
    with context.database.write() as connection:
        connection.execute(insert(nodes), rows)


def add_projects(context: Context, weights: Mapping[str, float]) -> None:
    """Create projects."""
    row = {"description": "", "created_by": ACTOR.name, "created_at": context.now()}
    rows = [{"name": name, "weight": weight, **row} for name, weight in weights.items()]
    with context.database.write() as connection:
        connection.execute(insert(projects), rows)


def add_jobs(
    context: Context,
    arriving: Sequence[tuple[TracedJob, datetime]],
    known: Known = "nothing",
) -> list[str]:
    """Queue jobs like submissions, each at its own time; return their ids."""
    rows = [_job_row(job, _id(job.name, at), at=at, known=known) for job, at in arriving]
    with context.database.write() as connection:
        connection.execute(insert(jobs), rows)
    return [row["id"] for row in rows]


def read_placed(context: Context, attempt_ids: Iterable[str]) -> list[Placed]:
    """Return the attempts that a round placed."""
    event = select(events.c.data).where(
        events.c.job_id == attempts.c.job_id,
        events.c.attempt == attempts.c.number,
        events.c.kind == EventKind.PLACED,
    )
    query = select(
        *(attempts.c.id, attempts.c.job_id, attempts.c.number),
        *(attempts.c.expected_end_at, attempts.c.gives_way),
        event.scalar_subquery().label("data"),
    )
    with context.database.read() as connection:
        rows = connection.execute(query.where(attempts.c.id.in_(attempt_ids))).all()
    return [
        Placed(
            row.id,
            row.job_id,
            row.data["backfilled_before"],
            row.number,
            row.expected_end_at,
            row.gives_way,
        )
        for row in rows
    ]


def start(context: Context, placed: Sequence[Placed]) -> None:
    """Make attempts train from now on, as after their claims and first reports."""
    now = context.now()
    ids = [{"this": each.attempt_id} for each in placed]
    with context.database.write() as connection:
        connection.execute(
            update(attempts)
            .where(attempts.c.id == bindparam("this"))
            .values(state=AttemptState.RUNNING.value, started_at=now),
            ids,
        )
        connection.execute(
            update(attempt_nodes)
            .where(attempt_nodes.c.attempt_id == bindparam("this"))
            .values(state=AttemptNodeState.RUNNING.value, claimed_at=now),
            ids,
        )
        connection.execute(
            update(jobs).where(jobs.c.id == bindparam("this")).values(state=JobState.RUNNING.value),
            [{"this": each.job_id} for each in placed],
        )


def report(context: Context, expected_ends: Iterable[tuple[str, datetime]]) -> None:
    """Store the remaining time of running jobs, as their reports do.

    Args:
        context: the server's context.
        expected_ends: id of each job, and its expected end.
    """
    now = context.now()
    rows = [
        {
            "this": job_id,
            "now": Progress(steps=STEPS, seconds_left=max((end - now).total_seconds(), 0.0)),
        }
        for job_id, end in expected_ends
    ]
    if rows:
        reported = update(jobs).where(jobs.c.id == bindparam("this"))
        with context.database.write() as connection:
            connection.execute(reported.values(progress=bindparam("now")), rows)


def end(context: Context, placed: Sequence[Placed]) -> None:
    """End attempts and their jobs, as after the last reports of their nodes."""
    now = context.now()
    ids = [{"this": each.attempt_id} for each in placed]
    with context.database.write() as connection:
        connection.execute(
            update(attempts)
            .where(attempts.c.id == bindparam("this"))
            .values(
                state=AttemptState.ENDED.value,
                outcome=AttemptOutcome.SUCCEEDED.value,
                last_step=STEPS,
                ended_at=now,
            ),
            ids,
        )
        connection.execute(
            update(attempt_nodes)
            .where(attempt_nodes.c.attempt_id == bindparam("this"))
            .values(state=AttemptNodeState.ENDED.value, outcome=AttemptOutcome.SUCCEEDED.value),
            ids,
        )
        connection.execute(
            update(jobs)
            .where(jobs.c.id == bindparam("this"))
            .values(state=JobState.SUCCEEDED.value, ended_at=now),
            [{"this": each.job_id} for each in placed],
        )


def read_ungrouped(context: Context) -> set[str]:
    """Return the ids of queued jobs that the scheduler does not consider for slots yet."""
    query = select(jobs.c.id).where(jobs.c.state == JobState.QUEUED, jobs.c.demand.is_(None))
    with context.database.read() as connection:
        return set(connection.scalars(query))


def _id(name: str, at: datetime) -> str:
    """Return an id that is equal for the same name and time in every run."""
    entropy = hashlib.sha256(name.encode()).digest()[:10]
    return make_id(milliseconds=int(at.timestamp() * 1000), entropy=entropy)


@cache
def _spec(world_size: int) -> JobSpec:
    return parse_job_spec(
        {
            "name": "simulated",
            "resources": {"world_size": world_size},
            "training": {"steps": STEPS},
        }
    )


def _bounded(spec: JobSpec, seconds: float | None) -> JobSpec:
    bound = {"max_runtime_seconds": seconds}
    return spec.model_copy(update={"resources": spec.resources.model_copy(update=bound)})


def _job_row(job: TracedJob, job_id: str, *, at: datetime, known: Known) -> dict[str, Any]:
    spec = _spec(job.world_size)
    layout = spec.layout()
    return {
        "id": job_id,
        "name": job.name,
        "tags": [],
        "project": job.project,
        "spec": _bounded(spec, job.expected_seconds) if known == "bounds" else spec,
        "spec_digest": spec.digest,
        "pace_digest": job.part if known == "history" else job_id,
        "state": JobState.QUEUED.value,
        "desired": DesiredState.RUN.value,
        "priority": job.priority,
        "pending": _launch(AttemptCause.SUBMIT, layout),
        "queued_at": at,
        "world_size": layout.world_size,
        "layout": str(layout),
        "progress": Progress(steps=STEPS),
        "created_by": ACTOR.name,
        "created_at": at,
        "updated_at": at,
    }


def _launch(cause: AttemptCause, layout: Layout) -> PendingLaunch:
    return PendingLaunch(cause=cause, actor=ACTOR.name, layout=layout)


def leave(context: Context, leaving: Iterable[tuple[Placed, TracedJob, float]]) -> None:
    """End attempts that were ordered to leave, immediately, and queue their jobs again.

    Args:
        context: the server's context.
        leaving: the attempts, their jobs, and the completed share of the steps of each.
    """
    now, ended = context.now(), AttemptState.ENDED.value
    with context.database.write() as connection:
        for placed, job, done in leaving:
            of_attempt = update(attempts).where(attempts.c.id == placed.attempt_id)
            outcome = AttemptOutcome.FAILED.value
            steps = int(STEPS * done)
            connection.execute(
                of_attempt.values(state=ended, outcome=outcome, last_step=steps, ended_at=now)
            )
            shares = update(attempt_nodes).where(attempt_nodes.c.attempt_id == placed.attempt_id)
            connection.execute(shares.values(state=AttemptNodeState.ENDED.value, outcome=outcome))
            pending = _launch(AttemptCause.RETRY, _spec(job.world_size).layout())
            of_job = update(jobs).where(jobs.c.id == placed.job_id)
            connection.execute(
                of_job.values(
                    state=JobState.QUEUED.value, demand=None, queued_at=now, pending=pending
                )
            )


def read_leaving(context: Context, attempt_ids: Iterable[str]) -> set[str]:
    """Return the attempts that are ordered to leave."""
    ordered = select(attempts.c.id).where(attempts.c.desired != DesiredState.RUN)
    with context.database.read() as connection:
        return {*connection.scalars(ordered.where(attempts.c.id.in_(attempt_ids)))}
