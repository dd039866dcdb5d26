"""Views of sources and of requests for nodes."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select

from server.cluster.supply.rows import IS_OPEN, NodeRequest, StoredSource, one_request
from server.cluster.supply.usage import read_use
from server.core.context import Context
from server.core.database.source_tables import node_requests, sources
from server.core.database.tables import nodes
from server.core.errors import NotFoundError
from trainyard.protocol.node_sources.views import NodeRequestView, SourceView


def list_sources(context: Context, *, after: str | None, limit: int) -> list[SourceView]:
    """Return at most `limit` sources, sorted by name, that follow the name `after`."""
    query = StoredSource.select().order_by(sources.c.name).limit(limit)
    if after is not None:
        query = query.where(sources.c.name > after)
    with context.database.read() as connection:
        return _source_views(context, connection, StoredSource.all(connection, query))


def source_view(context: Context, connection: Connection, name: str) -> SourceView:
    """Return the view of one source.

    Raises:
        NotFoundError: no source has this name.
    """
    row = StoredSource.one_or_none(connection, StoredSource.select().where(sources.c.name == name))
    if row is None:
        raise NotFoundError(f"no source has the name {name!r}")
    return _source_views(context, connection, [row])[0]


def list_requests(
    context: Context, source: str, *, open_only: bool | None, after: str | None, limit: int
) -> list[NodeRequestView]:
    """Return at most `limit` requests of a source, the newest first, that follow the id `after`.

    Raises:
        NotFoundError: no source has this name.
    """
    query = NodeRequest.select().where(node_requests.c.source == source)
    if open_only is not None:
        query = query.where(IS_OPEN if open_only else ~IS_OPEN)
    if after is not None:
        query = query.where(node_requests.c.id < after)
    with context.database.read() as connection:
        source_view(context, connection, source)
        rows = NodeRequest.all(connection, query.order_by(node_requests.c.id.desc()).limit(limit))
        return request_views(connection, rows)


def request_view(connection: Connection, source: str, request_id: str) -> NodeRequestView:
    """Return the view of one request.

    Raises:
        NotFoundError: the source has no such request.
    """
    return request_views(connection, [one_request(connection, request_id, source=source)])[0]


def request_views(connection: Connection, rows: Sequence[NodeRequest]) -> list[NodeRequestView]:
    """Return the views of requests; each view has the nodes that joined for the request."""
    of_requests = nodes.c.request_id.in_([row.id for row in rows])
    found = select(nodes.c.request_id, nodes.c.name).where(of_requests).order_by(nodes.c.name)
    joined: dict[str, list[str]] = {}
    for request_id, name in connection.execute(found):
        joined.setdefault(request_id, []).append(name)
    return [_request_view(row, joined.get(row.id, ())) for row in rows]


def _request_view(row: NodeRequest, joined: Sequence[str]) -> NodeRequestView:
    reason = "\n".join(filter(None, (row.reason, row.explanation)))
    computed = {"joined": tuple(joined), "results": row.results or (), "reason": reason}
    return NodeRequestView(**row.values_for(NodeRequestView) | computed)


def _source_views(
    context: Context, connection: Connection, rows: Sequence[StoredSource]
) -> list[SourceView]:
    now = context.now()
    uses = read_use(connection, [row.name for row in rows], now)
    return [
        SourceView(
            **row.values_for(SourceView),
            online=row.is_online(now),
            paused=row.paused_at is not None,
            pending_requests=uses[row.name].pending,
            nodes_asked=uses[row.name].asked,
            nodes_running=uses[row.name].running,
            node_hours_this_month=uses[row.name].hours,
        )
        for row in rows
    ]
