"""Submission of one job, as a request without concurrent ones."""

from __future__ import annotations

from server.core.context import Context
from server.core.database.rows import Job
from server.core.errors import RefusalError
from server.core.subject import Actor
from server.jobs.jobs.submission import SubmittedSpec, submit_all
from trainyard.spec.job import JobSpec


def submit(
    context: Context, spec: JobSpec, *, actor: Actor, idempotency_key: str | None = None
) -> Job:
    """Queue one job and return it, or raise its refusal."""
    (job,) = submit_all(context, [SubmittedSpec(spec, actor, idempotency_key)])
    if isinstance(job, RefusalError):
        raise job
    return job
