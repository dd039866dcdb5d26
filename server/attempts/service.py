"""What workers and supervisors do with an attempt: claim a share, renew its lease, report steps."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select, update

from server.attempts.claim_reply import claim_reply
from server.attempts.launch import read_launch
from server.auth.tokens import TokenKind, hash_token, make_token
from server.context import Context
from server.database.tables import attempt_nodes, attempts, jobs
from server.errors import ConflictError, NotFoundError, UnauthenticatedError
from server.events.notices import notify
from server.events.store import append_event
from server.leases import NODE_LEASES, check_fence
from server.lifecycle import attempt_to, job_to, lock_job_of, move, node_to
from server.nodes.workers import check_worker
from server.protocol_2 import check_reply
from server.subject import TRAINER, Actor, Subject
from trainyard.protocol.rest.event_data import (
    Claimed,
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
    PROTOCOL,
    ClaimReply,
    Identity,
    WorkerIdentity,
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


def claim(
    context: Context,
    attempt_id: str,
    *,
    node: str,
    worker: WorkerIdentity,
    protocol: int = PROTOCOL,
) -> ClaimReply:
    """Take on a node's share of an attempt; only the first of several claims succeeds.

    Raises:
        NotFoundError: there is no such attempt, or the node has no share of it.
        ConflictError: the share was claimed before, the attempt is to end, another worker serves
            the node, or the sender's protocol lacks a field of the reply.
    """
    token = make_token(TokenKind.ATTEMPT)
    with context.database.write() as connection:
        lock_job_of(connection, attempt_id)
        launch = read_launch(connection, attempt_id)
        share = next((n for n in launch.nodes if n.node == node), None)
        if share is None:
            raise NotFoundError(f"node {node!r} has no share of attempt {attempt_id!r}")
        check_worker(connection, node, worker)
        if launch.attempt.desired != DesiredState.RUN:
            raise ConflictError(f"attempt {attempt_id} is {launch.attempt.state} and must not run")
        first = launch.attempt.state == AttemptState.PLACED
        move(
            context,
            connection,
            node_to(
                attempt_id,
                node,
                AttemptNodeState.CLAIMED,
                token_hash=hash_token(token),
                worker=worker,
                **NODE_LEASES.claim(context.now()),
            ),
            *([attempt_to(attempt_id, AttemptState.STARTING)] if first else []),
            event=Claimed(),
            message=f"{node} took on {len(share.slots)} slots",
            actor=Actor(node),
            subject=launch.subject.on(node),
        )
        reply = claim_reply(context, connection, launch, node_rank=share.node_rank, token=token)
        if protocol < PROTOCOL:
            check_reply(reply)  # in the transaction, so that a refusal leaves the share unclaimed
        return reply


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
    """Renew the lease of a share, and note how far its trainer is.

    Raises:
        ConflictError: another process reported for this share before.
    """
    check_identity(row, identity)
    _renew_lease(context, connection, row, identity)
    if heartbeat is None:
        return
    trains = heartbeat.phase == Phase.TRAINING or heartbeat.step > row.start_step
    if trains and row.attempt_state == AttemptState.STARTING:
        move(
            context,
            connection,
            attempt_to(row.attempt_id, AttemptState.RUNNING, started_at=context.now()),
            job_to(row.job_id, JobState.RUNNING, reason=None),
            event=Running(),
            message=f"{row.job_name} trains from step {row.start_step}",
            actor=TRAINER,
            subject=row.subject,
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
            node_to(row.attempt_id, row.node, AttemptNodeState.RUNNING, **lease),
            event=None,
            actor=Actor(row.node),
            subject=row.subject.on(row.node),
        )
        notify(context, connection, row.subject.on(row.node), PhaseEntered(phase=Phase.STARTING))
        return
    connection.execute(
        update(attempt_nodes)
        .where(attempt_nodes.c.attempt_id == row.attempt_id, attempt_nodes.c.node == row.node)
        .values(**lease)
    )
    if row.unreachable_since is not None:
        append_event(
            context,
            connection,
            Reachable(),
            message=f"{row.node} reports again",
            actor=Actor(row.node),
            subject=row.subject.on(row.node),
        )


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
            "step": max(heartbeat.step, row.last_step),  # before it has loaded, a trainer says 0
            "heartbeat_at": context.now(),
        }
    )
    connection.execute(update(jobs).where(jobs.c.id == row.job_id).values(progress=present))
