"""The scheduler's part of supply: node requests, withdrawals, and calls to provisioners."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Annotated, ClassVar

from sqlalchemy import Connection, Table, bindparam, select, update

from server.cluster.nodes.capacity import Capacity, read_capacity
from server.cluster.projects.quotas import read_user_quotas
from server.cluster.supply.changes import NewRequest, source_changed, store_requests, withdraw
from server.cluster.supply.rows import (
    IS_OPEN,
    NodeRequest,
    StoredSource,
    lock_source,
    open_requests,
)
from server.cluster.supply.usage import HOUR, Use, read_use, read_waits
from server.core.context import Context
from server.core.database.rows import TypedRow
from server.core.database.source_tables import node_requests, sources
from server.core.database.tables import nodes
from server.core.isolation import Isolation
from server.core.subject import SCHEDULER
from server.core.visibility.job_labels import label
from server.jobs.queue.order import read_shares
from server.jobs.queue.scheduling_queue import GroupedJob, SchedulingQueue, group_sizes
from server.scheduler.autoscaling.count_coming import count_coming
from server.scheduler.autoscaling.leave_before_end import takes_nothing_new
from server.scheduler.autoscaling.supply_plan import (
    MAX_DEMANDS,
    NodeAsk,
    OpenNodeRequest,
    Supplier,
    SupplyPlan,
    UnmetJob,
    plan,
)
from trainyard.base.backoff import Backoff
from trainyard.protocol.node_sources.messages import SourceMessage
from trainyard.protocol.rest.nodes import Drain
from trainyard.protocol.states import NodeRequestState

LIST_EVERY = timedelta(seconds=60)
ASK_EVERY = timedelta(seconds=10)
"""Pause between two urgent calls, which are cancels and calls with an awaited result."""
AWAY_EVERY = timedelta(minutes=5)
"""Pause between two calls to a silent provisioner; the pause is long because the calls collect in
the provisioner's queue until the provisioner returns.
"""
RESEND = Backoff(first=5.0, longest=300.0)
"""Pauses, in seconds, between repeated submissions of a request."""
FREED_WITHIN = timedelta(minutes=2)
"""A job requests no nodes if it fits on slots that attempts should free within this time."""
SHOW_STORAGE = 200
"""Number of newest nodes whose storage roots count as in use."""

Send = Callable[[SourceMessage], None]


@dataclass(frozen=True, slots=True)
class _Node(TypedRow):
    """A node of a source."""

    table: ClassVar[Table] = nodes
    name: str
    request_id: str | None
    roots: dict[str, str]
    drain: Drain | None
    is_online: Annotated[bool, nodes.c.offline_since.is_(None).label("is_online")]


@dataclass(frozen=True)
class _Snapshot:
    """The rows from one read of the database."""

    sources: Mapping[str, StoredSource]
    requests: Sequence[NodeRequest]
    nodes: Mapping[str, Sequence[_Node]]
    """Nodes of each request, by request id."""
    coming: Mapping[str, int]
    """Number of nodes that are expected to join or return, by request id."""
    uses: Mapping[str, Use]
    waits: Mapping[str, float]
    capacity: Capacity
    waiting: Sequence[UnmetJob]
    roots: Mapping[str, str]

    @cached_property
    def held(self) -> frozenset[str]:
        """Names of the nodes on which an attempt holds slots."""
        return frozenset(node for holding in self.capacity.holdings for node in holding.shares)


class SupplyKeeper:
    """Plans supply once a second, and sends calls to provisioners."""

    def __init__(
        self,
        context: Context,
        queue: SchedulingQueue,
        *,
        over_quota: Callable[[], Collection[str]],
        send: Send,
    ) -> None:
        self._context = context
        self._queue = queue
        self._over_quota = over_quota
        self._send = send
        self._isolation = Isolation(context.clock.monotonic)
        # Only this leader knows these times, so a takeover delays the end of requests a little.
        self._unneeded_since: dict[str, datetime] = {}
        self._idle_since: dict[str, datetime] = {}
        self._sent_at: dict[SourceMessage, float] = {}  # monotonic

    def run(self) -> int:
        """Run one round; return the number of requests that the round made or gave up."""
        now = self._context.now()
        with self._context.database.read() as connection:
            known = {s.name: s for s in StoredSource.all(connection, StoredSource.select())}
            state = self._read(connection, known, now) if known else None
        if state is None:
            return 0
        planned = self._plan(state, now)
        changes = self._carry_out(state, planned)
        self._note_away(state, now)
        self._call(known, now)
        return changes

    def _read(
        self, connection: Connection, known: Mapping[str, StoredSource], now: datetime
    ) -> _Snapshot:
        open_now = NodeRequest.select().where(IS_OPEN).order_by(node_requests.c.id)
        requests = NodeRequest.all(connection, open_now)
        ids = [each.id for each in requests]
        found: dict[str, list[_Node]] = {}
        for node in _Node.all(connection, _Node.select().where(nodes.c.request_id.in_(ids))):
            found.setdefault(node.request_id or "", []).append(node)
        waiting: list[UnmetJob] = []
        if group_sizes(connection):
            shares = read_shares(connection, read_user_quotas(connection))
            rows, _ = self._queue.first(shares, limit=MAX_DEMANDS, of_group=1)
            over_quota = set(self._over_quota())
            waiting = [_as_waiting(row) for row in rows[:MAX_DEMANDS] if row.id not in over_quota]
        return _Snapshot(
            known,
            requests,
            found,
            count_coming(connection, requests, now),
            read_use(connection, known.keys(), now),
            read_waits(connection, requests, now),
            read_capacity(connection, now),
            waiting,
            roots_in_use(connection) if waiting else {},
        )

    def _plan(self, state: _Snapshot, now: datetime) -> SupplyPlan:
        open_now = [
            self._as_open(each, state, now)
            for each in state.requests
            if each.state != NodeRequestState.LEAVING and each.purpose == "nodes"
        ]
        planned = plan(
            state.waiting,
            state.capacity.offers,
            freed=_freed(state.capacity, now),
            requests=open_now,
            suppliers=[
                _supplier(source, state)
                for source in state.sources.values()
                if _may_be_asked(source, now)
            ],
        )
        ids = {each.id for each in open_now}
        # The time without need counts only while a request is pending, also after a requeue.
        waiting = {each.id for each in open_now if not each.runs}
        self._unneeded_since = {
            request_id: self._unneeded_since.get(request_id, now)
            for request_id in waiting - planned.needed
        }
        self._idle_since = {k: v for k, v in self._idle_since.items() if k in ids}
        return planned

    def _as_open(self, request: NodeRequest, state: _Snapshot, now: datetime) -> OpenNodeRequest:
        known = state.nodes.get(request.id, ())
        joined = [node for node in known if node.is_online]
        # A silent node may still train.
        is_idle = not any(node.name in state.held for node in known)
        idle_seconds = None
        # A completing request may be requeued, and a cancel would prevent that.
        runs = request.state == NodeRequestState.RUNNING and request.engine_state != "completing"
        if is_idle and runs:
            idle_since = self._idle_since.setdefault(request.id, now)
            idle_seconds = (now - idle_since).total_seconds()
        else:
            self._idle_since.pop(request.id, None)
        # Placement uses the request's nodes no more, so an idle request is not kept.
        is_over = bool(joined) and all(takes_nothing_new(node.drain) for node in joined)
        unneeded = now - self._unneeded_since.get(request.id, now)
        return OpenNodeRequest(
            id=request.id,
            source=request.source,
            shape=request.shape,
            coming=state.coming.get(request.id, 0),
            joined=tuple(node.name for node in joined),
            runs=request.state == NodeRequestState.RUNNING,
            by_person=request.by_person,
            unneeded_seconds=unneeded.total_seconds(),
            idle_seconds=idle_seconds,
            idle_limit_seconds=0.0 if is_over else state.sources[request.source].idle_seconds,
            roots=state.roots,
        )

    def _carry_out(self, state: _Snapshot, planned: SupplyPlan) -> int:
        over = {*planned.give_up, *_emptied(state)}
        given_up = [each for each in state.requests if each.id in over]
        names = {each.source for each in planned.ask} | {each.source for each in given_up}
        for name in sorted(names.difference(self._isolation.left_out())):
            with self._isolation.turn(name, f"source {name}"):
                self._change(name, planned.ask, given_up)
        return len(planned.ask) + len(given_up)

    def _change(self, name: str, ask: Iterable[NodeAsk], given_up: Iterable[NodeRequest]) -> None:
        """Store new requests; withdraw given-up requests unless they have changed meanwhile."""
        context = self._context
        asked = [
            NewRequest(each.nodes, caused_by=each.for_job) for each in ask if each.source == name
        ]
        with context.database.write() as connection:
            source = lock_source(connection, name)
            fresh = {each.id: each for each in open_requests(connection, name)}
            unchanged = [r for r in given_up if r.id in fresh and fresh[r.id].state == r.state]
            waiting = (NodeRequestState.WANTED, NodeRequestState.PENDING)
            for waits, reason in ((False, "idle"), (True, "no queued job needs it")):
                some = [fresh[r.id] for r in unchanged if (r.state in waiting) == waits]
                withdraw(context, connection, requests=some, reason=reason, actor=SCHEDULER)
            if source.paused_at is None:
                store_requests(context, connection, source, asked, actor=SCHEDULER)

    def _note_away(self, state: _Snapshot, now: datetime) -> None:
        context = self._context
        left_out = self._isolation.left_out()
        for name, source in state.sources.items():
            if source.is_away or source.is_online(now) or name in left_out:
                continue
            turn = self._isolation.turn(name, f"source {name}")
            with turn, context.database.write() as connection:
                if lock_source(connection, name).is_online(now):
                    continue
                away = update(sources).where(sources.c.name == name)
                connection.execute(away.values(is_away=True))
                message = f"the provisioner of {name} is silent"
                source_changed(context, connection, name=name, message=message)

    def _call(self, known: Mapping[str, StoredSource], now: datetime) -> None:
        """Send due calls: listings, submissions, cancels, and calls with an awaited result."""
        with self._context.database.read() as connection:
            requests = NodeRequest.all(connection, NodeRequest.select().where(IS_OPEN))
        due = [SourceMessage(source=name, call="list") for name in known]
        submits = [each for each in requests if _submits_now(each, now)]
        for each in requests:
            call = each.ask if each.cancel_at is None else "cancel"
            if call is None and each.engine_state == "completing":
                call = "status"  # Slurm may forget an ended job within seconds
            if call is not None:
                due.append(_message(each, call))
        messages = [m for m in due if self._is_due(m, known.get(m.source), now)]
        self._sent_at = {m: self._sent_at[m] for m in due if m in self._sent_at}
        self._sent_at |= dict.fromkeys(messages, self._context.clock.monotonic())
        if submits:
            with self._context.database.write() as connection:
                sent = update(node_requests).where(node_requests.c.id == bindparam("submitted"))
                connection.execute(
                    sent.values(sent_at=now, sends=node_requests.c.sends + 1),
                    [{"submitted": each.id} for each in submits],
                )
        for message in (*messages, *(_message(each, "submit") for each in submits)):
            self._send(message)

    def _is_due(self, message: SourceMessage, source: StoredSource | None, now: datetime) -> bool:
        pause = LIST_EVERY if message.call == "list" else ASK_EVERY
        if source is not None and not source.is_online(now):
            pause = AWAY_EVERY
        last = self._sent_at.get(message, -math.inf)
        return self._context.clock.monotonic() - last >= pause.total_seconds()


def roots_in_use(connection: Connection) -> Mapping[str, str]:
    """Return the UUID of each storage root, from the newest node that has the root."""
    newest = select(nodes.c.roots).order_by(nodes.c.registered_at.desc()).limit(SHOW_STORAGE)
    roots: dict[str, str] = {}
    for each in connection.scalars(newest):
        roots = each | roots
    return roots


def _emptied(state: _Snapshot) -> Collection[str]:
    """Return the ids of leaving requests without attempts; these requests can end immediately.

    A request that the engine has requeued meanwhile is included. The request of an offline node is
    not included while the node's attempt holds slots, because the node may still run the attempt.
    """
    return {
        each.id
        for each in state.requests
        if each.state == NodeRequestState.LEAVING
        and each.cancel_at is None
        and each.engine_state in ("running", "pending")
        and each.id in state.nodes
        and not any(node.name in state.held for node in state.nodes[each.id])
    }


def _submits_now(request: NodeRequest, now: datetime) -> bool:
    """Return whether a request is due for its first or a repeated submission."""
    is_wanted = request.state == NodeRequestState.WANTED and request.ref is None
    if not is_wanted or request.cancel_at is not None:
        return False
    if request.sent_at is None:
        return True
    pause = timedelta(seconds=RESEND.pause_after(request.sends))
    return not timedelta() <= now - request.sent_at < pause


def _message(request: NodeRequest, call: str) -> SourceMessage:
    return SourceMessage.model_validate(
        {"source": request.source, "call": call, "request_id": request.id}
    )


def _as_waiting(row: GroupedJob) -> UnmetJob:
    demand, size, name = row.queued.demand, row.min_world_size, label(row.project, row.name)
    if size is None or size >= demand.world_size:
        return UnmetJob(name, demand)
    least = replace(demand, world_size=size, nodes=None, units=(), spare_nodes=0)
    return UnmetJob(name, demand, least)


def _supplier(source: StoredSource, state: _Snapshot) -> Supplier:
    left = state.uses[source.name].left(source.limits)
    return Supplier(
        name=source.name,
        shape=source.shape,
        seconds=source.request_seconds,
        requests_left=left.requests,
        nodes_left=left.nodes,
        nodes_per_request=source.limits.nodes_per_request,
        node_seconds_left=None if left.node_hours is None else left.node_hours * HOUR,
        wait_seconds=state.waits.get(source.name, 0.0),
        roots=state.roots,
    )


def _may_be_asked(source: StoredSource, now: datetime) -> bool:
    """Return whether nodes may be requested from a source.

    A source that needs a login is still used while its last complete listing is recent.
    """
    listed = source.listed_at is not None and now - source.listed_at <= 2 * LIST_EVERY
    needs_login = source.needs_login is not None and not listed
    return source.paused_at is None and not needs_login and source.is_online(now)


def _freed(capacity: Capacity, now: datetime) -> dict[str, list[int]]:
    """Return the slots that attempts are expected to free soon, by node."""
    found: dict[str, list[int]] = {}
    for holding in capacity.holdings:
        if holding.ends_at is not None and holding.ends_at <= now + FREED_WITHIN:
            for node, slots in holding.shares.items():
                found.setdefault(node, []).extend(slots)
    return found
