"""Heartbeats of nodes: liveness, shutdown notices, and proofs that processes have ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, ClassVar

from sqlalchemy import Connection, Select, Table, bindparam, literal, select, update

from server.cluster.nodes.changes import cordon_by_server
from server.cluster.nodes.health import clock_is_wrong, device_faults
from server.cluster.nodes.series import store_samples
from server.cluster.nodes.slots import reasons_by_uuid, withheld_slots
from server.cluster.nodes.workers import proves_gone, refuse_other_worker
from server.core.context import Context
from server.core.database.engine import time_of
from server.core.database.rows import TypedRow
from server.core.database.tables import attempt_nodes, nodes
from server.core.errors import ConflictError, NotFoundError, RefusalError
from server.core.events.store import NewEvent, append_events
from server.core.leases import NODE_LEASES
from server.core.people.unix_accounts import read_needed_accounts
from server.core.subject import Actor, Subject
from server.jobs.attempts.finish import end_nodes
from server.jobs.attempts.launch import locked_share
from server.jobs.attempts.retry_policy import NodeEnd
from trainyard.protocol.node_samples import DATA_DIR_FULL
from trainyard.protocol.rest.nodes import NodeDrained, NodeOnline
from trainyard.protocol.states import AttemptOutcome
from trainyard.protocol.worker_messages import (
    Hardware,
    NodeHeartbeat,
    NodeHeartbeatReply,
    WorkerIdentity,
)
from trainyard.run.failures import Failure, FailureReason


@dataclass(frozen=True, slots=True)
class _Before(TypedRow):
    """Columns of a node before its heartbeat is stored."""

    table: ClassVar[Table] = nodes
    name: str
    offline_since: datetime | None
    notice: str | None
    hardware: Hardware
    withheld: dict[str, str]
    clock_skew_seconds: float | None
    clock_is_wrong: bool
    trusted_since: datetime | None
    ends_at: datetime | None
    worker: WorkerIdentity | None


# Statements are built once, as in `server.jobs.attempts.reports`.
_BEFORE = (
    _Before.select()
    .where(nodes.c.name.in_(bindparam("of_nodes", expanding=True)))
    .order_by(nodes.c.name)  # all code locks several nodes in this order
    .with_for_update(key_share=True)
)
_NOTE = update(nodes).where(nodes.c.name == bindparam("of_node"))


@cache
def _time_and_held(dialect: str) -> Select[datetime, str | None, str | None]:
    """Return the query for the held shares of nodes, and for the database's time in each row.

    Without held shares, the query returns one row with only the time.
    """
    one = select(literal(1).label("one")).subquery()
    query = select(time_of(dialect), attempt_nodes.c.node, attempt_nodes.c.attempt_id)
    of_nodes = attempt_nodes.c.node.in_(bindparam("of_nodes", expanding=True))
    return query.select_from(one).outerjoin(attempt_nodes, of_nodes & NODE_LEASES.are_held)


def node_heartbeat(context: Context, heartbeat: NodeHeartbeat) -> NodeHeartbeatReply:
    """Store the heartbeat of a node, and end shares if their processes are proved to have ended.

    Raises:
        NotFoundError: the node never registered.
        ConflictError: another worker serves the node.
    """
    (reply,) = node_heartbeats(context, [heartbeat])
    if isinstance(reply, RefusalError):
        raise reply
    if not heartbeat.gone:
        return reply
    for attempt_id in heartbeat.gone:
        _end_gone(context, attempt_id, node=heartbeat.node, worker=heartbeat.worker)
    with context.database.read() as connection:
        return _replies(connection, [heartbeat])[heartbeat.node]


def node_heartbeats(
    context: Context, heartbeats: Sequence[NodeHeartbeat]
) -> list[NodeHeartbeatReply | RefusalError]:
    """Store heartbeats of different nodes in one transaction, and return each reply or error.

    The number of SQL statements does not depend on the number of nodes, except nodes to cordon. The
    errors are the errors of `node_heartbeat`. Only `node_heartbeat` handles the field `gone`.
    """
    with context.database.write() as connection:
        refused = _note_nodes(context, connection, heartbeats)
        noted = [each for each in heartbeats if each.node not in refused]
        replies = _replies(connection, noted) if noted else {}
    return [refused.get(each.node) or replies[each.node] for each in heartbeats]


def _replies(
    connection: Connection, heartbeats: Sequence[NodeHeartbeat]
) -> dict[str, NodeHeartbeatReply]:
    """Return the replies to heartbeats, by node."""
    of = {"of_nodes": [each.node for each in heartbeats]}
    rows = connection.execute(_time_and_held(connection.dialect.name), of).all()
    held: defaultdict[str | None, list[str]] = defaultdict(list)
    for _, node, attempt_id in rows:
        if attempt_id is not None:
            held[node].append(attempt_id)
    # The time is that of the database, because the clocks of server processes differ.
    time = rows[0][0].timestamp()
    as_owner = {each.node for each in heartbeats if each.accounts is not None}
    accounts = read_needed_accounts(connection) if as_owner else ()
    return {
        each.node: NodeHeartbeatReply(
            expected=tuple(held[each.node]),
            time=time,
            accounts=accounts if each.node in as_owner else None,
        )
        for each in heartbeats
    }


def _note_nodes(
    context: Context, connection: Connection, heartbeats: Sequence[NodeHeartbeat]
) -> dict[str, RefusalError]:
    """Store heartbeats of different nodes, and return the errors of refused heartbeats, by node."""
    found = _Before.all(connection, _BEFORE, {"of_nodes": [each.node for each in heartbeats]})
    rows = {row.name: row for row in found}
    refusals = {each.node: _refusal(rows.get(each.node), each) for each in heartbeats}
    accepted = [(rows[each.node], each) for each in heartbeats if refusals[each.node] is None]
    now = context.now()
    noted = [_noted(context, row, heartbeat=each, now=now) for row, each in accepted]
    if noted:
        connection.execute(_NOTE, noted)
    samples = {each.node: each.sample for _, each in accepted if each.sample is not None}
    if samples:
        store_samples(connection, samples, now=now)
    for node, sample in samples.items():
        since = rows[node].trusted_since
        faults = device_faults(rows[node].hardware, sample, now=now, trusted_since=since)
        if faults:
            cordon_by_server(context, connection, name=node, reasons=faults)
    changes = [change for row, each in accepted for change in _changes(row, each)]
    if changes:
        append_events(context, connection, changes)
    return {node: refusal for node, refusal in refusals.items() if refusal is not None}


def _refusal(before: _Before | None, heartbeat: NodeHeartbeat) -> RefusalError | None:
    """Return the error that refuses a heartbeat; None if the heartbeat is accepted."""
    node = heartbeat.node
    if before is None:
        return NotFoundError(f"node {node!r} never registered")
    try:
        refuse_other_worker(node, heartbeat.worker, registered=before.worker)
    except ConflictError as error:
        return error
    return None


def _noted(
    context: Context, before: _Before, *, heartbeat: NodeHeartbeat, now: datetime
) -> dict[str, Any]:
    """Return the values of a node's columns that a heartbeat sets."""
    reading, limit = heartbeat.clock, context.settings.clock_skew_seconds
    wrong = clock_is_wrong(reading, before=before.clock_is_wrong, limit=limit)
    withheld = withheld_slots(
        before.hardware,
        heartbeat.sample,
        before=reasons_by_uuid(before.hardware, before.withheld),
        was_full=DATA_DIR_FULL in before.withheld.values(),
        clock_is_wrong=wrong,
    )
    skew = before.clock_skew_seconds if reading is None else reading.skew_seconds
    return {
        "of_node": heartbeat.node,
        "heartbeat_at": now,
        "offline_since": None,
        "notice": heartbeat.notice,
        "sample": heartbeat.sample,
        "clock_skew_seconds": skew,
        "clock_is_wrong": wrong,
        "withheld": withheld,
        "accounts": heartbeat.accounts,
        "ends_at": before.ends_at if heartbeat.ends_at is None else _end(heartbeat.ends_at),
    }


def _changes(before: _Before, heartbeat: NodeHeartbeat) -> Iterator[NewEvent]:
    """Yield an event for each change that a heartbeat makes."""
    node, notice = heartbeat.node, heartbeat.notice
    if before.notice != notice:
        yield NewEvent(
            NodeDrained(draining=notice is not None, notice=notice),
            Actor(node),
            Subject(node=node),
            f"{node} {f'is about to go: {notice}' if notice else 'stays after all'}",
        )
    if before.offline_since is not None:
        yield NewEvent(NodeOnline(), Actor(node), Subject(node=node), f"{node} is back")


def _end(seconds: float) -> datetime | None:
    """Return the end of an allocation; None (no end) if the end lies beyond `datetime.max`."""
    latest = datetime.max.replace(tzinfo=UTC).timestamp() - 86_400
    return None if seconds > latest else datetime.fromtimestamp(seconds, UTC)


def _end_gone(context: Context, attempt_id: str, *, node: str, worker: WorkerIdentity) -> None:
    """End a share if its worker proves that the share's processes have ended.

    The failure is `node_lost` if the machine has rebooted since the claim, otherwise
    `launch_error`.
    """
    with context.database.write() as connection:
        share = locked_share(connection, attempt_id, node)
        if share is None or share.state not in NODE_LEASES.held:
            return
        reported, expired = share.last_report_at is not None, share.unreachable_since is not None
        if not proves_gone(share.worker, worker, reported=reported, lease_expired=expired):
            return
        same_boot = share.worker is not None and share.worker.boot_id == worker.boot_id
        failure = Failure(
            reason=FailureReason.LAUNCH_ERROR if same_boot else FailureReason.NODE_LOST,
            message=f"the supervisor on {node} is gone without a last report",
            node=node,
            node_at_fault=True,
        )
        end = NodeEnd(node, AttemptOutcome.FAILED, failure)
        end_nodes(context, connection, attempt_id, [end], actor=Actor(node))
