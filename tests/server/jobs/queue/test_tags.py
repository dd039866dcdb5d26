"""Tags of single jobs: waiting ones, and a running job as if it were still waiting."""

from __future__ import annotations

from server.cluster.projects.service import create_project
from server.jobs.queue.order import read_order, read_shares
from server.jobs.queue.queries import WaitingJob, read_waiting
from server.jobs.queue.scheduling_queue import SchedulingQueue, group_sizes
from tests.actors import ADA
from tests.server.harness import Harness
from trainyard.protocol.rest.projects import ProjectRequest

JOBS = [("default", 2, 0), ("team", 1, 0), ("default", 1, 50), ("default", 4, 0), ("team", 3, -50)]
"""Project, slots and priority of each, in the order of their arrival."""


def waiting(harness: Harness) -> dict[str, WaitingJob]:
    """Return the jobs of the queue by name, with their tags."""
    with harness.context.database.read() as connection:
        rows = read_waiting(connection, read_order(connection), None, limit=len(JOBS))
    return {row.name: row for row in rows}


def tag(harness: Harness, job: WaitingJob, *, project: str, held: int = 0) -> float:
    """Return the scheduler's tag of a job that waits, or that holds some slots."""
    queue = SchedulingQueue()
    with harness.context.database.read() as connection:
        queue.update(connection, group_sizes(connection), quotas={})
        share = read_shares(connection, {})[project]
    return queue.tag(
        project, share, priority=job.priority, queued_at=job.queued_at, job_id=job.id, held=held
    )


def test_a_tag_is_that_of_the_queue_and_stays_when_the_job_starts(harness: Harness) -> None:
    create_project(harness.context, ProjectRequest(name="team", weight=2.0), actor=ADA)
    harness.add_node("a", slots=3)
    harness.running(name="runs", resources={"world_size": 3})
    for project, slots, priority in JOBS:
        resources = {"world_size": slots, "priority": priority}
        harness.submit(name=f"{project}-{slots}", project=project, resources=resources)
        harness.clock.advance(1)
    assert harness.place() == 0
    found = waiting(harness)
    tags = {name: row.key.tag for name, row in found.items()}
    expected = {"default-1": 3, "team-1": 0, "default-2": 4, "default-4": 6, "team-3": 0.5}
    assert tags == expected
    for name, row in found.items():
        assert tag(harness, row, project=name.partition("-")[0]) == tags[name]

    harness.add_node("b", slots=4)
    assert harness.place() > 0
    assert "default-2" not in waiting(harness)
    assert tag(harness, found["default-2"], project="default", held=2) == tags["default-2"]
