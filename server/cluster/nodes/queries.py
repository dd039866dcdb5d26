"""Views of the nodes: their slots, the jobs that hold these slots, and problems of the nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, ClassVar

from sqlalchemy import Connection, Table, distinct, exists, func, or_, select

from server.cluster.nodes.slots import slot_name, withheld_from_placement
from server.core.context import Context
from server.core.database.held import of_held
from server.core.database.metric_and_log_tables import stragglers
from server.core.database.rows import Node, TypedRow
from server.core.database.source_tables import node_requests
from server.core.database.tables import attempt_nodes, attempts, jobs, nodes
from server.core.errors import NotFoundError
from server.core.visibility.scope import HIDDEN_JOB, Scope
from trainyard.protocol.attempt import NodeAllocation
from trainyard.protocol.node_samples import NodeSample
from trainyard.protocol.rest.metrics_and_logs import SlowSlot
from trainyard.protocol.rest.nodes import NodeHolding, NodeView, WithheldSlot
from trainyard.protocol.states import AttemptNodeState, NodeRequestState
from trainyard.protocol.worker_messages import OLDEST_PROTOCOL, PROTOCOL, Hardware

SEVERAL_JOBS = 2
"""The view of a node lists a slot as slow if at least this number of jobs were slow on the slot."""
REMEMBERED = timedelta(days=30)
"""Time for which a straggler counts against the slot on which its rank ran."""

_HAS_LEFT = nodes.c.request_id.is_not(None) & ~exists().where(
    node_requests.c.id == nodes.c.request_id, node_requests.c.state != NodeRequestState.ENDED
)
"""SQL condition that the node comes from a request that has ended. Lists omit such a node, because
only past attempts refer to it.
"""


def list_nodes(
    context: Context, *, scope: Scope, after: str | None = None, limit: int = 100
) -> list[NodeView]:
    """Return at most `limit` nodes, sorted by name, that follow the name `after`."""
    query = Node.select().where(~_HAS_LEFT).order_by(nodes.c.name).limit(limit)
    if after is not None:
        query = query.where(nodes.c.name > after)
    with context.database.read() as connection:
        return _views(context, connection, Node.all(connection, query), scope=scope)


def one_node(connection: Connection, name: str, *, locked: bool = False) -> Node:
    """Return a node; with `locked`, its row stays locked until the transaction ends.

    Raises:
        NotFoundError: no node has this name.
    """
    query = Node.select().where(nodes.c.name == name)
    if locked:
        query = query.with_for_update(key_share=True)
    if (node := Node.one_or_none(connection, query)) is None:
        raise NotFoundError(f"no node has the name {name!r}")
    return node


def node_view(context: Context, connection: Connection, name: str, *, scope: Scope) -> NodeView:
    """Return the view of one node.

    Raises:
        NotFoundError: no node has this name.
    """
    return _views(context, connection, [one_node(connection, name)], scope=scope)[0]


def _views(
    context: Context, connection: Connection, rows: Sequence[Node], *, scope: Scope
) -> list[NodeView]:
    names = [row.name for row in rows]
    held, slow = _held_on(connection, names), _slow_slots(context, connection, names)
    return [_view(row, held.get(row.name, ()), slow.get(row.name, ()), scope=scope) for row in rows]


@dataclass(frozen=True, slots=True)
class _Share(TypedRow):
    """A share that holds slots, with its job."""

    table: ClassVar[Table] = attempt_nodes
    node: str
    node_rank: int
    slots: list[int]
    state: AttemptNodeState
    job_id: Annotated[str, jobs.c.id]
    job_name: Annotated[str, jobs.c.name]
    project: Annotated[str, jobs.c.project]

    def holding(self, scope: Scope) -> NodeHolding:
        """Return the view of the share, which does not name a hidden job."""
        allocation = NodeAllocation(
            node=self.node, node_rank=self.node_rank, slots=tuple(self.slots)
        )
        if not scope.sees(self.project):
            return NodeHolding(job_id=None, job_name=HIDDEN_JOB, allocation=allocation)
        return NodeHolding(job_id=self.job_id, job_name=self.job_name, allocation=allocation)


def _held_on(connection: Connection, names: list[str]) -> Mapping[str, Sequence[_Share]]:
    """Return the shares that hold slots on these nodes, by node."""
    shares = (
        _Share.select()
        .join(attempts, attempts.c.id == attempt_nodes.c.attempt_id)
        .join(jobs, jobs.c.id == attempts.c.job_id)
        .where(attempt_nodes.c.node.in_(names))
    )
    found: dict[str, list[_Share]] = {}
    rows = _Share.all(connection, of_held(shares))
    for row in sorted(rows, key=lambda row: row.slots):
        found.setdefault(row.node, []).append(row)
    return found


def _slow_slots(
    context: Context, connection: Connection, names: Collection[str]
) -> Mapping[str, Sequence[SlowSlot]]:
    """Return the slots with several slow jobs within `REMEMBERED` and since the drain, by node."""
    counted = func.count(distinct(attempts.c.job_id)).label("jobs")
    query = (
        select(stragglers.c.node, stragglers.c.slot, counted)
        .join(attempts, attempts.c.id == stragglers.c.attempt_id)
        .join(nodes, nodes.c.name == stragglers.c.node)
        .where(
            nodes.c.name.in_(names),
            stragglers.c.found_at >= context.now() - REMEMBERED,
            or_(nodes.c.trusted_since.is_(None), stragglers.c.found_at > nodes.c.trusted_since),
        )
        .group_by(stragglers.c.node, stragglers.c.slot)
        .having(counted >= SEVERAL_JOBS)
        .order_by(stragglers.c.node, stragglers.c.slot)
    )
    found: dict[str, list[SlowSlot]] = {}
    for row in connection.execute(query):
        found.setdefault(row.node, []).append(SlowSlot(slot=row.slot, jobs=row.jobs))
    return found


def _view(
    row: Node, shares: Sequence[_Share], slow: Sequence[SlowSlot], *, scope: Scope
) -> NodeView:
    held = {slot for share in shares for slot in share.slots}
    withheld = withheld_from_placement(row.withheld, ((each.state, each.slots) for each in shares))
    computed = {
        "online": row.offline_since is None,
        "draining": row.drain is not None or row.notice is not None,
        "free_slots": max(row.slots - len(held | withheld.keys()), 0),
        "withheld": tuple(WithheldSlot(slot=slot, reason=why) for slot, why in withheld.items()),
        "allocations": tuple(share.holding(scope) for share in shares),
        "roots": tuple(sorted(row.roots)),
        "problems": tuple(_problems(row)),
        "slow_slots": tuple(slow),
    }
    return NodeView(**row.values_for(NodeView) | computed)


def _problems(node: Node) -> Iterator[str]:
    """Yield the problems of a node: of its worker, its clock, and its newest sample."""
    if not OLDEST_PROTOCOL <= node.protocol <= PROTOCOL:
        older = "worker" if node.protocol < OLDEST_PROTOCOL else "server"
        yield (
            f"its worker uses protocol {node.protocol}, which this server does not serve, so it "
            f"gets no work: upgrade the {older}"
        )
    skew = node.clock_skew_seconds
    if node.clock_is_wrong and skew is not None:
        side = "ahead of" if skew > 0 else "behind"
        yield f"its clock is {abs(skew):.1f} s {side} the database's"
    if node.sample is not None:
        yield from _sampled_problems(node.hardware, node.sample)


def _sampled_problems(hardware: Hardware, sample: NodeSample) -> Iterator[str]:
    if sample.accelerators_problem is not None:
        yield sample.accelerators_problem
    yield from sample.problems
    for device in sample.accelerators:
        name = slot_name(hardware, device.uuid)
        if device.problem is not None:
            yield f"{name}: {device.problem}"
        if device.xids:
            yield f"{name}: Xid {', '.join(str(xid.code) for xid in device.xids)}"
        if device.row_remap_pending:
            yield f"{name}: a reset is needed to replace a damaged row of memory"
        if device.row_remap_failed:
            yield f"{name}: a damaged row of memory could not be replaced"
