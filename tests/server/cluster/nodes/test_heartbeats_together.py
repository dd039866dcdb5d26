"""Heartbeats of many nodes in one transaction: as many statements as for one, and no mix-up."""

from __future__ import annotations

import pytest
from sqlalchemy import text, update

from server.api.http.group_commit import serve_apart
from server.cluster.nodes.queries import list_nodes
from server.cluster.nodes.series import read_metrics
from server.core.database.tables import nodes
from server.core.errors import ConflictError, NotFoundError, UnreadableError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.node_heartbeat import node_heartbeats
from tests.server.cluster.nodes.gpu_node import HOST
from tests.server.harness import WORKER, Harness
from tests.server.statements import statements
from trainyard.protocol.node_samples import NodeSample
from trainyard.protocol.worker_messages import (
    PROTOCOL,
    NodeHeartbeat,
    NodeHeartbeatReply,
    WorkerIdentity,
)

OTHER = WorkerIdentity(folder="1" * 32, boot_id="b007-0001")
NAMES = [f"node-{number}" for number in range(1, 8)]


def beat(node: str, *, load: float = 1.0, worker: WorkerIdentity = WORKER) -> NodeHeartbeat:
    sample = NodeSample(host=HOST.model_copy(update={"load": load}))
    return NodeHeartbeat(protocol=PROTOCOL, node=node, worker=worker, sample=sample)


def highest_loads(harness: Harness, *, hours: int = 1) -> dict[str, list[float]]:
    """Return the points of the load of each node."""
    found = {}
    for name in NAMES:
        curves = read_metrics(harness.context, name, hours=hours, names=["load"])["curves"]
        found[name] = [point["max"] for curve in curves for point in curve["points"]]
    return found


@pytest.fixture
def seven(harness: Harness) -> Harness:
    for name in NAMES:
        harness.add_node(name)
    return harness


def test_many_nodes_take_as_many_statements_as_one(seven: Harness) -> None:
    counts = []
    for seconds in (0, 1, 60):  # the first of a node, another in its minute, the next minute
        seven.clock.advance(seconds)
        for some in (NAMES[:1], NAMES[1:]):
            with statements(seven.context) as seen:
                node_heartbeats(seven.context, [beat(name) for name in some])
            counts.append(len([each for each in seen if not each.startswith("BEGIN")]))
    assert counts == [8, 8, 5, 5, 11, 11], counts


def test_each_node_gets_its_own_sample_in_minutes_and_quarters(seven: Harness) -> None:
    seven.clock.advance(30)
    for round_ in range(3):
        node_heartbeats(
            seven.context,
            [beat(name, load=10 * (round_ + 1) + place) for place, name in enumerate(NAMES)],
        )
        seven.clock.advance(60)
    seven.clock.advance(1800)  # all but the last were heard before
    node_heartbeats(seven.context, [beat(name, load=1.0) for name in NAMES[:-1]])
    loads = highest_loads(seven)
    quarters = highest_loads(seven, hours=24)
    for place, name in enumerate(NAMES[:-1]):
        assert loads[name] == [10 + place, 20 + place, 30 + place, 1]
        assert max(quarters[name]) == 30 + place
    assert loads[NAMES[-1]] == [16, 26, 36]


def test_a_refused_heartbeat_keeps_no_other_from_being_noted(seven: Harness) -> None:
    seven.clock.advance(30)
    group = [beat("node-1"), beat("node-2", worker=OTHER), beat("unknown"), beat("node-3")]
    first, other, unknown, last = node_heartbeats(seven.context, group)
    assert isinstance(first, NodeHeartbeatReply)
    assert isinstance(last, NodeHeartbeatReply)
    assert isinstance(other, ConflictError)
    assert isinstance(unknown, NotFoundError)
    at = {view.name: view.heartbeat_at for view in list_nodes(seven.context, scope=SYSTEM_SCOPE)}
    now = seven.clock.now()
    assert {name for name in NAMES if at[name] == now} == {"node-1", "node-3"}


def test_a_node_that_cannot_be_read_keeps_no_other_from_being_noted(seven: Harness) -> None:
    with seven.context.database.write() as connection:
        broken = text("UPDATE nodes SET hardware = '{}' WHERE name = 'node-3'")
        connection.execute(broken)
    group = [beat(name) for name in NAMES]
    answers = serve_apart(lambda some: node_heartbeats(seven.context, some), group)
    assert [type(each) for each in answers].count(NodeHeartbeatReply) == len(NAMES) - 1
    assert isinstance(answers[2], UnreadableError)


def test_each_reply_names_what_its_node_holds_and_each_change_has_an_event(seven: Harness) -> None:
    job_id, (supervisor,) = seven.launched()
    (holder,) = [share.node for share in seven.shares(job_id)]
    with seven.context.database.write() as connection:
        away = update(nodes).where(nodes.c.name.in_(["node-4", "node-5"]))
        connection.execute(away.values(offline_since=seven.clock.now()))
    leaving = beat("node-6").model_copy(update={"notice": "spot"})
    group = [leaving if name == "node-6" else beat(name) for name in NAMES]
    replies = dict(zip(NAMES, node_heartbeats(seven.context, group), strict=True))
    for name, reply in replies.items():
        assert isinstance(reply, NodeHeartbeatReply)
        assert reply.expected == ((supervisor.attempt_id,) if name == holder else ())
        assert reply.time is not None
    events = [(kind, node) for kind, node in node_events(seven) if node in NAMES]
    assert sorted(events) == [
        ("node_drained", "node-6"),
        ("node_online", "node-4"),
        ("node_online", "node-5"),
    ]


def node_events(harness: Harness) -> list[tuple[str, str]]:
    with harness.context.database.read() as connection:
        query = text("SELECT kind, node FROM events WHERE job_id IS NULL")
        return [(row.kind, row.node) for row in connection.execute(query)]
