"""Heartbeats of nodes: liveness, shutdown notices, and proofs that processes are gone."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, bindparam, literal, select, update

from server.attempts.finish import end_nodes
from server.attempts.launch import read_launch
from server.attempts.retry_policy import NodeEnd
from server.context import Context
from server.database.engine import time_of
from server.database.tables import attempt_nodes, nodes
from server.errors import NotFoundError
from server.events.store import NewEvent, append_event
from server.leases import NODE_LEASES
from server.lifecycle import lock_job_of
from server.nodes.drain import cordon_by_server
from server.nodes.health import clock_is_wrong, device_faults
from server.nodes.series import MINUTE_DATA, minute_of, store_sample
from server.nodes.slots import reasons_by_uuid, withheld_slots
from server.nodes.workers import proves_gone, refuse_other_worker
from server.subject import Actor, Subject
from trainyard.protocol.node_samples import DATA_DIR_FULL
from trainyard.protocol.rest.nodes import NodeDrained, NodeOnline
from trainyard.protocol.states import AttemptOutcome
from trainyard.protocol.worker_messages import (
    PROTOCOL,
    NodeHeartbeat,
    NodeHeartbeatReply,
    WorkerIdentity,
)
from trainyard.run.failures import Failure, FailureReason

# Statements of each heartbeat are built once, as those of each report in `server.attempts.service`.
_BEFORE = (
    select(
        nodes.c.offline_since,
        nodes.c.notice,
        nodes.c.hardware,
        nodes.c.withheld,
        nodes.c.clock_is_wrong,
        nodes.c.trusted_since,
        nodes.c.worker,
    )
    .where(nodes.c.name == bindparam("of_node"))
    .with_for_update(key_share=True)
)
_NOTE = update(nodes).where(nodes.c.name == bindparam("of_node"))
_NOTE_AND_READ = _NOTE.returning(MINUTE_DATA)
_HELD_BY_NODE = (attempt_nodes.c.node == bindparam("of_node")) & NODE_LEASES.are_held


@cache
def _time_and_held(dialect: str) -> Select[datetime, str | None]:
    """Return the query of the database's time and of what a node holds: a row at least."""
    one = select(literal(1).label("one")).subquery()
    query = select(time_of(dialect), attempt_nodes.c.attempt_id)
    return query.select_from(one).outerjoin(attempt_nodes, _HELD_BY_NODE)


def node_heartbeat(context: Context, heartbeat: NodeHeartbeat) -> NodeHeartbeatReply:
    """Store the heartbeat of a node; end its shares whose processes are proved gone.

    Raises:
        NotFoundError: the node never registered.
        ConflictError: another worker serves the node.
    """
    with context.database.write() as connection:
        _note_node(context, connection, heartbeat)
    for attempt_id in heartbeat.gone:
        _end_gone(context, attempt_id, heartbeat.node, heartbeat.worker)
    with context.database.read() as connection:
        query = _time_and_held(connection.dialect.name)
        rows = connection.execute(query, {"of_node": heartbeat.node}).all()
    # Not the clock of this process: a node would be compared with another one at each heartbeat.
    # A node of an older protocol compares none.
    time = rows[0][0].timestamp() if heartbeat.protocol == PROTOCOL else None
    held = (attempt_id for _, attempt_id in rows)
    return NodeHeartbeatReply(expected=tuple(each for each in held if each), time=time)


def _note_node(context: Context, connection: Connection, heartbeat: NodeHeartbeat) -> None:
    node, notice = heartbeat.node, heartbeat.notice
    before = connection.execute(_BEFORE, {"of_node": node}).one_or_none()
    if before is None:
        raise NotFoundError(f"node {node!r} never registered")
    refuse_other_worker(node, heartbeat.worker, registered=before.worker)
    now, sample = context.now(), heartbeat.sample
    reasons = reasons_by_uuid(before.hardware, before.withheld)
    reading, limit = heartbeat.clock, context.settings.clock_skew_seconds
    wrong = clock_is_wrong(reading, before=before.clock_is_wrong, limit=limit)
    skew = {} if reading is None else {"clock_skew_seconds": reading.skew_seconds}
    withheld = withheld_slots(
        before.hardware,
        sample,
        before=reasons,
        was_full=DATA_DIR_FULL in before.withheld.values(),
        clock_is_wrong=wrong,
    )
    noted: dict[str, Any] = {
        "heartbeat_at": now,
        "offline_since": None,
        "notice": notice,
        "sample": sample,
        "clock_is_wrong": wrong,
        "withheld": withheld,
    }
    if heartbeat.ends_at is not None:
        noted["ends_at"] = _end(heartbeat.ends_at)
    noted |= {"of_node": node} | skew
    if sample is None:
        connection.execute(_NOTE, noted)
    else:
        minute = minute_of(node, now)
        data = connection.execute(_NOTE_AND_READ, noted | minute).scalar_one()
        store_sample(connection, minute, sample, before=data)
        since = before.trusted_since
        faults = device_faults(before.hardware, sample, now=now, trusted_since=since)
        if faults:
            cordon_by_server(context, connection, node, faults)
    if before.notice != notice:
        event = NewEvent(
            NodeDrained(draining=notice is not None, notice=notice),
            Actor(node),
            Subject(node=node),
            f"{node} {f'is about to go: {notice}' if notice else 'stays after all'}",
        )
        append_event(context, connection, event)
    if before.offline_since is not None:
        event = NewEvent(NodeOnline(), Actor(node), Subject(node=node), f"{node} is back")
        append_event(context, connection, event)


def _end(seconds: float) -> datetime | None:
    """Return the end of an allocation; None for a time beyond all calendars, which is no end."""
    latest = datetime.max.replace(tzinfo=UTC).timestamp() - 86_400
    return None if seconds > latest else datetime.fromtimestamp(seconds, UTC)


def _end_gone(context: Context, attempt_id: str, node: str, worker: WorkerIdentity) -> None:
    """End a share whose processes its worker proves gone; without a proof nothing changes.

    The reason is `launch_error` where the machine has the boot of the claim, and `node_lost` after
    another boot.
    """
    with context.database.write() as connection:
        try:
            lock_job_of(connection, attempt_id)
        except NotFoundError:
            return
        share = next((n for n in read_launch(connection, attempt_id).nodes if n.node == node), None)
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
