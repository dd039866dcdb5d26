"""Reports on a share of an attempt: authorization, lease, progress."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select, update

from server.context import Context
from server.database.tables import attempt_nodes, attempts, jobs
from server.errors import NotFoundError, UnauthenticatedError
from server.events.notices import notify
from server.events.store import NewEvent, append_event
from server.leases import NODE_LEASES, check_fence
from server.lifecycle import attempt_to, job_to, lock_job_of, move, node_to
from server.subject import TRAINER, Actor, Subject
from trainyard.protocol.rest.event_data import (
    PhaseEntered,
    Reachable,
    Running,
)
from trainyard.protocol.states import (
    AttemptNodeState,
    AttemptState,
    DesiredState,
    JobState,
)
from trainyard.protocol.worker_messages import (
    Identity,
)
from trainyard.run.directory import Phase
from trainyard.run.records import Heartbeat


@dataclass(frozen=True)
class ReportedShare:
    """The share of an attempt whose supervisor reports; its job is locked."""

    attempt_id: str
    job_id: str
    job_name: str
    number: int
    """Number of the attempt."""
    node: str
    node_rank: int
    node_state: AttemptNodeState
    attempt_state: AttemptState
    job_state: JobState
    attempt_ended_at: datetime | None
    desired: DesiredState
    start_step: int
    last_step: int
    parent_checkpoint_id: str | None
    identity: Identity | None
    unreachable_since: datetime | None

    @property
    def subject(self) -> Subject:
        """What an event of the attempt is about."""
        return Subject(self.job_id, attempt=self.number)


def authorize_report(
    connection: Connection, attempt_id: str, *, node: str, token_hash: str
) -> ReportedShare:
    """Lock the job of a report's attempt, and return whose report it is; its share may have ended.

    Raises:
        UnauthenticatedError: the token is not that of this attempt on this node.
    """
    try:
        lock_job_of(connection, attempt_id)
    except NotFoundError:
        raise UnauthenticatedError("this is no token of a known attempt") from None
    share, attempt, job = attempt_nodes.c, attempts.c, jobs.c
    row = connection.execute(
        select(
            share.attempt_id,
            attempt.job_id,
            job.name.label("job_name"),
            attempt.number,
            share.node,
            share.node_rank,
            share.state.label("node_state"),
            attempt.state.label("attempt_state"),
            attempt.ended_at.label("attempt_ended_at"),
            job.state.label("job_state"),
            attempt.desired,
            attempt.start_step,
            attempt.last_step,
            attempt.parent_checkpoint_id,
            share.identity,
            share.unreachable_since,
            share.token_hash,
        )
        .join(attempts, attempt.id == share.attempt_id)
        .join(jobs, job.id == attempt.job_id)
        .where(share.attempt_id == attempt_id, share.node == node)
    ).one_or_none()
    if row is None or not hmac.compare_digest(row.token_hash or "", token_hash):
        raise UnauthenticatedError("this is no token of this attempt on this node")
    fields = row._asdict()
    del fields["token_hash"]
    return ReportedShare(
        **fields
        | {
            "node_state": AttemptNodeState(row.node_state),
            "attempt_state": AttemptState(row.attempt_state),
            "job_state": JobState(row.job_state),
            "desired": DesiredState(row.desired),
        }
    )


def check_identity(row: ReportedShare, identity: Identity) -> None:
    """Refuse the report of another process than the first one that reported for this share.

    Raises:
        ConflictError: it is another one.
    """
    refusal = f"another supervisor owns attempt {row.number} on {row.node}"
    check_fence(row.identity or identity, identity, refusal=refusal)


def record_heartbeat(
    context: Context,
    connection: Connection,
    row: ReportedShare,
    heartbeat: Heartbeat | None,
    identity: Identity,
) -> None:
    """Renew the lease of a share, and store the progress of its trainer.

    Raises:
        ConflictError: another process reported for this share before.
    """
    check_identity(row, identity)
    _renew_lease(context, connection, row, identity)
    if heartbeat is None:
        return
    trains = heartbeat.phase == Phase.TRAINING or heartbeat.step > row.start_step
    if trains and row.attempt_state == AttemptState.STARTING:
        event = NewEvent(
            Running(), TRAINER, row.subject, f"{row.job_name} trains from step {row.start_step}"
        )
        move(
            context,
            connection,
            event,
            attempt_to(row.attempt_id, AttemptState.RUNNING, started_at=context.now()),
            job_to(row.job_id, JobState.RUNNING, reason=None),
        )
    if row.node_rank == 0:
        _note_progress(context, connection, row, heartbeat)


def _renew_lease(
    context: Context, connection: Connection, row: ReportedShare, identity: Identity
) -> None:
    first = row.node_state == AttemptNodeState.CLAIMED
    lease = NODE_LEASES.renewal(context.now())
    lease |= {"identity": identity, "unreachable_since": None}
    if first:
        move(
            context,
            connection,
            None,
            node_to(row.attempt_id, row.node, AttemptNodeState.RUNNING, **lease),
        )
        notify(context, connection, row.subject.on(row.node), PhaseEntered(phase=Phase.STARTING))
        return
    connection.execute(
        update(attempt_nodes)
        .where(attempt_nodes.c.attempt_id == row.attempt_id, attempt_nodes.c.node == row.node)
        .values(**lease)
    )
    if row.unreachable_since is not None:
        event = NewEvent(
            Reachable(), Actor(row.node), row.subject.on(row.node), f"{row.node} reports again"
        )
        append_event(context, connection, event)


def _note_progress(
    context: Context, connection: Connection, row: ReportedShare, heartbeat: Heartbeat
) -> None:
    if heartbeat.step > row.last_step:
        connection.execute(
            update(attempts)
            .where(attempts.c.id == row.attempt_id, attempts.c.last_step < heartbeat.step)
            .values(last_step=heartbeat.step)
        )
    progress = connection.execute(
        select(jobs.c.progress).where(jobs.c.id == row.job_id)
    ).scalar_one()
    present = progress.model_copy(
        update={
            "phase": heartbeat.phase,
            "step": max(heartbeat.step, row.last_step),  # before the load a trainer reports 0
            "heartbeat_at": context.now(),
        }
    )
    connection.execute(update(jobs).where(jobs.c.id == row.job_id).values(progress=present))
