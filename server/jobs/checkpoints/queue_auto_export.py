"""Queues automatic exports of kept checkpoints (docs/lifecycle-operations.md, 60)."""

from __future__ import annotations

from sqlalchemy import Connection, exists, select

from server.core.context import Context
from server.core.database.rows import CheckpointHead, JobHead
from server.core.database.tables import attempts, checkpoints, jobs, operations
from server.core.subject import EXPORTING
from server.jobs.attempts.launch import effective_spec
from server.jobs.checkpoints.service import queue_on
from server.jobs.operations.queries import ARE_OPEN
from trainyard.protocol.operations import AutoExportTask, OperationKind
from trainyard.spec.job import JobSpec

MAX_CONSIDERED = 100
"""Number of a job's newest checkpoints that are exported; older ones without an export stay so."""


def queue_auto_export(
    context: Context, connection: Connection, *, job_id: str, ended: str | None = None
) -> None:
    """Queue the export of a job's newest kept checkpoint that has none, if the job exports.

    The caller holds the job's lock. At most one automatic export of a job is open, so slow exports
    do not pile up. A checkpoint that was tried once is not chosen again. Commits and successful
    exports call this function. After a failure the next commit does, so that a lasting cause fails
    one export for each commit, not one for each checkpoint in the catalog.

    Args:
        context: context of the server.
        connection: transaction of the caller.
        job_id: id of the job.
        ended: id of an automatic export that succeeds in this transaction.
    """
    newest_attempt = select(attempts.c.id).where(attempts.c.job_id == job_id)
    attempt_id = connection.scalar(newest_attempt.order_by(attempts.c.number.desc()).limit(1))
    if attempt_id is None:
        return  # the job was deleted meanwhile
    spec = effective_spec(connection, attempt_id)
    if spec.checkpoint.export == "none":
        return
    mine = (operations.c.job_id == job_id, operations.c.kind == OperationKind.AUTO_EXPORT)
    if connection.scalar(select(exists().where(*mine, ARE_OPEN, operations.c.id != (ended or "")))):
        return
    exported = exists().where(
        operations.c.checkpoint_id == checkpoints.c.id,
        operations.c.kind == OperationKind.AUTO_EXPORT,
    )
    newest = (checkpoints.c.attempt.desc(), checkpoints.c.step.desc())
    staying = (checkpoints.c.job_id == job_id, checkpoints.c.deleting_since.is_(None))
    considered = select(checkpoints.c.id).where(*staying).order_by(*newest).limit(MAX_CONSIDERED)
    query = CheckpointHead.select().where(
        checkpoints.c.id.in_(considered.scalar_subquery()),
        checkpoints.c.verified.is_not(False),
        ~exported,
    )
    chosen = CheckpointHead.one_or_none(connection, query.order_by(*newest).limit(1))
    if chosen is None:
        return
    queue_on(
        context,
        connection,
        job=JobHead.one(connection, JobHead.select().where(jobs.c.id == job_id)),
        checkpoint=chosen,
        kind=OperationKind.AUTO_EXPORT,
        actor=EXPORTING,
        reason=f"export={spec.checkpoint.export}",
        auto_export=_task(spec),
    )


def _task(spec: JobSpec) -> AutoExportTask:
    assert spec.checkpoint.export != "none", "the caller returns before"
    uses_tokenizer = spec.data.tokenizer == "huggingface"
    return AutoExportTask(
        format=spec.checkpoint.export,
        tokenizer=spec.data.tokenizer_path if uses_tokenizer else None,
        hugging_face=spec.model.hugging_face,
    )
