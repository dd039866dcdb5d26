"""Short ways to a checkpoint and its operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import select

from server.core.database.tables import checkpoints, events, notices, operations
from server.core.lifecycle import lock_job
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.launch import effective_spec
from server.jobs.checkpoints.catalog import apply_outcome
from server.jobs.checkpoints.deletion import apply_retention
from server.jobs.operations.queries import read_operation
from server.jobs.operations.service import claim_operation, report_operation
from server.telemetry.metrics.lineage_values import measure
from tests.server.harness import WORKER, AnyRow, Harness
from trainyard.protocol.operations import OperationOutcome, OperationProgress, Verification
from trainyard.protocol.rest.checkpoints import OperationView
from trainyard.protocol.worker_messages import (
    PROTOCOL,
    OperationClaimReply,
    OperationReport,
    OperationReportReply,
)
from trainyard.run.checkpoint_faults import CheckpointFault

APPLY = partial(apply_outcome, measure=measure)
"""Applies the outcome of an operation, like the server."""


@dataclass
class Yard:
    """A job with checkpoints, and the nodes that run operations."""

    harness: Harness

    def operations(self, **where: Any) -> list[AnyRow]:
        """Return the operations, the oldest first."""
        query = select(operations).order_by(operations.c.id)
        for name, value in where.items():
            query = query.where(operations.c[name] == value)
        with self.harness.context.database.read() as connection:
            return list(connection.execute(query))

    def operation(self, operation_id: str) -> OperationView:
        with self.harness.context.database.read() as connection:
            return read_operation(connection, operation_id, scope=SYSTEM_SCOPE)

    def checkpoints(self, job_id: str) -> Mapping[str, AnyRow]:
        """Return the rows of the catalog by id."""
        query = select(checkpoints).where(checkpoints.c.job_id == job_id)
        with self.harness.context.database.read() as connection:
            return {row.id: row for row in connection.execute(query)}

    def kept(self, job_id: str) -> list[str]:
        """Return the checkpoints that are not being deleted, as `a1.step-2`."""
        rows = self.checkpoints(job_id).values()
        return sorted(row.id.split(".", 1)[1] for row in rows if row.deleting_since is None)

    def commit(self, job_id: str, *steps: int) -> None:
        """Commit checkpoints of the newest attempt, and run retention after each."""
        context = self.harness.context
        for step in steps:
            self.harness.commit_checkpoint(job_id, step)
            attempt = self.harness.attempt(job_id)
            with context.database.write() as connection:
                lock_job(connection, job_id)
                section = effective_spec(connection, attempt.id).checkpoint
                apply_retention(
                    context, connection, job_id=job_id, section=section, measure=measure
                )

    def give(self) -> list[tuple[str, str]]:
        """Run one round of the keeper; return the sent (operation, node) pairs."""
        sent = len(self.harness.dispatcher.operations)
        self.harness.scrubs.run()
        self.harness.keeper.run()
        return [(m.operation_id, m.node) for m in self.harness.dispatcher.operations[sent:]]

    def claim(self, operation_id: str, node: str = "node-1") -> OperationClaimReply:
        return claim_operation(self.harness.context, operation_id, node=node, worker=WORKER)

    def report(
        self,
        operation_id: str,
        *,
        node: str = "node-1",
        fence: int = 1,
        done: int | None = None,
        outcome: OperationOutcome | None = None,
    ) -> OperationReportReply:
        progress = None if done is None else OperationProgress(doing="reads", done=done, total=10)
        report = OperationReport(
            protocol=PROTOCOL, node=node, fence=fence, progress=progress, outcome=outcome
        )
        return report_operation(self.harness.context, operation_id, report, apply=APPLY)

    def do(
        self, operation_id: str, *, fault: CheckpointFault | None = None, load: bool = True
    ) -> None:
        """Run an operation from its message to its end."""
        assert (operation_id, "node-1") in self.give()
        reply = self.claim(operation_id)
        found = None
        if reply.task.checkpoint is not None:
            now = self.harness.context.now()
            found = Verification(
                ok=fault is None,
                at=now,
                loaded_at=now if load and fault is None else None,
                loaded_on=2 if load and fault is None else None,
                fault=fault,
                message="model-0.bin is damaged" if fault else None,
            )
        outcome = OperationOutcome(outcome="succeeded", message="done", verification=found)
        self.report(operation_id, fence=reply.fence, outcome=outcome)

    def said(self, job_id: str, kind: str) -> list[AnyRow]:
        """Return the job's events of a kind."""
        query = select(events).where(events.c.job_id == job_id, events.c.kind == kind)
        with self.harness.context.database.read() as connection:
            return list(connection.execute(query.order_by(events.c.id)))

    def noticed(self, job_id: str, kind: str) -> list[AnyRow]:
        """Return the job's notices of a kind, in the order of their changes."""
        query = select(notices).where(notices.c.job_id == job_id, notices.c.kind == kind)
        with self.harness.context.database.read() as connection:
            return list(connection.execute(query.order_by(notices.c.seq)))
