"""Reports on a share of an attempt: authorization, lease, the move to `running`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar

from fastapi import Depends
from sqlalchemy import Connection, Integer, Table, bindparam, exists, func, select, update

from server.api.auth.dependencies import AttemptTokenHash
from server.api.http.dependencies import ServerContext
from server.api.http.path_params import AttemptId
from server.core.context import Context
from server.core.database.metric_and_log_tables import shells
from server.core.database.rows import TypedRow
from server.core.database.tables import attempt_nodes, attempts, jobs, requests
from server.core.errors import ConflictError, RefusalError, UnauthenticatedError
from server.core.events.notices import notify
from server.core.events.store import NewEvent, append_event
from server.core.leases import NODE_LEASES, check_fence
from server.core.lifecycle import attempt_to, job_to, move, node_to
from server.core.subject import TRAINER, Actor, Subject
from trainyard.protocol.rest.event_data import PhaseEntered, Reachable, Running
from trainyard.protocol.rest.jobs import Progress
from trainyard.protocol.states import AttemptNodeState, AttemptState, DesiredState, JobState
from trainyard.protocol.worker_messages import Identity
from trainyard.run.directory import Phase
from trainyard.run.records import Heartbeat
from trainyard.spec.layout import Layout

OUTPUT_TAKEN = timedelta(minutes=10)
"""Time after an attempt's end during which its token may still report output of its ranks."""
WRONG_TOKEN = "the token is not of this attempt on this node"
"""Reason for the refusal of a report with a token of another share."""
MAX_ACCEPTED = 2048
"""Maximum number of cached shares in a server process, each of a few kilobytes."""

_lower = attempt_nodes.alias("lower_shares")
# This counts commas in the JSON text, because the databases have different JSON functions.
_COMMAS = func.length(_lower.c.slots, type_=Integer) - func.length(
    func.replace(_lower.c.slots, ",", ""), type_=Integer
)
_FIRST_RANK = (
    select(func.coalesce(func.sum(_COMMAS + 1), 0))
    .where(
        _lower.c.attempt_id == attempt_nodes.c.attempt_id,
        _lower.c.node_rank < attempt_nodes.c.node_rank,
    )
    .correlate(attempt_nodes)
    .scalar_subquery()
)
_HAS_SHELLS = (
    exists()
    .where(
        shells.c.attempt_id == attempt_nodes.c.attempt_id,
        shells.c.node == attempt_nodes.c.node,
        shells.c.started_at.is_(None),
    )
    .correlate(attempt_nodes)
)
_HAS_REQUESTS = (
    exists()
    .where(requests.c.attempt_id == attempt_nodes.c.attempt_id, requests.c.answer.is_(None))
    .correlate(attempt_nodes)
)


@dataclass(frozen=True, slots=True)
class ReportedShare(TypedRow):
    """A share with the columns that are needed to store a report on the share."""

    table: ClassVar[Table] = attempt_nodes
    attempt_id: str
    job_id: Annotated[str, attempts.c.job_id]
    job_name: Annotated[str, jobs.c.name]
    number: Annotated[int, attempts.c.number]
    """Number of the attempt."""
    node: str
    token_hash: str | None
    node_rank: int
    slots: list[int]
    first_rank: Annotated[int, _FIRST_RANK]
    """Lowest global rank of the share; lower ranks belong to shares with lower node ranks."""
    node_state: Annotated[AttemptNodeState, attempt_nodes.c.state]
    attempt_state: Annotated[AttemptState, attempts.c.state]
    desired: Annotated[DesiredState, attempts.c.desired]
    layout: Annotated[Layout, attempts.c.layout]
    progress: Annotated[Progress, jobs.c.progress]
    """Progress of the job. This is also the attempt's progress, because an attempt with a live
    share is the newest of its job."""
    start_step: Annotated[int, attempts.c.start_step]
    last_step: Annotated[int, attempts.c.last_step]
    parent_checkpoint_id: Annotated[str | None, attempts.c.parent_checkpoint_id]
    attempt_ended_at: Annotated[datetime | None, attempts.c.ended_at]
    identity: Identity | None
    acknowledged: dict[str, int]
    """Numbers of stored bytes, by file of the spool."""
    unreachable_since: datetime | None
    lost_at: datetime | None
    has_shells: Annotated[bool, _HAS_SHELLS]
    """Whether the supervisor has to start a person's command."""
    has_requests: Annotated[bool, _HAS_REQUESTS]
    """Whether a request waits for the trainer of the attempt."""

    @property
    def key(self) -> ShareKey:
        """Attempt id and token hash, the key to read the share again."""
        return self.attempt_id, self.token_hash

    @property
    def subject(self) -> Subject:
        """The subject of the attempt's events."""
        return Subject(self.job_id, attempt=self.number)

    @property
    def ranks(self) -> range:
        """Global ranks on the node."""
        return range(self.first_rank, self.first_rank + len(self.slots))

    def starts_training(self, heartbeat: Heartbeat | None) -> bool:
        """Return whether a heartbeat shows the end of the attempt's start-up."""
        if heartbeat is None or self.attempt_state != AttemptState.STARTING:
            return False
        return heartbeat.phase == Phase.TRAINING or heartbeat.step > self.start_step


ShareKey = tuple[str, str | None]
"""Id of an attempt, and the hash of the token for a share of this attempt."""

# Statements are built once, because building a statement takes longer than running it.
_REPORTED_SHARES = (
    ReportedShare.select()
    .join(attempts, attempts.c.id == attempt_nodes.c.attempt_id)
    .join(jobs, jobs.c.id == attempts.c.job_id)
    .where(
        attempt_nodes.c.attempt_id.in_(bindparam("attempt_ids", expanding=True)),
        attempt_nodes.c.token_hash.in_(bindparam("token_hashes", expanding=True)),
    )
)


def authenticate_share(
    context: ServerContext, attempt_id: AttemptId, token_hash: AttemptTokenHash
) -> ReportedShare:
    """Return the share that a token belongs to, before the body of the report is read.

    Raises:
        UnauthenticatedError: the token belongs to no share of this attempt.
        ConflictError: the attempt ended more than `OUTPUT_TAKEN` ago, so its tokens are no longer
            valid. The token of a lost share stays valid until the share has ended, because its exit
            is the proof that frees its slots.
    """
    (found,) = authenticate_shares(context, [(attempt_id, token_hash)])
    if isinstance(found, RefusalError):
        raise found
    return found


AuthenticatedShare = Annotated[ReportedShare, Depends(authenticate_share)]
"""The share that belongs to the request's token; the URL path of the endpoint must contain
`attempt_id`."""


def authenticate_shares(
    context: Context, keys: Sequence[ShareKey]
) -> list[ReportedShare | RefusalError]:
    """Return for each key the share, or the error that `authenticate_share` would raise."""
    with context.database.read() as connection:
        shares = read_reported_shares(connection, keys)
    return [accepted_or_refused(context, shares.get(key)) for key in keys]


def accepted_or_refused(
    context: Context, share: ReportedShare | None
) -> ReportedShare | RefusalError:
    """Return the share if its token is still valid, else the error."""
    if share is None:
        return UnauthenticatedError(WRONG_TOKEN)
    ended_at = share.attempt_ended_at if share.node_state == AttemptNodeState.ENDED else None
    if ended_at is not None and context.now() - ended_at >= OUTPUT_TAKEN:
        return ConflictError("the attempt has ended, and its token is revoked")
    return share


def read_reported_shares(
    connection: Connection, keys: Sequence[ShareKey]
) -> dict[ShareKey, ReportedShare]:
    """Return shares by key, including ended shares; unknown keys are omitted."""
    attempt_ids, token_hashes = zip(*keys, strict=True)
    of = {"attempt_ids": attempt_ids, "token_hashes": token_hashes}
    shares = ReportedShare.all(connection, _REPORTED_SHARES, of)
    return {(share.attempt_id, share.token_hash): share for share in shares}


class AcceptedShares:
    """A cache of shares; each has the state after the last report that this process stored.

    If a report's share is cached, the body of the report is read before the token is checked. The
    transaction that stores the report then checks the token. All methods run in the event loop.
    """

    def __init__(self) -> None:
        self._shares: dict[ShareKey, ReportedShare] = {}

    def take(self, key: ShareKey) -> ReportedShare | None:
        """Remove and return a share; `keep` adds the share again once its report is stored."""
        return self._shares.pop(key, None)

    def keep(self, share: ReportedShare, acknowledged: Mapping[str, int]) -> None:
        """Cache a share after a report; `acknowledged` has the numbers of stored bytes by file."""
        if len(self._shares) >= MAX_ACCEPTED:
            del self._shares[next(iter(self._shares))]  # the share with the oldest report
        # The database has no offset for a file without stored bytes.
        stored = share.acknowledged | {file: end for file, end in acknowledged.items() if end}
        self._shares[share.key] = replace(share, acknowledged=stored)


def check_identity(row: ReportedShare, identity: Identity) -> None:
    """Refuse a report unless the sender is the first process that reported on this share.

    Raises:
        ConflictError: another process reported first.
    """
    refusal = f"another supervisor owns attempt {row.number} on {row.node}"
    check_fence(row.identity or identity, identity, refusal=refusal)


@dataclass(frozen=True)
class HeardShare:
    """A report that renews the lease of a share."""

    share: ReportedShare
    heartbeat: Heartbeat | None
    """Last heartbeat of the trainer."""
    identity: Identity
    """Identity of the reporting process."""
    acknowledged: Mapping[str, int]
    """Numbers of stored bytes, by file of the spool, including the bytes of this report."""


def record_heartbeats(
    context: Context, connection: Connection, heard: Sequence[HeardShare]
) -> None:
    """Renew the leases of shares, and move attempts to `running` when their trainers start.

    The caller holds the locks of the jobs, and has checked the identities (`check_identity`).
    """
    renewed = [
        {"of_attempt": each.share.attempt_id, "on_node": each.share.node} | _lease(context, each)
        for each in heard
        if each.share.node_state != AttemptNodeState.CLAIMED
    ]
    if renewed:
        connection.execute(_RENEW_LEASE, renewed)
    for each in heard:
        _note_changes(context, connection, each)


_RENEW_LEASE = update(attempt_nodes).where(
    attempt_nodes.c.attempt_id == bindparam("of_attempt"),
    attempt_nodes.c.node == bindparam("on_node"),
)


def _lease(context: Context, heard: HeardShare) -> dict[str, Any]:
    return NODE_LEASES.renewal(context.now()) | {
        "identity": heard.identity,
        "unreachable_since": None,
        "acknowledged": heard.acknowledged,
    }


def _note_changes(context: Context, connection: Connection, heard: HeardShare) -> None:
    """Carry out the state changes that a report causes, and append their events."""
    share = heard.share
    if share.node_state == AttemptNodeState.CLAIMED:
        to, lease = AttemptNodeState.RUNNING, _lease(context, heard)
        move(context, connection, None, node_to(share.attempt_id, share.node, to, **lease))
        if share.lost_at is None:
            phase = PhaseEntered(phase=Phase.STARTING)
            notify(context, connection, subject=share.subject.on(share.node), data=phase)
    elif share.unreachable_since is not None:
        words = f"{share.node} reports again"
        event = NewEvent(Reachable(), Actor(share.node), share.subject.on(share.node), words)
        append_event(context, connection, event)
    if share.starts_training(heard.heartbeat):
        # A program need not count steps, and then its spec has no number of steps.
        counts = share.start_step or share.progress.last_legal_step is not None
        words = f"trains from step {share.start_step}" if counts else "runs"
        event = NewEvent(Running(), TRAINER, share.subject, f"{share.job_name} {words}")
        started = attempt_to(share.attempt_id, AttemptState.RUNNING, started_at=context.now())
        running = job_to(share.job_id, JobState.RUNNING, reason=None)
        move(context, connection, event, started, running)
