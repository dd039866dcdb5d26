"""Submissions: checked jobs are queued; concurrent submissions share one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert

from server.cluster.placement.pace import pace_digest
from server.cluster.projects.service import keep_project
from server.core.context import Context
from server.core.database.column_types import StoredRecord
from server.core.database.rows import Job
from server.core.database.tables import jobs
from server.core.database.upsert import inserted
from server.core.errors import RefusalError
from server.core.events.store import NewEvent, append_events
from server.core.subject import Actor, Subject
from server.jobs.facts.store import begin_facts
from server.jobs.jobs.checks import check_hardware, check_spec, check_world_size
from server.jobs.jobs.idempotency import job_of_key, submission_digest
from server.jobs.jobs.queries import job_row
from server.jobs.packs.store import name_pack
from trainyard.protocol.past_runs.views import ImportedRun
from trainyard.protocol.rest.event_data import Submitted
from trainyard.protocol.rest.jobs import PendingLaunch, Progress
from trainyard.protocol.resume_parts import CheckpointPart, parts_not_loaded
from trainyard.protocol.states import AttemptCause, DesiredState, JobState
from trainyard.spec.job import DEFAULT_PROJECT, JobSpec
from trainyard.spec.rules import check_new_job

_INSERT_JOB = insert(jobs)


@dataclass(frozen=True)
class Ancestor:
    """Where a new job starts: from scratch, or as a fork."""

    checkpoint_id: str | None = None
    """Checkpoint of another job."""
    parts: tuple[CheckpointPart, ...] | None = None
    """Parts of the checkpoint's state that the fork loads."""
    start_step: int = 0
    """Completed steps with which the job starts."""
    storage: str | None = None
    """UUID of the checkpoint's storage root."""


@dataclass(frozen=True)
class SubmittedSpec:
    """The content of a submission request."""

    spec: JobSpec
    actor: Actor
    """Who submits it."""
    idempotency_key: str | None = None
    """The caller's name of this very request."""

    @property
    def key(self) -> tuple[str, str] | None:
        """Unique key of the job: a second submission under it is a repeat of the first."""
        key = self.idempotency_key
        return None if key is None else (self.actor.identity, key)


@dataclass(frozen=True)
class CheckedJob:
    """A checked job, not stored yet."""

    id: str
    spec: JobSpec
    actor: Actor
    ancestor: Ancestor = Ancestor()


def submit(
    context: Context, spec: JobSpec, *, actor: Actor, idempotency_key: str | None = None
) -> Job:
    """Store a job, queued, and return it; a repeat under the same key returns the first one.

    Args:
        context: the server's surroundings.
        spec: what to run.
        actor: who submits it.
        idempotency_key: the caller's name of this very request.

    Raises:
        InvalidRequestError: the spec cannot run here, its project does not exist, or the key was
            used for another spec.
    """
    (job,) = submit_all(context, [SubmittedSpec(spec, actor, idempotency_key)])
    if isinstance(job, RefusalError):
        raise job
    return job


def submit_all(context: Context, submissions: Sequence[SubmittedSpec]) -> list[Job | RefusalError]:
    """Store several submissions in one transaction.

    Without keys, the number of statements does not depend on the number of submissions.

    Args:
        context: the server's surroundings.
        submissions: submissions with distinct keys.

    Returns:
        The job of each submission, or the reason why its spec cannot run.

    Raises:
        InvalidRequestError: a check of `submit` against the database fails for one of them;
            nothing is stored.
    """
    found: dict[int, Job | RefusalError] = {}
    new: dict[int, CheckedJob] = {}
    for place, each in enumerate(submissions):
        try:
            check_spec(context, each.spec, rules=check_new_job)
        except RefusalError as error:
            found[place] = error
        else:
            new[place] = CheckedJob(context.new_id(), each.spec, each.actor)
    if not new:
        return [found[place] for place in range(len(submissions))]
    with context.database.write() as connection:
        # In the order of the keys: two transactions with the same keys never wait crosswise.
        for place in sorted(new, key=lambda place: submissions[place].key or ()):
            earlier = _earlier(
                context, connection, submission=submissions[place], job_id=new[place].id
            )
            if earlier is not None:
                found[place] = earlier
                del new[place]
        for job in new.values():
            size = job.spec.resources.world_size
            check_world_size(context, size, pointer="/resources/world_size")
            check_hardware(connection, job.spec)
        stored = insert_jobs(context, connection, [*new.values()])
    found |= zip(new, stored, strict=True)
    return [found[place] for place in range(len(submissions))]


def _earlier(
    context: Context, connection: Connection, *, submission: SubmittedSpec, job_id: str
) -> Job | None:
    """Return the earlier job with the submission's key; None if `job_id` has reserved the key."""
    spec, key = submission.spec, submission.idempotency_key
    if key is None:
        return None
    earlier = job_of_key(
        context,
        connection,
        submission.actor,
        key=key,
        digest=submission_digest(spec),
        same_env=lambda env: env == spec.env,
        job_id=job_id,
    )
    return None if earlier is None else job_row(connection, earlier)


def insert_jobs(context: Context, connection: Connection, new: Sequence[CheckedJob]) -> list[Job]:
    """Store checked jobs as queued, and return them.

    Raises:
        InvalidRequestError: the project of one does not exist, or the server lacks its pack.
    """
    if not new:
        return []
    rows = [_row(context, each) for each in new]
    insert_rows(connection, rows, specs={each.id: each.spec for each in new})
    packed = [(each.spec.pack, each.id) for each in new if each.spec.pack is not None]
    for pack, job_id in sorted(packed):  # in the order of the packs, whose rows are locked
        name_pack(context, connection, job_id=job_id, digest=pack)
    append_events(context, connection, [_submitted(each) for each in new], touched=True)
    return [inserted(Job, row) for row in rows]


def insert_rows(
    connection: Connection,
    rows: Sequence[Mapping[str, Any]],
    *,
    specs: Mapping[str, JobSpec],
    run: ImportedRun | None = None,
) -> None:
    """Store jobs, with their facts; their projects cannot be deleted until the transaction ends.

    Args:
        connection: a transaction.
        rows: columns of the jobs; each row has the same ones.
        specs: their specs by job id.
        run: the imported run; None for submitted jobs.

    Raises:
        InvalidRequestError: a project does not exist.
    """
    for project in sorted({row["project"] for row in rows}):
        keep_project(connection, project)
    connection.execute(_INSERT_JOB, rows)
    begin_facts(connection, specs, run)


def _row(context: Context, new: CheckedJob) -> dict[str, Any]:
    spec, actor, ancestor = new.spec, new.actor, new.ancestor
    now, layout = context.now(), spec.layout()
    checkpoint_id, parts = ancestor.checkpoint_id, ancestor.parts
    return {
        "id": new.id,
        "name": spec.name,
        "tags": list(spec.tags),
        "project": spec.project,
        "spec": StoredRecord.of(spec.model_copy(update={"env": {}, "project": DEFAULT_PROJECT})),
        "spec_digest": spec.digest,
        "pace_digest": pace_digest(spec),
        "env": context.secrets.seal(spec.env),
        "state": JobState.QUEUED,
        "desired": DesiredState.RUN,
        "priority": spec.resources.priority,
        "pending": StoredRecord.of(
            PendingLaunch(
                cause=AttemptCause.SUBMIT,
                actor=actor.name,
                layout=layout,
                checkpoint_id=checkpoint_id,
            )
        ),
        "queued_at": now,
        "world_size": layout.world_size,
        "min_world_size": spec.resources.min_world_size,
        "max_world_size": spec.resources.max_world_size,
        "layout": spec.layout_name(layout),
        "preemptible": spec.is_preemptible,
        "progress": Progress(step=ancestor.start_step, steps=spec.total_steps),
        "forked_from": checkpoint_id,
        "fork_parts": parts,
        "fork_step": None if parts is None else ancestor.start_step,
        "storage": ancestor.storage,
        "created_by": actor.name,
        "token_id": actor.token_id,
        "created_at": now,
        "updated_at": now,
    }


def _submitted(new: CheckedJob) -> NewEvent:
    spec, layout = new.spec, new.spec.layout()
    checkpoint_id, parts = new.ancestor.checkpoint_id, new.ancestor.parts
    message = f"{spec.name} requests {layout.slots_in_words}"
    message += f" as {layout}" if spec.program is None else " for a program"
    if parts is not None:
        message += f", with {', '.join(parts)} of {checkpoint_id}"
    return NewEvent(
        Submitted(
            world_size=layout.world_size,
            layout=spec.layout_name(layout),
            forked_from=checkpoint_id,
            parts=parts or (),
            not_exact=parts_not_loaded(parts) if parts else (),
        ),
        new.actor,
        Subject(new.id),
        message,
    )
