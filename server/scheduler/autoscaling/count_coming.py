"""The number of nodes per request that will still join; nodes that cannot return do not count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, select

from server.cluster.supply.rows import NodeRequest, Pilot
from server.core.database.source_tables import pilots
from server.core.database.tables import nodes
from trainyard.protocol.node_sources.messages import pilot_name
from trainyard.protocol.states import NodeRequestState

JOINS_WITHIN = timedelta(minutes=10)
"""Time for which a missing node is expected to join. The time counts from the last of three events:
the start of the allocation, the end of a pilot with a successor, and the time at which the node
went offline. During this time, jobs request no node as a substitute.
"""


def count_coming(
    connection: Connection, requests: Sequence[NodeRequest], now: datetime
) -> Mapping[str, int]:
    """Return the number of nodes that are expected to join or come back, by open request.

    Online nodes do not count. If a request waits in the engine, each node that is not online
    counts. If a request runs, such a node counts only for `JOINS_WITHIN`, and not if its pilot is
    proved gone without a successor. If a request is leaving, or completing in the engine, no node
    counts, because only a requeue would bring nodes back.
    """
    expected = [
        each
        for each in requests
        if each.state != NodeRequestState.LEAVING and each.engine_state != "completing"
    ]
    ids = [each.id for each in expected]
    started = Pilot.all(connection, Pilot.select().where(pilots.c.request_id.in_(ids)))
    known = {(each.request_id, each.number): each for each in started}
    joined = select(nodes.c.name, nodes.c.offline_since).where(nodes.c.request_id.in_(ids))
    silent_since = {each.name: each.offline_since for each in connection.execute(joined)}
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
                gone_at = None if pilot is None else pilot.gone_at
                times = (request.started_at, silent_since.get(name), gone_at)
                since = max((each for each in times if each is not None), default=now)
                if now - since > JOINS_WITHIN:
                    continue
            found[request.id] += 1
    return found
