"""Short ways to a job that runs with a spare node."""

from __future__ import annotations

from typing import Any

from sqlalchemy import update

from server.core.database.tables import nodes
from tests.server.harness import Harness, Supervisor
from tests.server.scheduler.elastic.scenario import pass_time
from trainyard.protocol.states import AttemptNodeState

FOUR: dict[str, Any] = {
    "training": {"global_batch_size": 24, "micro_batch_size": 4, "steps": 1000},
    "resources": {"world_size": 4, "nodes": 2, "spare_nodes": 1},
}


def with_spare(
    harness: Harness, names: str = "abc", **sections: Any
) -> tuple[str, list[Supervisor]]:
    """Return a job of 4 ranks on two of some nodes of two slots, with a third one in reserve."""
    for name in names:
        harness.add_node(name, slots=2)
    return harness.running(**FOUR | sections)


def ranks_and_spares(harness: Harness, job_id: str) -> tuple[list[str], list[str]]:
    """Return the nodes of the newest attempt that have ranks, and those reserved now."""
    shares = harness.shares(job_id)
    ranks = [share.node for share in shares if share.spare_since is None]
    return ranks, [share.node for share in shares if share.state == AttemptNodeState.SPARE]


def change(harness: Harness, node: str, **values: Any) -> None:
    with harness.context.database.write() as connection:
        connection.execute(update(nodes).where(nodes.c.name == node).values(**values))


def go_offline(harness: Harness, node: str) -> None:
    change(harness, node, offline_since=harness.context.now())


def look_for_spares(harness: Harness) -> None:
    """Let the pause between two searches pass, and search."""
    pass_time(harness, 5)
    harness.keep_spares()
