"""Heartbeats of nodes: liveness, shutdown notices, and proofs that processes have ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, ClassVar

from sqlalchemy import (
    BindParameter,
    Connection,
    Select,
    Table,
    bindparam,
    literal,
    select,
    update,
)

from server.cluster.nodes.drain import cordon_by_server
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
_OF_NODES: BindParameter[Sequence[str]] = bindparam("of_nodes", expanding=True)
_BEFORE = (
    _Before.select()
    .where(nodes.c.name.in_(_OF_NODES))
    .order_by(nodes.c.name)  # all code locks several nodes in this order
    .with_for_update(key_share=True)
)
_NOTE = update(nodes).where(nodes.c.name == bindparam("of_node"))


@cache
def _time_and_held(dialect: str) -> Select[datetime, str | None, str | None]:
    """Return the query for the database's time and the nodes' held shares; at least one row."""
    one = select(literal(1).label("one")).subquery()
    query = select(time_of(dialect), attempt_nodes.c.node, attempt_nodes.c.attempt_id)
    held = attempt_nodes.c.node.in_(_OF_NODES) & NODE_LEASES.are_held
    return query.select_from(one).outerjoin(attempt_nodes, held)


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
    """Store heartbeats in one transaction, with a constant number of SQL statements.

    Args:
        context: the server's context.
        heartbeats: heartbeats of different nodes; only `node_heartbeat` handles their `gone`.

    Returns:
        For each heartbeat the reply, or the error that `node_heartbeat` would raise.
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
    query = _time_and_held(connection.dialect.name)
    names = [each.node for each in heartbeats]
    rows = connection.execute(query, {"of_nodes": names}).all()
    held: defaultdict[str | None, list[str]] = defaultdict(list)
    for _, node, attempt_id in rows:
        if attempt_id is not None:
            held[node].append(attempt_id)
    # The time comes from the database, because each heartbeat may reach another server process with
    # another clock.
    time = rows[0][0].timestamp()
    return {
        each.node: NodeHeartbeatReply(
            expected=tuple(held[each.node]),
            time=time,
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
    if accepted:
        connection.execute(
            _NOTE, [_noted(context, row, heartbeat=each, now=now) for row, each in accepted]
        )
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
    """Return the columns that every heartbeat sets; some of them may keep their old value."""
    reading, limit = heartbeat.clock, context.settings.clock_skew_seconds
    wrong = clock_is_wrong(reading, before=before.clock_is_wrong, limit=limit)
    withheld = withheld_slots(
        before.hardware,
        heartbeat.sample,
        before=reasons_by_uuid(before.hardware, before.withheld),
        was_full=DATA_DIR_FULL in before.withheld.values(),
        clock_is_wrong=wrong,
    )
    given_end = heartbeat.ends_at
    return {
        "of_node": heartbeat.node,
        "heartbeat_at": now,
        "offline_since": None,
        "notice": heartbeat.notice,
        "sample": heartbeat.sample,
        "clock_skew_seconds": (
            before.clock_skew_seconds if reading is None else reading.skew_seconds
        ),
        "clock_is_wrong": wrong,
        "withheld": withheld,
        "ends_at": before.ends_at if given_end is None else _end(given_end),
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
    """Return the end of an allocation; None (no end) if it lies beyond `datetime.max`."""
    latest = datetime.max.replace(tzinfo=UTC).timestamp() - 86_400
    return None if seconds > latest else datetime.fromtimestamp(seconds, UTC)


def _end_gone(context: Context, attempt_id: str, *, node: str, worker: WorkerIdentity) -> None:
    """End a share if its worker proves that its processes have ended, else change nothing.

    The reason of the failure is `launch_error` if the machine has not rebooted since the claim,
    else `node_lost`.
    """
    with context.database.write() as connection:
        share = locked_share(connection, attempt_id, node)
        if share is None or share.state not in NODE_LEASES.held:
            return
        if not proves_gone(
            share.worker,
            worker,
            reported=share.last_report_at is not None,
            lease_expired=share.unreachable_since is not None,
        ):
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
