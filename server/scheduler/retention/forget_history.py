"""Deletes old rows that belong to no job: events, slot-time, node requests and tokens."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import exists, func, or_, select

from server.core.context import Context
from server.core.database.slot_tables import capacity_changes, holdings
from server.core.database.source_tables import node_requests
from server.core.database.tables import events, jobs, nodes, tokens
from server.core.people.user_tables import invitations, sessions
from server.scheduler.retention.forget_jobs import ROWS_AT_ONCE, delete_some
from trainyard.protocol.states import NodeRequestState

MAX_CONSIDERED = 5000
"""Maximum number of events that a round checks."""
TOKENS_KEPT = timedelta(days=30)
"""Time from the end of a token to the deletion of its row."""


class EventPruner:
    """Checks all events in turn, and deletes old events without a job."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._last = 0

    def prune(self) -> int:
        """Check the next events; return the number of deleted events."""
        days = self._context.settings.events_kept_days
        if not days:
            return 0
        limit = self._context.now() - timedelta(days=days)
        turn = select(events.c.id).where(events.c.id > self._last, events.c.at < limit)
        these = turn.order_by(events.c.id).limit(MAX_CONSIDERED).subquery()
        of_none = or_(events.c.job_id.is_(None), ~exists().where(jobs.c.id == events.c.job_id))
        with self._context.database.read() as connection:
            last = connection.scalar(select(func.max(these.c.id)))
        if last is None:
            self._last = 0  # the next round starts over
            return 0
        part = (events.c.id > self._last) & (events.c.id <= last) & (events.c.at < limit)
        with self._context.database.write() as connection:
            deleted = delete_some(connection, events, part & of_none, most=ROWS_AT_ONCE)
        if deleted < ROWS_AT_ONCE:
            self._last = last
        return deleted


def forget_slot_time(context: Context) -> int:
    """Delete old slot-time and capacity changes, at most `ROWS_AT_ONCE` of each; return the count.

    Slot-time is deleted only if it is settled, or if its job has been deleted. A capacity change is
    deleted only if a later change to the same node is old too, or if the node has been deleted.
    """
    days = context.settings.goodput_kept_days
    if not days:
        return 0
    limit = context.now() - timedelta(days=days)
    later, change = capacity_changes.alias("later"), capacity_changes.c
    followed = exists().where(
        later.c.node == change.node, later.c.since > change.since, later.c.since < limit
    )
    gone = ~exists().where(nodes.c.name == change.node)
    deleted = ~exists().where(jobs.c.id == holdings.c.job_id)
    settled = (holdings.c.until < limit) & or_(holdings.c.spent.is_not(None), deleted)
    former = (change.since < limit) & or_(followed, gone)
    with context.database.write() as connection:
        count = delete_some(connection, holdings, settled, most=ROWS_AT_ONCE)
        return count + delete_some(connection, capacity_changes, former, most=ROWS_AT_ONCE)


def forget_requests(context: Context) -> int:
    """Delete at most `ROWS_AT_ONCE` old ended node requests without nodes; return their number."""
    days = context.settings.requests_kept_days
    if not days:
        return 0
    request, limit = node_requests.c, context.now() - timedelta(days=days)
    ended = (request.state == NodeRequestState.ENDED) & (request.ended_at < limit)
    named = exists().where(nodes.c.request_id == request.id)
    with context.database.write() as connection:
        return delete_some(connection, node_requests, ended & ~named, most=ROWS_AT_ONCE)


def forget_access(context: Context) -> int:
    """Delete expired sessions, and tokens and invitations `TOKENS_KEPT` after their end.

    Return the number of rows.

    At most `ROWS_AT_ONCE` rows of each kind are deleted.
    """
    now = context.now()
    limit = now - TOKENS_KEPT
    over = or_(tokens.c.revoked_at < limit, tokens.c.expires_at < limit)
    unusable = or_(invitations.c.ended_at < limit, invitations.c.expires_at < limit)
    kinds = ((sessions, sessions.c.expires_at <= now), (invitations, unusable), (tokens, over))
    with context.database.write() as connection:
        return sum(delete_some(connection, *each, most=ROWS_AT_ONCE) for each in kinds)
