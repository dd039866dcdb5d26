"""Nodes: how they join, what they offer and who holds it, and draining."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from uuid import UUID

from sqlalchemy import Connection, insert, select, update

from server.auth.service import Principal
from server.auth.tokens import TokenKind, hash_token, make_token
from server.context import Context
from server.database.rows import Node
from server.database.tables import attempt_nodes, attempts, jobs, nodes, tokens
from server.errors import (
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    UnauthenticatedError,
)
from server.events.store import NewEvent, append_event
from server.nodes.workers import refuse_second_worker
from server.ranks.store import slow_slots
from server.subject import Actor, Subject
from trainyard.base.names import LEGAL, ROOT
from trainyard.base.problems import Problem
from trainyard.protocol.attempt import NodeAllocation
from trainyard.protocol.rest.event_data import NodeDrained, NodeRegistered
from trainyard.protocol.rest.metrics_and_logs import SlowSlot
from trainyard.protocol.rest.nodes import Drain, NodeHolding, NodeView, Running
from trainyard.protocol.states import AttemptNodeState
from trainyard.protocol.worker_messages import PROTOCOL, Registration, RegistrationReply
from trainyard.spec.storage_uri import ROOT_PATTERN

ADDRESS = re.compile(r"[A-Za-z0-9._:-]{1,255}")


def check_protocol(protocol: int) -> None:
    """Reject unsupported protocol versions: this one and the one before are accepted.

    Raises:
        InvalidRequestError: it is older or newer.
    """
    if protocol not in (PROTOCOL - 1, PROTOCOL):
        legal = [PROTOCOL - 1, PROTOCOL]
        raise InvalidRequestError.at(
            "/protocol", f"{protocol} is not understood; this server accepts {legal}"
        )


def register(
    context: Context, registration: Registration, *, principal: Principal
) -> RegistrationReply:
    """Take a node in, or back with what it offers now.

    A join token is used up by it and answered with a token of the node's own. The name of a node
    that is online cannot be joined again; a dead one's can, and ends its old token. While a node
    lives, only a worker of the same data folder and boot can register it again. A root whose
    UUID is not the one that other nodes see under this name is accepted: it means another storage,
    and the scheduler spreads an attempt only over nodes that see the same one.

    Raises:
        InvalidRequestError: the protocol is not understood, or the address or a root is malformed.
        ForbiddenError: a node's token comes with another name.
        UnauthenticatedError: the join token was used up meanwhile.
        ConflictError: a node of this name is online, or another worker serves it.
    """
    check_protocol(registration.protocol)
    _check(registration)
    name = registration.node
    if principal.kind is TokenKind.NODE and principal.node != name:
        raise ForbiddenError(f"this is the token of node {principal.node!r}, not of {name!r}")
    with context.database.write() as connection:
        token = None
        found = Node.select().where(nodes.c.name == name).with_for_update(key_share=True)
        before = Node.one_or_none(connection, found)
        if principal.kind is not TokenKind.NODE:
            token = _join(context, connection, registration, principal, before)
        if before is not None:
            refuse_second_worker(context, connection, before, registration.worker)
        _store(context, connection, registration, before)
    return RegistrationReply(node_token=token, heartbeat_seconds=context.settings.heartbeat_seconds)


def list_nodes(context: Context, *, after: str | None = None, limit: int = 100) -> list[NodeView]:
    """Return at most `limit` nodes after a name, by name."""
    query = Node.select().order_by(nodes.c.name).limit(limit)
    if after is not None:
        query = query.where(nodes.c.name > after)
    with context.database.read() as connection:
        return _views(context, connection, Node.all(connection, query))


def set_drain(context: Context, name: str, running: Running | None, *, actor: Actor) -> NodeView:
    """Place nothing new on a node, or place on it again; the same order again changes nothing.

    Args:
        context: the server's context.
        name: the node.
        running: whether what runs there moves (the scheduler sees to it) or finishes; None ends
            the drain.
        actor: who requests it.

    Raises:
        NotFoundError: no node has this name.
    """
    drain = None if running is None else Drain(running=running, by=actor.name, at=context.now())
    with context.database.write() as connection:
        found = select(nodes.c.drain).where(nodes.c.name == name)
        row = connection.execute(found.with_for_update(key_share=True)).one_or_none()
        if row is None:
            raise NotFoundError(f"no node has the name {name!r}")
        before: Drain | None = row.drain
        if (before and before.running) != running:
            connection.execute(update(nodes).where(nodes.c.name == name).values(drain=drain))
            event = NewEvent(
                NodeDrained(draining=drain is not None, running=running),
                actor,
                Subject(node=name),
                f"{name}: {_in_words(running)}",
            )
            append_event(context, connection, event)
        node = Node.one(connection, Node.select().where(nodes.c.name == name))
        return _views(context, connection, [node])[0]


def _check(registration: Registration) -> None:
    problems = []
    if not ADDRESS.fullmatch(registration.address):
        detail = f"{registration.address!r} is no host name or address"
        problems.append(Problem(pointer="/address", detail=detail))
    for name, uuid in registration.roots.items():
        if not ROOT_PATTERN.fullmatch(name):
            detail = f"{name[:80]!r} is no name of a root; legal: {LEGAL[ROOT]}"
            problems.append(Problem(pointer="/roots", detail=detail))
        elif not _is_uuid(uuid):
            detail = f"{uuid[:80]!r} is no UUID"
            problems.append(Problem(pointer=f"/roots/{name}", detail=detail))
    if problems:
        raise InvalidRequestError.of(problems)


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


def _join(
    context: Context,
    connection: Connection,
    registration: Registration,
    principal: Principal,
    before: Node | None,
) -> str:
    """Use the join token up, and return the token of the node."""
    now, name = context.now(), registration.node
    used = connection.execute(
        update(tokens)
        .where(tokens.c.id == principal.token_id, tokens.c.revoked_at.is_(None))
        .values(revoked_at=now)
    )
    if used.rowcount != 1:
        raise UnauthenticatedError("the join token has been used up; make another one")
    if before is not None and before.offline_since is None:
        raise ConflictError(
            f"a node named {name!r} is online; give this one another name, or end that one's worker"
        )
    connection.execute(
        update(tokens)
        .where(
            tokens.c.node == name, tokens.c.kind == TokenKind.NODE, tokens.c.revoked_at.is_(None)
        )
        .values(revoked_at=now)
    )
    token = make_token(TokenKind.NODE)
    connection.execute(
        insert(tokens).values(
            id=context.new_id(),
            name=f"node {name}",
            kind=TokenKind.NODE.value,
            hash=hash_token(token),
            node=name,
            created_at=now,
        )
    )
    return token


def _store(
    context: Context, connection: Connection, registration: Registration, before: Node | None
) -> None:
    now, name, hardware = context.now(), registration.node, registration.hardware
    row = {
        "address": registration.address,
        "hardware": hardware,
        "device": hardware.device,
        "slots": hardware.slots,
        "partitions": [s for s, gpu in enumerate(hardware.accelerators) if gpu.parent is not None],
        "roots": registration.roots,
        "version": registration.version,
        "protocol": registration.protocol,
        "worker": registration.worker,
        "heartbeat_at": now,
        "offline_since": None,
    }
    if before is None:
        connection.execute(insert(nodes).values(name=name, registered_at=now, **row))
    else:
        connection.execute(update(nodes).where(nodes.c.name == name).values(row))
    if before is None or (before.hardware, before.roots) != (hardware, registration.roots):
        others = connection.scalars(select(nodes.c.roots).where(nodes.c.name != name))
        elsewhere = _other_storage(registration.roots, others)
        note = f"; sees another storage than others as {', '.join(elsewhere)}" if elsewhere else ""
        event = NewEvent(
            NodeRegistered(
                slots=hardware.slots, device=hardware.device, other_storage=tuple(elsewhere)
            ),
            Actor(name),
            Subject(node=name),
            f"{name} offers {hardware.slots} {hardware.device} slots{note}",
        )
        append_event(context, connection, event)


def _other_storage(mine: Mapping[str, str], others: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the roots that most other nodes see with another UUID."""
    seen: dict[str, Counter[str]] = {root: Counter() for root in mine}
    for roots in others:
        for root, uuid in roots.items():
            if root in seen:
                seen[root][uuid] += 1
    return [
        root
        for root, uuids in seen.items()
        if uuids and uuids.most_common(1)[0][1] > uuids[mine[root]]
    ]


def _in_words(running: Running | None) -> str:
    if running is None:
        return "in use again"
    if running == "finish":
        return "nothing new is placed; what runs goes on to its end"
    return "nothing new is placed; what runs saves, leaves and goes on elsewhere"


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
        .where(share.node.in_(names), share.state != AttemptNodeState.ENDED.value)
        .order_by(share.claimed_at)
    )
    held: dict[str, list[NodeHolding]] = {}
    for row in connection.execute(query):
        allocation = NodeAllocation(node=row.node, node_rank=row.node_rank, slots=tuple(row.slots))
        holding = NodeHolding(job_id=row.id, job_name=row.name, allocation=allocation)
        held.setdefault(row.node, []).append(holding)
    return held


def _view(row: Node, holdings: list[NodeHolding], slow: Sequence[SlowSlot]) -> NodeView:
    taken = sum(len(holding.allocation.slots) for holding in holdings)
    computed = {
        "online": row.offline_since is None,
        "draining": row.drain is not None or row.notice is not None,
        "free_slots": max(row.slots - taken, 0),
        "allocations": tuple(holdings),
        "roots": tuple(sorted(row.roots)),
        "problems": tuple(_problems(row)),
        "slow_slots": tuple(slow),
    }
    return NodeView(**row.values_for(NodeView) | computed)


def _problems(node: Node) -> Iterator[str]:
    """Return what is wrong with a node by its last sample."""
    if node.sample is None:
        return
    yield from node.sample.problems
    slots = {device.uuid: slot for slot, device in enumerate(node.hardware.accelerators)}
    for device in node.sample.accelerators:
        name = f"slot {slots[device.uuid]}" if device.uuid in slots else device.uuid
        if device.problem is not None:
            yield f"{name}: {device.problem}"
        if device.xids:
            yield f"{name}: Xid {', '.join(map(str, device.xids))}"
        if device.row_remap_pending:
            yield f"{name}: a reset is needed to replace a damaged row of memory"
        if device.row_remap_failed:
            yield f"{name}: a damaged row of memory could not be replaced"
