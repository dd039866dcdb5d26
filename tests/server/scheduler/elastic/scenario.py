"""Short ways to an elastic job that runs, has lost a node, or could grow."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import select, update

from server.core.database.tables import attempt_nodes, jobs, nodes
from tests.server.harness import AnyRow, Harness, Supervisor
from trainyard.protocol.states import (
    AttemptNodeState,
    DesiredState,
)

LEASE = 30
SIX: dict[str, Any] = {
    "training": {"global_batch_size": 24, "micro_batch_size": 4, "steps": 1000},
    "resources": {"world_size": 6, "min_world_size": 4},
}


def three_nodes(harness: Harness) -> None:
    for name in "abc":
        harness.add_node(name, slots=2)


def run_round(harness: Harness) -> None:
    """Place, then resize waiting jobs, then place those."""
    harness.place()
    harness.fit()
    harness.place()


def pass_time(harness: Harness, seconds: int, *, silent: Collection[str] = ()) -> None:
    """Advance the clock while servers are up and the workers of the other nodes report."""
    harness.pass_time(seconds)
    heard = update(nodes).where(nodes.c.name.not_in(silent))
    with harness.context.database.write() as connection:
        connection.execute(heard.values(heartbeat_at=harness.context.now(), offline_since=None))


def shrunk(harness: Harness, names: str = "ab", **sections: Any) -> tuple[str, list[Supervisor]]:
    """Return a job of 4..6 slots that runs on 4, on two new nodes, with its supervisors."""
    for name in names:
        harness.add_node(name, slots=2)
    job_id = harness.submit(**SIX | sections)
    run_round(harness)
    harness.clock.advance(60)  # the start-up, which is the cost of a change
    supervisors = took_over(harness, job_id)
    set_pace(harness, job_id, 10**6)
    return job_id, supervisors


def lose(harness: Harness, living: list[Supervisor], *, seconds: int = LEASE + 1) -> None:
    """Let the other nodes be silent for a time, while these report."""
    shares = harness.shares(living[0].reply.attempt.job_id)
    of_job = {share.node for share in shares if share.spare_since is None}
    pass_time(harness, seconds, silent=of_job - {supervisor.node for supervisor in living})
    for supervisor in living:
        supervisor.train(10)
    harness.reconciler.run()  # unreachable
    harness.reconciler.run()  # lost, if the job is elastic


def took_over(harness: Harness, job_id: str) -> list[Supervisor]:
    """Run a round, and bring the attempt that it placed to its first step."""
    run_round(harness)
    supervisors = harness.claim_all(job_id)
    for supervisor in supervisors:
        supervisor.train(11)
    return supervisors


def end_all(supervisors: list[Supervisor]) -> None:
    for supervisor in supervisors:
        assert supervisor.report() == DesiredState.CANCEL
        supervisor.end("cancelled")


def free_on(harness: Harness, node: str) -> int:
    """Return the slots of a node of two that no share holds, whether or not it is online."""
    with harness.context.database.read() as connection:
        held = connection.scalars(
            select(attempt_nodes.c.slots).where(
                attempt_nodes.c.node == node, attempt_nodes.c.state != AttemptNodeState.ENDED
            )
        ).all()
    return 2 - sum(map(len, held))


def share_of(harness: Harness, attempt_id: str, node: str) -> AnyRow:
    query = select(attempt_nodes).where(
        attempt_nodes.c.attempt_id == attempt_id, attempt_nodes.c.node == node
    )
    with harness.context.database.read() as connection:
        return connection.execute(query).one()


def set_pace(harness: Harness, job_id: str, seconds_left: float | None) -> None:
    progress = harness.job(job_id).progress.model_copy(update={"seconds_left": seconds_left})
    with harness.context.database.write() as connection:
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(progress=progress))


def grown(harness: Harness) -> int:
    """Let ten minutes pass in which servers are up, and look for growth."""
    pass_time(harness, 600)
    return harness.grow()
