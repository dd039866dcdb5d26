"""Queues the build of an environment that an attempt lacks (docs/lifecycle-operations.md, 56)."""

from __future__ import annotations

import re

from sqlalchemy import Connection, select

from server.core.context import Context
from server.core.database.rows import JobHead
from server.core.database.tables import nodes
from server.core.subject import SERVER
from server.jobs.operations.service import queue_operation
from trainyard.protocol.operations import BuildTask, OperationKind, OperationTask
from trainyard.run.failures import Failure
from trainyard.spec.job import JobSpec

DIGEST = re.compile(r"[0-9a-f]{64}")


def queue_build(
    context: Context, connection: Connection, *, job: JobHead, spec: JobSpec, failure: Failure
) -> None:
    """Queue the build that a failure names, if any, on the storage of the node of the failure.

    The caller holds the lock of the job that waits for the build. `spec` is the job's effective
    spec.
    """
    digest, program = failure.environment or "", spec.program
    if program is None or program.environment.lock is None or not DIGEST.fullmatch(digest):
        return
    root = program.environment.root or spec.checkpoint.root
    roots = connection.scalar(select(nodes.c.roots).where(nodes.c.name == failure.node))
    wanted, kind = BuildTask(digest=digest), OperationKind.BUILD
    task = OperationTask(kind=kind, job_id=job.id, root=root, paths=(), build=wanted)
    queue_operation(
        context,
        connection,
        task,
        job=job,
        actor=SERVER,
        reason=f"{failure.node} needs {program.environment.lock}",
        storage=(roots or {}).get(root),
    )
