"""Short ways to a checkpoint and its chore."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import select

from server.attempts.launch import effective_spec
from server.chores.carrying import claim_chore, report_chore
from server.chores.queue import read_chore
from server.chores.service import apply_retention
from server.database.tables import checkpoints, chores, events
from server.lifecycle import lock_job
from tests.server.harness import AnyRow, Harness
from trainyard.protocol.checkpoint_faults import CheckpointFault
from trainyard.protocol.chores import ChoreOutcome, ChoreProgress, Verification
from trainyard.protocol.rest.chores import ChoreView
from trainyard.protocol.worker_messages import (
    PROTOCOL,
    ChoreClaimReply,
    ChoreReport,
    ChoreReportReply,
)


@dataclass
class Yard:
    """A job with checkpoints, and the nodes that do chores."""

    harness: Harness

    def chores(self, **where: Any) -> list[AnyRow]:
        """Return the chores, the oldest first."""
        query = select(chores).order_by(chores.c.id)
        for name, value in where.items():
            query = query.where(chores.c[name] == value)
        with self.harness.context.database.read() as connection:
            return list(connection.execute(query))

    def chore(self, chore_id: str) -> ChoreView:
        with self.harness.context.database.read() as connection:
            return read_chore(connection, chore_id)

    def checkpoints(self, job_id: str) -> Mapping[str, AnyRow]:
        """Return the rows of the catalog by id."""
        query = select(checkpoints).where(checkpoints.c.job_id == job_id)
        with self.harness.context.database.read() as connection:
            return {row.id: row for row in connection.execute(query)}

    def kept(self, job_id: str) -> list[str]:
        """Return what is not to go, as `a1.step-2`."""
        rows = self.checkpoints(job_id).values()
        return sorted(row.id.split(".", 1)[1] for row in rows if row.deleting_since is None)

    def commit(self, job_id: str, *steps: int) -> None:
        """Commit checkpoints of the newest attempt, and have retention look after each."""
        context = self.harness.context
        for step in steps:
            self.harness.commit_checkpoint(job_id, step)
            attempt = self.harness.attempt(job_id)
            with context.database.write() as connection:
                lock_job(connection, job_id)
                section = effective_spec(connection, attempt.id).checkpoint
                apply_retention(context, connection, job_id, section)

    def give(self) -> list[tuple[str, str]]:
        """Run one round of the keeper; return what it sent as (chore, node)."""
        sent = len(self.harness.dispatcher.chores)
        self.harness.keeper.run()
        return [(m.chore_id, m.node) for m in self.harness.dispatcher.chores[sent:]]

    def claim(self, chore_id: str, node: str = "node-1") -> ChoreClaimReply:
        return claim_chore(self.harness.context, chore_id, node=node)

    def report(
        self,
        chore_id: str,
        *,
        node: str = "node-1",
        fence: int = 1,
        done: int | None = None,
        outcome: ChoreOutcome | None = None,
    ) -> ChoreReportReply:
        progress = None if done is None else ChoreProgress(doing="reads", done=done, total=10)
        report = ChoreReport(
            protocol=PROTOCOL, node=node, fence=fence, progress=progress, outcome=outcome
        )
        return report_chore(self.harness.context, chore_id, report)

    def do(self, chore_id: str, *, fault: CheckpointFault | None = None, load: bool = True) -> None:
        """Do a chore from giving to its end."""
        assert (chore_id, "node-1") in self.give()
        reply = self.claim(chore_id)
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
        outcome = ChoreOutcome(outcome="succeeded", message="done", verification=found)
        self.report(chore_id, fence=reply.fence, outcome=outcome)

    def said(self, job_id: str, kind: str) -> list[AnyRow]:
        """Return the job's events of a kind."""
        query = select(events).where(events.c.job_id == job_id, events.c.kind == kind)
        with self.harness.context.database.read() as connection:
            return list(connection.execute(query.order_by(events.c.id)))


@pytest.fixture
def yard(harness: Harness) -> Yard:
    """One node, and what acts on chores."""
    harness.add_node()
    return Yard(harness)
