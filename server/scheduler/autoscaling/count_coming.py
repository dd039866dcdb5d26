"""The number of nodes per request that will still join; nodes that cannot return do not count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, select

from server.cluster.supply.rows import NodeRequest
from server.core.database.source_tables import pilots
from server.core.database.tables import nodes
from trainyard.protocol.node_sources.messages import pilot_name
from trainyard.protocol.states import NodeRequestState

JOINS_WITHIN = timedelta(minutes=10)
"""Time for which a node is expected after the start of its allocation, after the end of a pilot
with a successor, and after the last heartbeat of a silent node. During this time, jobs request no
other node.
"""


def count_coming(
    connection: Connection, requests: Sequence[NodeRequest], now: datetime
) -> Mapping[str, int]:
    """Return the number of nodes that are expected to join or come back, by open request.

    If the request waits in the engine, all nodes that have not joined count. If the request runs, a
    node does not count after `JOINS_WITHIN`, or if its pilot is proved gone and the engine names no
    successor. If the request is completing, no node counts, because only a requeue would bring its
    nodes back.
    """
    expected = [
        each
        for each in requests
        if each.state != NodeRequestState.LEAVING and each.engine_state != "completing"
    ]
    row = pilots.c
    columns = (row.request_id, row.number, row.named, row.joined, row.gone_at)
    ids = [each.id for each in expected]
    known = {
        (each.request_id, each.number): each
        for each in connection.execute(select(*columns).where(row.request_id.in_(ids)))
    }
    silent_since: dict[str, datetime | None] = {
        each.name: each.offline_since
        for each in connection.execute(
            select(nodes.c.name, nodes.c.offline_since).where(nodes.c.request_id.in_(ids))
        )
    }
    found: Counter[str] = Counter()
    for request in expected:
        for number in range(request.nodes):
            name = pilot_name(request.source, request.id, number)
            if name in silent_since and silent_since[name] is None:
                continue  # the node has joined
            if request.state == NodeRequestState.RUNNING:
                pilot = known.get((request.id, number))
                if pilot is not None and pilot.gone_at is not None and pilot.named == pilot.joined:
                    continue
                times = (request.started_at, silent_since.get(name), pilot and pilot.gone_at)
                since = max((each for each in times if each is not None), default=now)
                if now - since > JOINS_WITHIN:
                    continue
            found[request.id] += 1
    return found
