"""The worker that serves a node, and what its reports prove (docs/lifecycle-failures.md, 45-48)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, func, select

from server.core.context import Context
from server.core.database.rows import Node
from server.core.database.tables import nodes
from server.core.errors import ConflictError
from server.core.leases import NODE_LEASES, is_recent, lease_expired
from server.core.liveness import server_uptime
from trainyard.protocol.worker_messages import WorkerIdentity

HEARTBEATS_MISSED = 6
"""Number of missed heartbeats after which a node counts as offline."""


def proves_gone(
    claimer: WorkerIdentity | None, sender: WorkerIdentity, *, reported: bool, lease_expired: bool
) -> bool:
    """Return whether a worker's report proves that an attempt has no process on its node.

    The worker `claimer` claimed the share, and the worker `sender` found no process. `reported` is
    whether a supervisor of the share has ever sent a report.
    """
    if claimer is None or claimer.folder != sender.folder:
        return False  # the locks in another data folder prove nothing
    if lease_expired:
        return True
    return claimer.boot_id == sender.boot_id and not reported


_WORKERS = select(nodes.c.name, nodes.c.worker).where(
    nodes.c.name.in_(bindparam("of_nodes", expanding=True))
)


def check_worker(connection: Connection, node: str, worker: WorkerIdentity) -> None:
    """Check that a worker is the one that registered the node last; an unknown node passes.

    Raises:
        ConflictError: another worker has registered the node.
    """
    known = registered_workers(connection, [node])
    if node in known:
        refuse_other_worker(node, worker, registered=known[node])


def registered_workers(
    connection: Connection, names: Sequence[str]
) -> Mapping[str, WorkerIdentity | None]:
    """Return for each node the worker that registered it last; unknown nodes are omitted."""
    rows = connection.execute(_WORKERS, {"of_nodes": names})
    return {row.name: row.worker for row in rows}


def refuse_other_worker(
    node: str, worker: WorkerIdentity, *, registered: WorkerIdentity | None
) -> None:
    """Check that `worker` is `registered`, the worker that registered the node last.

    Raises:
        ConflictError: another worker has registered the node.
    """
    if registered != worker:
        raise ConflictError(
            f"node {node!r} was registered by a worker with another data folder or after another "
            "boot; end one of the two, or register again"
        )


def refuse_second_worker(
    context: Context, connection: Connection, *, node: Node, worker: WorkerIdentity
) -> None:
    """Refuse a registration from another data folder or boot while the node lives.

    The caller has locked the node's row.

    Raises:
        ConflictError: the former worker has sent a heartbeat, or one of its supervisors has sent a
            report, too recently.
    """
    if node.worker is None or node.worker == worker:
        return
    other_folder = node.worker.folder != worker.folder
    what = "another data folder" if other_folder else "another boot"
    now, settings = context.now(), context.settings
    limit = HEARTBEATS_MISSED * settings.heartbeat_seconds
    if is_recent(node.heartbeat_at, now, seconds=limit):
        raise ConflictError(
            f"a worker of {what} serves node {node.name!r}; this one can register "
            f"{limit:g} s after that one's last heartbeat, or under another name"
        )
    held = (NODE_LEASES.table.c.node == node.name, NODE_LEASES.are_held)
    heard_at = connection.scalar(select(func.max(NODE_LEASES.heard_at)).where(*held))
    if heard_at is not None and not lease_expired(
        heard_at, server_uptime(connection, now), seconds=settings.lease_seconds
    ):
        raise ConflictError(
            f"an attempt that a worker of {what} launched on node {node.name!r} has a lease; this "
            f"one can register {settings.lease_seconds:g} s after its last report, or under "
            "another name"
        )
