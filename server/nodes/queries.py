"""Views of the nodes: what they offer, who holds it, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, select

from server.context import Context
from server.database.rows import Node
from server.database.slot_tables import HOLDS_SLOTS
from server.database.tables import attempt_nodes, attempts, jobs, nodes
from server.nodes.slots import withheld_from_placement
from server.ranks.store import slow_slots
from trainyard.protocol.attempt import NodeAllocation
from trainyard.protocol.rest.metrics_and_logs import SlowSlot
from trainyard.protocol.rest.nodes import NodeHolding, NodeView, WithheldSlot


def list_nodes(context: Context, *, after: str | None = None, limit: int = 100) -> list[NodeView]:
    """Return at most `limit` nodes after a name, by name."""
    query = Node.select().order_by(nodes.c.name).limit(limit)
    if after is not None:
        query = query.where(nodes.c.name > after)
    with context.database.read() as connection:
        return _views(context, connection, Node.all(connection, query))


def node_view(context: Context, connection: Connection, name: str) -> NodeView:
    """Return one node, which exists."""
    node = Node.one(connection, Node.select().where(nodes.c.name == name))
    return _views(context, connection, [node])[0]


def _views(context: Context, connection: Connection, rows: Sequence[Node]) -> list[NodeView]:
    names = [row.name for row in rows]
    holdings, slow = _holdings(connection, names), slow_slots(context, connection, names)
    return [_view(row, holdings.get(row.name, []), slow.get(row.name, ())) for row in rows]


def _holdings(connection: Connection, names: list[str]) -> dict[str, list[NodeHolding]]:
    """Return who holds slots of these nodes: shares that have not ended."""
    share = attempt_nodes.c
    query = (
        select(share.node, share.node_rank, share.slots, jobs.c.id, jobs.c.name)
        .join(attempts, attempts.c.id == share.attempt_id)
        .join(jobs, jobs.c.id == attempts.c.job_id)
        .where(share.node.in_(names), HOLDS_SLOTS)
        .order_by(share.claimed_at)
    )
    held: dict[str, list[NodeHolding]] = {}
    for row in connection.execute(query):
        allocation = NodeAllocation(node=row.node, node_rank=row.node_rank, slots=tuple(row.slots))
        holding = NodeHolding(job_id=row.id, job_name=row.name, allocation=allocation)
        held.setdefault(row.node, []).append(holding)
    return held


def _view(row: Node, holdings: list[NodeHolding], slow: Sequence[SlowSlot]) -> NodeView:
    held = {slot for holding in holdings for slot in holding.allocation.slots}
    withheld = withheld_from_placement(row.withheld, held)
    computed = {
        "online": row.offline_since is None,
        "draining": row.drain is not None or row.notice is not None,
        "free_slots": max(row.slots - len(held) - len(withheld), 0),
        "withheld": tuple(WithheldSlot(slot=slot, reason=why) for slot, why in withheld.items()),
        "allocations": tuple(holdings),
        "roots": tuple(sorted(row.roots)),
        "problems": tuple(_problems(row)),
        "slow_slots": tuple(slow),
    }
    return NodeView(**row.values_for(NodeView) | computed)


def _problems(node: Node) -> Iterator[str]:
    """Return what is wrong with a node by its last sample and the last look at its clock."""
    skew = node.clock_skew_seconds
    if node.clock_is_wrong and skew is not None:
        side = "ahead of" if skew > 0 else "behind"
        yield f"its clock is {abs(skew):.1f} s {side} the database's"
    if node.sample is None:
        return
    if node.sample.accelerators_problem is not None:
        yield node.sample.accelerators_problem
    yield from node.sample.problems
    slots = {device.uuid: slot for slot, device in enumerate(node.hardware.accelerators)}
    for device in node.sample.accelerators:
        name = f"slot {slots[device.uuid]}" if device.uuid in slots else device.uuid
        if device.problem is not None:
            yield f"{name}: {device.problem}"
        if device.xids:
            yield f"{name}: Xid {', '.join(str(xid.code) for xid in device.xids)}"
        if device.row_remap_pending:
            yield f"{name}: a reset is needed to replace a damaged row of memory"
        if device.row_remap_failed:
            yield f"{name}: a damaged row of memory could not be replaced"
