"""Submissions: checks new jobs and queues them; concurrent submissions share a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, insert

from server.api.auth.endings import write_as
from server.cluster.placement.pace import pace_digest
from server.cluster.projects.service import check_project, keep_project
from server.core.audit.request_rows import AuditedRequest, current_request, note_changes
from server.core.context import Context
from server.core.database.column_types import StoredRecord
from server.core.database.rows import Job
from server.core.database.tables import jobs
from server.core.database.upsert import inserted
from server.core.errors import RefusalError
from server.core.events.store import NewEvent, append_events
from server.core.subject import Actor, Subject
from server.core.visibility.scope import Scope
from server.jobs.facts.store import begin_facts
from server.jobs.jobs.checks import (
    check_code,
    check_hardware,
    check_secrets,
    check_spec,
    check_start,
    check_world_size,
)
from server.jobs.jobs.idempotency import job_of_key, submission_digest
from server.jobs.jobs.queries import job_row
from server.jobs.packs.store import name_pack
from trainyard.protocol.past_runs.views import ImportedRun
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.event_data import Submitted
from trainyard.protocol.rest.jobs import PendingLaunch, Progress
from trainyard.protocol.resume_parts import CheckpointPart, parts_not_loaded
from trainyard.protocol.states import AttemptCause, DesiredState, JobState
from trainyard.spec.job import DEFAULT_PROJECT, JobSpec
from trainyard.spec.rules import check_new_job


@dataclass(frozen=True)
class SubmittedSpec:
    """The content of a submission request."""

    spec: JobSpec
    actor: Actor
    idempotency_key: str | None = None
    request: AuditedRequest | None = field(default_factory=current_request, repr=False)
    """The request, for its audit row."""

    @property
    def key(self) -> tuple[str, str] | None:
        """Unique key of the submission; another submission with this key is a repeat."""
        key = self.idempotency_key
        return None if key is None else (self.actor.identity, key)


@dataclass(frozen=True)
class CheckedJob:
    """A checked job, not stored yet."""

    id: str
    spec: JobSpec
    actor: Actor
    checkpoint_id: str | None = None
    """Checkpoint of another job from which the job starts; None for a start from scratch."""
    parts: tuple[CheckpointPart, ...] | None = None
    """Parts of the checkpoint that the job loads."""
    start_step: int = 0
    """Number of completed steps at the start of the job."""
    storage: str | None = None
    """UUID of the storage root that holds the checkpoint."""
    request: AuditedRequest | None = field(default_factory=current_request, repr=False)
    """The request, for its audit row."""


def submit_all(context: Context, submissions: Sequence[SubmittedSpec]) -> list[Job | RefusalError]:
    """Store submissions with distinct keys in one transaction.

    Return for each submission the new job, the earlier job with the same key, or the reason why the
    spec cannot run or the actor may not submit it. Without keys, packs, starts and needs of
    special hardware, the number of SQL statements depends only on the number of projects.

    Raises:
        InvalidRequestError: a project or pack does not exist, a world size is above `max_slots`, no
            node has the hardware, a start is a checkpoint of this server, or a key was used for
            another spec; nothing is stored.
        UnauthenticatedError: the access of an actor has ended or shrunk; nothing is stored.
    """
    found: dict[int, Job | RefusalError] = {}
    new: dict[int, CheckedJob] = {}
    for place, each in enumerate(submissions):
        try:
            check_code(each.actor, each.spec, project=each.spec.project)
            check_spec(context, each.spec, rules=check_new_job)
        except RefusalError as error:
            found[place] = error
        else:
            start = each.spec.checkpoint.start_step
            new[place] = CheckedJob(
                context.new_id(), each.spec, each.actor, start_step=start, request=each.request
            )
    if not new:
        return [found[place] for place in range(len(submissions))]
    with write_as(context, *(each.actor for each in new.values())) as connection:
        # All transactions take the keys in sorted order, so that no two of them deadlock.
        for place in sorted(new, key=lambda place: submissions[place].key or ()):
            key = submissions[place].idempotency_key
            earlier = _earlier(context, connection, new[place], key=key)
            if earlier is not None:
                found[place] = earlier
                del new[place]
        for job in new.values():
            size = job.spec.resources.world_size
            check_world_size(context, size, pointer="/resources/world_size")
            check_hardware(connection, job.spec)
            check_start(connection, job.spec, scope=job.actor.scope)
            check_secrets(context, connection, job.spec, actor=job.actor)
        stored = insert_jobs(context, connection, [*new.values()])
    found |= zip(new, stored, strict=True)
    return [found[place] for place in range(len(submissions))]


def _earlier(
    context: Context, connection: Connection, new: CheckedJob, *, key: str | None
) -> Job | None:
    """Return the earlier job with the key; None if `new` has reserved the key."""
    if key is None:
        return None
    check_project(connection, new.spec.project, scope=new.actor.scope)
    earlier = job_of_key(
        context,
        connection,
        new.actor,
        key=key,
        digest=submission_digest(new.spec),
        same_env=lambda env: env == new.spec.env,
        job_id=new.id,
    )
    if earlier is None:
        return None
    return job_row(connection, earlier, scope=new.actor.scope, permission=Permission.JOBS_WRITE)


def insert_jobs(context: Context, connection: Connection, new: Sequence[CheckedJob]) -> list[Job]:
    """Store checked jobs as queued, and return them.

    Raises:
        InvalidRequestError: the project of a job does not exist, or the server lacks the job's
            pack.
    """
    if not new:
        return []
    rows = [_row(context, each) for each in new]
    specs = {each.id: each.spec for each in new}
    insert_rows(connection, rows, specs=specs, scopes={each.id: each.actor.scope for each in new})
    actors = {each.id: each.actor for each in new}
    packed = [(each.spec.pack, each.id) for each in new if each.spec.pack is not None]
    for pack, job_id in sorted(packed):  # sorted, because the rows of the packs are locked
        name_pack(context, connection, job_id=job_id, digest=pack, actor=actors[job_id])
    append_events(context, connection, [_submitted(each) for each in new], touched=True)
    note_changes(connection, [(each.request, _audited(each)) for each in new])
    return [inserted(Job, row) for row in rows]


def _audited(new: CheckedJob) -> dict[str, Any]:
    after = {"name": new.spec.name, "world_size": new.spec.resources.world_size}
    if new.checkpoint_id is not None:
        after["checkpoint_id"] = new.checkpoint_id
    return {"object": f"jobs/{new.id}", "project": new.spec.project, "after": after}


def insert_rows(
    connection: Connection,
    rows: Sequence[Mapping[str, Any]],
    *,
    specs: Mapping[str, JobSpec],
    scopes: Mapping[str, Scope],
    run: ImportedRun | None = None,
) -> None:
    """Store jobs with their facts, and lock their projects against deletion.

    All rows have the same columns; `specs` and `scopes` have the job ids as keys.

    Raises:
        InvalidRequestError: a project does not exist, or is hidden from the job's submitter.
        ForbiddenError: the submitter of a job lacks `jobs:write` in its project.
    """
    for project, own in groupby(sorted(rows, key=_project), _project):
        keep_project(connection, project, scopes=[scopes[row["id"]] for row in own])
    connection.execute(insert(jobs), rows)
    begin_facts(connection, specs, run)


def _project(row: Mapping[str, Any]) -> str:
    return str(row["project"])


def _row(context: Context, new: CheckedJob) -> dict[str, Any]:
    spec, now, layout = new.spec, context.now(), new.spec.layout()
    pending = PendingLaunch(
        cause=AttemptCause.SUBMIT,
        actor=new.actor.name,
        layout=layout,
        checkpoint_id=new.checkpoint_id,
    )
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
        "pending": StoredRecord.of(pending),
        "queued_at": now,
        "world_size": layout.world_size,
        "min_world_size": spec.resources.min_world_size,
        "max_world_size": spec.resources.max_world_size,
        "layout": spec.layout_name(layout),
        "preemptible": spec.is_preemptible,
        "progress": Progress(step=new.start_step, steps=spec.total_steps),
        "forked_from": new.checkpoint_id,
        "fork_parts": new.parts,
        "fork_step": new.start_step,
        "storage": new.storage,
        "created_by": new.actor.name,
        "token_id": new.actor.token_id,
        "owner_id": new.actor.owner_id,
        "created_at": now,
        "updated_at": now,
    }


def _submitted(new: CheckedJob) -> NewEvent:
    spec, layout, parts = new.spec, new.spec.layout(), new.parts
    message = f"{spec.name} requests {layout.slots_in_words}"
    message += f" as {layout}" if spec.program is None else " for a program"
    if parts is not None:
        message += f", with {', '.join(parts)} of {new.checkpoint_id}"
    data = Submitted(
        world_size=layout.world_size,
        layout=spec.layout_name(layout),
        forked_from=new.checkpoint_id,
        parts=parts or (),
        not_exact=parts_not_loaded(parts) if parts else (),
    )
    return NewEvent(data, new.actor, Subject(new.id), message)
