"""Commands on a checkpoint: verify, scrub, pin, export and sample."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from server.api.auth.endings import write_as
from server.core.context import Context
from server.core.database.rows import Checkpoint, CheckpointHead, JobHead
from server.core.database.tables import checkpoints, jobs
from server.core.errors import ConflictError, InvalidRequestError
from server.core.events.store import NewEvent, append_event
from server.core.people.unix_accounts import check_may_act_for
from server.core.subject import Actor, Subject
from server.core.visibility.scope import HIDDEN_JOB
from server.jobs.attempts.launch import submitted_spec
from server.jobs.checkpoints.guards import locked_to_stay
from server.jobs.operations.queries import open_operations
from server.jobs.operations.service import queue_operation
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.manifest import Manifest
from trainyard.protocol.operations import (
    AutoExportTask,
    ExportTask,
    OperationKind,
    OperationTask,
    SampleTask,
)
from trainyard.protocol.rest.checkpoints import ExportRequest, SampleRequest
from trainyard.protocol.rest.event_data import CheckpointPinned
from trainyard.spec.job import JobSpec


def verify(context: Context, checkpoint_id: str, *, actor: Actor) -> str:
    """Queue a verification and return the operation's id; a repeat returns the open operation's id.

    Raises:
        NotFoundError: no checkpoint has this id.
        ConflictError: the checkpoint is being deleted.
    """
    with write_as(context, actor) as connection:
        job, checkpoint = locked_to_stay(connection, checkpoint_id, scope=actor.scope)
        kind = OperationKind.VERIFY
        return queue_on(context, connection, job=job, checkpoint=checkpoint, kind=kind, actor=actor)


def queue_on(
    context: Context,
    connection: Connection,
    *,
    job: JobHead,
    checkpoint: CheckpointHead,
    kind: OperationKind,
    actor: Actor,
    reason: str = "",
    **wanted: ExportTask | SampleTask | AutoExportTask,
) -> str:
    """Queue an operation on a checkpoint of a locked job, and return the operation's id."""
    point = ResumePoint(
        checkpoint_id=checkpoint.id,
        path=checkpoint.path,
        step=checkpoint.step,
        metadata_digest=checkpoint.metadata_digest,
    )
    given = {"kind": kind, "job_id": job.id, "root": checkpoint.root, "paths": (checkpoint.path,)}
    task = OperationTask.model_validate({**given, "checkpoint": point, **wanted})
    return queue_operation(
        context, connection, task, job=job, actor=actor, reason=reason, checkpoint_id=checkpoint.id
    )


def set_pin(context: Context, checkpoint_id: str, *, pinned: bool, actor: Actor) -> None:
    """Pin a checkpoint to exempt it from retention, or unpin it; a repeat changes nothing.

    Raises:
        NotFoundError: no checkpoint has this id.
        ConflictError: the checkpoint is being deleted.
    """
    with write_as(context, actor) as connection:
        job, checkpoint = locked_to_stay(connection, checkpoint_id, scope=actor.scope)
        if (checkpoint.pinned_at is not None) == pinned:
            return
        at, by = (context.now(), actor.name) if pinned else (None, None)
        mine = update(checkpoints).where(checkpoints.c.id == checkpoint_id)
        connection.execute(mine.values(pinned_at=at, pinned_by=by))
        data = CheckpointPinned(checkpoint_id=checkpoint_id, pinned=pinned)
        message = f"{checkpoint_id} is {'pinned' if pinned else 'no longer pinned'}"
        append_event(context, connection, NewEvent(data, actor, Subject(job.id), message))


def export(context: Context, checkpoint_id: str, request: ExportRequest, *, actor: Actor) -> str:
    """Queue an export and return the operation's id; a repeat returns the open operation's id.

    Raises:
        NotFoundError: no checkpoint has this id.
        ConflictError: the checkpoint is being deleted or is damaged, a program saved it, its model
            belongs to no known family, or another export writes the same folder.
        InvalidRequestError: the server does not know the storage root.
    """
    with write_as(context, actor) as connection:
        job, checkpoint = locked_to_stay(connection, checkpoint_id, scope=actor.scope)
        _check_whole(checkpoint)
        spec = submitted_spec(connection, job.id)
        wanted = _export_task(context, spec, checkpoint=checkpoint, request=request)
        # Another job may export to the same folder, so the lock of this job is not enough.
        context.database.lock_events(connection)
        for other in open_operations(connection, {OperationKind.EXPORT}):
            export, same = other.task.export, other.checkpoint_id == checkpoint_id
            if export and export.place == wanted.place and not (same and export == wanted):
                seen = actor.scope.sees(other.project)
                who = f"operation {other.id}" if seen else f"an operation of {HIDDEN_JOB}"
                raise ConflictError(
                    f"{who} writes another export to {wanted.place} and is "
                    f"{other.state}; name another folder"
                )
        return queue_on(
            context,
            connection,
            job=job,
            checkpoint=checkpoint,
            kind=OperationKind.EXPORT,
            actor=actor,
            reason=f"as {wanted.dtype} to {wanted.place}",
            export=wanted,
        )


def sample(context: Context, checkpoint_id: str, request: SampleRequest, *, actor: Actor) -> str:
    """Queue a sample and return the operation's id; a repeat returns the open operation's id.

    Raises:
        NotFoundError: no checkpoint has this id.
        ForbiddenError: the job's owner has a Unix account, which the actor may not use.
        ConflictError: the checkpoint is being deleted or is damaged, a program saved it, or its
            model is code that may not run here.
    """
    with write_as(context, actor) as connection:
        job, checkpoint = locked_to_stay(connection, checkpoint_id, scope=actor.scope)
        owner_id = connection.scalar(select(jobs.c.owner_id).where(jobs.c.id == job.id))
        check_may_act_for(connection, str(owner_id), actor=actor)
        _check_whole(checkpoint)
        spec = submitted_spec(connection, job.id)
        _refuse_program(checkpoint, spec)
        if spec.model.runs_code and not context.settings.allow_code:
            held = spec.model.factory or spec.model.hugging_face
            raise ConflictError(
                f"{checkpoint_id} holds {held}, and this server runs no code that a "
                "job brings; TRAINYARD_ALLOW_CODE=true, for the server and its workers, allows it"
            )
        return queue_on(
            context,
            connection,
            job=job,
            checkpoint=checkpoint,
            kind=OperationKind.SAMPLE,
            actor=actor,
            reason=f"{request.max_tokens} tokens",
            sample=SampleTask(spec=spec, **request.model_dump()),
        )


def _export_task(
    context: Context, spec: JobSpec, *, checkpoint: Checkpoint, request: ExportRequest
) -> ExportTask:
    """Return the task for an export request, with defaults from the checkpoint."""
    _refuse_program(checkpoint, spec)
    manifest = checkpoint.manifest
    assert isinstance(manifest, Manifest), "a program's checkpoint is refused above"
    if spec.model.factory is not None or manifest.model is None:
        raise ConflictError(
            f"{checkpoint.id} holds {spec.model.factory or 'a model that it does not describe'}: "
            "only models of a known family have weight names that other programs read"
        )
    root = request.root or checkpoint.root
    if root not in context.settings.roots:
        legal = ", ".join(context.settings.roots)
        raise InvalidRequestError.at("/root", f"{root!r} is no root of this server; legal: {legal}")
    dtype = request.dtype or manifest.param_dtype
    task = {
        "root": root,
        "name": request.name or f"{checkpoint.id}-{dtype}",
        "dtype": dtype,
        "shard_gib": request.shard_gib,
        "tokenizer": spec.data.tokenizer_path if spec.data.tokenizer == "huggingface" else None,
        "hugging_face": spec.model.hugging_face,
    }
    return ExportTask.model_validate(task)  # validated, as a manifest can name any type


def _refuse_program(checkpoint: Checkpoint, spec: JobSpec) -> None:
    if spec.program is not None:
        raise ConflictError(
            f"{checkpoint.id} was saved by a program (program.command): only the program knows "
            "what its files hold"
        )


def _check_whole(checkpoint: Checkpoint) -> None:
    if checkpoint.verified is False:
        fault = checkpoint.verification.fault if checkpoint.verification else "unknown"
        raise ConflictError(f"{checkpoint.id} is damaged ({fault}): choose another one")
