"""Registration of nodes: the check whether a node may join, its hardware, and its token."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, exists, insert, select, update

from server.api.auth.principals import Principal
from server.api.auth.service import replace_token_of, use_up_join_token
from server.api.auth.tokens import TokenKind
from server.api.http.worker_protocol import check_protocol
from server.cluster.nodes.slots import keep_slots, reasons_by_uuid, uuids, withheld_slots
from server.cluster.nodes.workers import refuse_second_worker
from server.core.audit.request_rows import note_change
from server.core.context import Context
from server.core.database.rows import Node
from server.core.database.slot_tables import HOLDS_SLOTS
from server.core.database.source_tables import node_requests
from server.core.database.tables import attempt_nodes, nodes
from server.core.errors import ConflictError, ForbiddenError, InvalidRequestError
from server.core.events.store import NewEvent, append_event
from server.core.subject import Actor, Subject
from trainyard.base.ids import ID_PATTERN
from trainyard.base.names import LEGAL, ROOT
from trainyard.base.problems import Problem
from trainyard.protocol.node_samples import DATA_DIR_FULL
from trainyard.protocol.node_sources.messages import SOURCE_NAME
from trainyard.protocol.rest.nodes import NodeRegistered
from trainyard.protocol.worker_messages import (
    OLDEST_PROTOCOL,
    Hardware,
    Registration,
    RegistrationReply,
)
from trainyard.spec.storage_uri import ROOT_PATTERN

ADDRESS = re.compile(r"[A-Za-z0-9._:-]{1,255}")
PILOT_NAME = re.compile(
    rf"(?P<source>{SOURCE_NAME[1:-1]})-(?P<request>{ID_PATTERN[1:-1]})-(?P<number>[0-9]{{1,4}})"
)
"""Pattern of the names that `pilot_name` makes."""


def check_sender(
    principal: Principal, node: str, protocol: int, *, oldest: int = OLDEST_PROTOCOL
) -> None:
    """Reject a worker's request with an unsupported protocol or another node's token.

    `oldest` is the oldest version of the protocol that the server accepts for the request.

    Raises:
        InvalidRequestError: the protocol is not supported.
        ForbiddenError: the token belongs to another node.
    """
    check_protocol(protocol, oldest=oldest)
    if principal.node != node:
        raise ForbiddenError(f"this is the token of node {principal.node!r}, not of {node!r}")


@dataclass(frozen=True)
class Admitted:
    """A pilot that may become a node."""

    registration: Registration
    request_id: str
    ends_at: datetime | None
    """End of the pilot's allocation; None if unknown."""


Admit = Callable[[Connection], Admitted]
"""Function that checks whether a pilot may become the node with the registered name. The
transaction of the registration calls the function first."""


def register(
    context: Context,
    registration: Registration,
    *,
    principal: Principal,
    admit: Admit | None = None,
) -> RegistrationReply:
    """Register a node, or register it again with its current hardware.

    A join token is used up, and the reply contains a new token for the node. A join token cannot
    take over the name of an online node. It can take over the name of an offline node, and the old
    token of that node ends. While a node lives, only a worker with the same data folder and boot
    can register it again. If a root has different UUIDs on two nodes, the nodes have different
    storages under this root. The scheduler spreads an attempt only over nodes with the same UUID
    for each root.

    Raises:
        InvalidRequestError: the protocol is not supported, or the address or a root is malformed.
        ForbiddenError: the token belongs to another node, or the name is reserved for pilots and
            `admit` is None.
        UnauthenticatedError: another registration has used the join token meanwhile.
        ConflictError: a node of this name is online, or another worker serves it.
    """
    check_protocol(registration.protocol)
    _check(registration)
    name = registration.node
    if principal.kind is TokenKind.NODE:
        check_sender(principal, name, registration.protocol)
    with context.database.write() as connection:
        token, admitted = None, None
        if admit is not None:
            admitted = admit(connection)
            registration = admitted.registration
        else:
            _refuse_pilot(connection, name)
        found = Node.select().where(nodes.c.name == name).with_for_update(key_share=True)
        before = Node.one_or_none(connection, found)
        if principal.kind is not TokenKind.NODE:
            if admitted is None:
                _use_up(context, connection, principal=principal, before=before)
            token = replace_token_of(context, connection, kind=TokenKind.NODE, name=name)
        if before is not None:
            refuse_second_worker(context, connection, node=before, worker=registration.worker)
        hardware = _numbered(connection, registration, before)
        _store(
            context,
            connection,
            registration=registration,
            hardware=hardware,
            before=before,
            admitted=admitted,
        )
        note_change(object=f"nodes/{name}")
    slots = uuids(hardware)
    return RegistrationReply(
        node_token=token,
        heartbeat_seconds=context.settings.heartbeat_seconds,
        slots=slots if slots != uuids(registration.hardware) else (),
    )


def _refuse_pilot(connection: Connection, name: str) -> None:
    """Refuse a registration under the name of a pilot, because it would bypass the checks of
    pilots."""
    parts = PILOT_NAME.fullmatch(name)
    if parts is None:
        return
    request = node_requests.c
    known = (request.id == parts["request"]) & (request.source == parts["source"])
    if connection.scalar(select(exists().where(known))):
        raise ForbiddenError(
            f"{name!r} is the name of a pilot of request {parts['request']}: it registers with "
            "/pilot and the join secret of the request"
        )


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


def _use_up(
    context: Context, connection: Connection, *, principal: Principal, before: Node | None
) -> None:
    """Invalidate the join token; refuse it if a node with the registered name is online."""
    use_up_join_token(context, connection, principal)
    if before is not None and before.offline_since is None:
        raise ConflictError(
            f"a node named {before.name!r} is online; give this one another name, or end that "
            "one's worker"
        )


def _numbered(connection: Connection, registration: Registration, before: Node | None) -> Hardware:
    """Return the registered hardware; while attempts hold slots, all slots keep their numbers."""
    if before is None:
        return registration.hardware
    live = exists().where(attempt_nodes.c.node == before.name, HOLDS_SLOTS)
    if not connection.scalar(select(live)):
        return registration.hardware
    return keep_slots(before.hardware, registration.hardware)


def _store(
    context: Context,
    connection: Connection,
    *,
    registration: Registration,
    hardware: Hardware,
    before: Node | None,
    admitted: Admitted | None,
) -> None:
    now, name = context.now(), registration.node
    reasons = {} if before is None else reasons_by_uuid(before.hardware, before.withheld)
    wrong = before is not None and before.clock_is_wrong
    full = before is not None and DATA_DIR_FULL in before.withheld.values()
    row = {
        "address": registration.address,
        "hardware": hardware,
        "device": hardware.device,
        "slots": hardware.slots,
        "partitions": [s for s, gpu in enumerate(hardware.accelerators) if gpu.parent is not None],
        "roots": registration.roots,
        "withheld": withheld_slots(
            hardware, None, before=reasons, was_full=full, clock_is_wrong=wrong
        ),
        "clock_skew_seconds": None if before is None else before.clock_skew_seconds,
        "clock_is_wrong": wrong,
        "worker_labels": registration.labels,
        "inbox": registration.inbox,
        "request_id": None if admitted is None else admitted.request_id,
        "ends_at": None if admitted is None else admitted.ends_at,
        "version": registration.version,
        "protocol": registration.protocol,
        "worker": registration.worker,
        "heartbeat_at": now,
        "offline_since": None,
        "accounts": {} if hardware.isolation == "owner" else None,  # the worker looks them up again
    }
    if before is not None and _moved(before, registration):
        row["network_checked_at"] = None
    if before is None:
        connection.execute(insert(nodes).values(name=name, registered_at=now, **row))
    else:
        connection.execute(update(nodes).where(nodes.c.name == name).values(row))
    if before is None or (before.hardware, before.roots) != (hardware, registration.roots):
        others = connection.scalars(select(nodes.c.roots).where(nodes.c.name != name))
        elsewhere = _other_storage(registration.roots, others)
        note = f"; sees another storage than others as {', '.join(elsewhere)}" if elsewhere else ""
        slots = registration.hardware.slots
        event = NewEvent(
            NodeRegistered(slots=slots, device=hardware.device, other_storage=tuple(elsewhere)),
            Actor(name),
            Subject(node=name),
            f"{name} offers {slots} {hardware.device} slots{note}",
        )
        append_event(context, connection, event)


def _moved(before: Node, registration: Registration) -> bool:
    """Return whether the node's network may have changed, because of a reboot or a new address."""
    boot_id = None if before.worker is None else before.worker.boot_id
    return boot_id != registration.worker.boot_id or before.address != registration.address


def _other_storage(mine: Mapping[str, str], others: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the roots for which the other nodes have another UUID more often than this node's
    UUID."""
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
