"""Stores jobs and attempts directly, for tests of their records."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import insert

from server.core.context import Context
from server.core.database.tables import attempts, jobs
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.rest.jobs import Progress
from trainyard.run.checkpoints.checkpoint_names import checkpoint_id
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout

Parent = tuple[int, int]
"""Number of the parent attempt, and the step of its checkpoint."""


def add_job(context: Context, *, spec: JobSpec | None = None) -> str:
    """Store a running job and return its id."""
    spec = spec or JobSpec()
    job_id, now = context.new_id(), context.now()
    row = {
        "id": job_id,
        "name": spec.name,
        "tags": [],
        "project": spec.project,
        "spec": spec,
        "spec_digest": spec.digest,
        "state": "running",
        "desired": "run",
        "priority": 0,
        "world_size": 1,
        "layout": "1 rank",
        "progress": Progress(steps=spec.training.steps),
        "created_by": "ada",
        "created_at": now,
        "updated_at": now,
    }
    with context.database.write() as connection:
        connection.execute(insert(jobs).values(row))
    return job_id


def add_attempt(
    context: Context, job_id: str, number: int = 1, *, parent: Parent | None = None
) -> str:
    """Store a running attempt, started anew or from a checkpoint, and return its id."""
    attempt_id = context.new_id()
    row = {
        "id": attempt_id,
        "job_id": job_id,
        "number": number,
        "cause": "resume" if parent else "submit",
        "actor": "ada",
        "state": "running",
        "desired": "run",
        "layout": Layout(),
        "overrides": Overrides(),
        "micro_batch_size": 4,
        "parent_checkpoint_id": checkpoint_id(job_id, *parent) if parent else None,
        "start_step": parent[1] if parent else 0,
        "rendezvous_port": 1,
        "created_at": context.now(),
    }
    with context.database.write() as connection:
        connection.execute(insert(attempts).values(row))
    return attempt_id


def add_attempts(context: Context, job_id: str, parents: Sequence[Parent | None]) -> list[str]:
    """Store attempts 1, 2, ... with these parents, and return their ids."""
    return [
        add_attempt(context, job_id, number, parent=parent)
        for number, parent in enumerate(parents, start=1)
    ]
