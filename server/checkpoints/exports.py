"""Exports of weights, and texts drawn from a checkpoint."""

from __future__ import annotations

from sqlalchemy import Connection, select

from server.checkpoints.service import locked_to_stay, point_of
from server.context import Context
from server.database.rows import Checkpoint
from server.database.tables import jobs
from server.errors import ConflictError, InvalidRequestError
from server.operations.store import open_operations, queue_operation
from server.subject import Actor
from trainyard.protocol.operations import ExportTask, OperationKind, OperationTask, SampleTask
from trainyard.protocol.rest.operations import ExportRequest, SampleRequest
from trainyard.spec.job import JobSpec


def export(context: Context, checkpoint_id: str, request: ExportRequest, *, actor: Actor) -> str:
    """Queue an export, and return the operation's id; the same again returns the open one's.

    Raises:
        NotFoundError: the catalog holds none of this id.
        ConflictError: it is to be deleted, damaged or of an own model, or another export writes
            the same folder.
        InvalidRequestError: the root is none of this server.
    """
    with context.database.write() as connection:
        job, checkpoint = locked_to_stay(connection, checkpoint_id)
        _check_whole(checkpoint)
        wanted = _export_task(context, _spec(connection, job.id), checkpoint, request)
        task = _task(OperationKind.EXPORT, checkpoint, export=wanted)
        context.database.lock_events(connection)  # an export of another job must not slip in
        for other in open_operations(connection, {OperationKind.EXPORT}):
            export = other.task.export
            if export is not None and export.place == wanted.place and other.task != task:
                raise ConflictError(
                    f"operation {other.id} writes another export to {wanted.place} and is "
                    f"{other.state}; name another folder"
                )
        return queue_operation(
            context,
            connection,
            task,
            job=job,
            checkpoint_id=checkpoint_id,
            actor=actor,
            reason=f"as {wanted.dtype} to {wanted.place}",
        )


def sample(context: Context, checkpoint_id: str, request: SampleRequest, *, actor: Actor) -> str:
    """Queue the drawing of a text, and return the operation's id; the same again is the open one.

    Raises:
        NotFoundError: the catalog holds none of this id.
        ConflictError: it is to be deleted or damaged, or its model is code that may not run here.
    """
    with context.database.write() as connection:
        job, checkpoint = locked_to_stay(connection, checkpoint_id)
        _check_whole(checkpoint)
        spec = _spec(connection, job.id)
        if spec.model.factory is not None and not context.settings.allow_code:
            raise ConflictError(
                f"{checkpoint_id} holds {spec.model.factory}, and this server runs no code that a "
                "job brings; TRAINYARD_ALLOW_CODE=true, for the server and its workers, allows it"
            )
        wanted = SampleTask(spec=spec, **request.model_dump())
        return queue_operation(
            context,
            connection,
            _task(OperationKind.SAMPLE, checkpoint, sample=wanted),
            job=job,
            checkpoint_id=checkpoint_id,
            actor=actor,
            reason=f"{request.max_tokens} tokens",
        )


def _task(
    kind: OperationKind, checkpoint: Checkpoint, **wanted: ExportTask | SampleTask
) -> OperationTask:
    return OperationTask.model_validate(
        {
            "kind": kind,
            "job_id": checkpoint.job_id,
            "root": checkpoint.root,
            "paths": (checkpoint.path,),
            "checkpoint": point_of(checkpoint),
            **wanted,
        }
    )


def _export_task(
    context: Context, spec: JobSpec, checkpoint: Checkpoint, request: ExportRequest
) -> ExportTask:
    """Return what a request amounts to."""
    model = checkpoint.manifest.model
    if spec.model.factory is not None or model is None:
        raise ConflictError(
            f"{checkpoint.id} holds {spec.model.factory or 'a model that it does not describe'}: "
            "only models of a known family have names that other programs know"
        )
    root = request.root or checkpoint.root
    if root not in context.settings.roots:
        legal = ", ".join(context.settings.roots)
        raise InvalidRequestError.at("/root", f"{root!r} is no root of this server; legal: {legal}")
    dtype = request.dtype or checkpoint.manifest.param_dtype
    task = {
        "root": root,
        "name": request.name or f"{checkpoint.id}-{dtype}",
        "dtype": dtype,
        "shard_gib": request.shard_gib,
        "tokenizer": spec.data.tokenizer_path if spec.data.tokenizer == "huggingface" else None,
    }
    return ExportTask.model_validate(task)  # a manifest may name any type


def _check_whole(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that is known as damaged."""
    if checkpoint.verified is False:
        found = checkpoint.verification
        fault = found.fault if found is not None else "unknown"
        raise ConflictError(f"{checkpoint.id} is damaged ({fault}): choose another one")


def _spec(connection: Connection, job_id: str) -> JobSpec:
    spec: JobSpec = connection.execute(select(jobs.c.spec).where(jobs.c.id == job_id)).scalar_one()
    return spec
