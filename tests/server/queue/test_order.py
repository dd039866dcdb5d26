"""The order of the queue in SQL: that of its definition, on both databases."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert, select, update

from server.context import Context
from server.database.tables import jobs
from server.projects.service import change_project, create_project
from server.queue.order import QueueKey, key_of_candidate, read_order
from server.queue.queries import count_up_to, read_waiting
from tests.actors import ADA
from tests.server.harness import Harness
from tests.server.placement.fair_order import Waiting, fair_order
from trainyard.protocol.rest.projects import ProjectRequest, ProjectSettings
from trainyard.protocol.states import JobState

START = datetime(2026, 1, 1, tzinfo=UTC)
WEIGHTS = {"default": 1.0, "speech": 3.0, "vision": 0.7}
LARGEST = {"default": 6, "speech": 6, "vision": 2}
"""Largest jobs that can start: of vision by its quota, of the others by the slots of the node."""


def make_projects(context: Context, weights: Mapping[str, float]) -> None:
    for name, weight in weights.items():
        if name == "default":
            change_project(context, name, ProjectSettings(weight=weight), actor=ADA)
        else:
            create_project(context, ProjectRequest(name=name, weight=weight), actor=ADA)


def store(context: Context, like: str, rows: Sequence[Waiting], held: Mapping[str, int]) -> None:
    """Store queued jobs in groups, and a running job of so many slots for each project."""
    with context.database.write() as connection:
        row = connection.execute(select(jobs).where(jobs.c.id == like)).one()._asdict()
        waiting = [
            {
                "id": job.id,
                "project": job.project,
                "world_size": job.size,
                "priority": job.priority,
                "queued_at": START + timedelta(seconds=job.queued_at),
                "state": JobState.QUEUED,
                "demand": f"group-{job.project}",
            }
            for job in rows
        ]
        running = [
            {"id": context.new_id(), "project": project, "world_size": slots, "state": "running"}
            for project, slots in held.items()
        ]
        connection.execute(insert(jobs), [row | each for each in waiting])
        connection.execute(insert(jobs), [row | each for each in running])
        connection.execute(update(jobs).where(jobs.c.id == like).values(state=JobState.SUCCEEDED))


def backlog(context: Context, seed: int, count: int = 40) -> list[Waiting]:
    choose = random.Random(seed)
    return [
        Waiting(
            id=context.new_id(),
            project=choose.choice(list(WEIGHTS)),
            size=choose.choice((1, 2, 4, 8)),
            queued_at=float(choose.randrange(20)),
            priority=choose.choice((-50, 0, 0, 50)),
        )
        for _ in range(count)
    ]


def listed(context: Context, *, page: int = 7) -> list[str]:
    """Return the ids in the order of the queue, read page by page."""
    found: list[str] = []
    after = None
    while True:
        with context.database.read() as connection:
            order = read_order(connection)
            rows = read_waiting(connection, order, after, limit=page)
            if after is not None:
                assert count_up_to(connection, order, after) == (len(found), len(found))
        if not rows:
            return found
        found += [row.id for row in rows]
        after = QueueKey.parse(rows[-1].key.token)
        assert after == rows[-1].key


def place_of(context: Context, new: Waiting) -> int:
    """Return how many jobs would be ahead of one, were it queued now."""
    with context.database.read() as connection:
        order = read_order(connection, candidate=new.project)
        key = key_of_candidate(
            connection,
            order,
            project=new.project,
            priority=new.priority,
            now=START + timedelta(seconds=new.queued_at),
        )
        return count_up_to(connection, order, key)[0]


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_order_of_the_definition(harness: Harness, context: Context, seed: int) -> None:
    make_projects(context, WEIGHTS)
    rows, held = backlog(context, seed), {"default": 3, "vision": 5}
    store(context, harness.submit(), rows, held)
    everything = dict.fromkeys(WEIGHTS, 8)
    assert listed(context) == [job.id for job in fair_order(rows, held, WEIGHTS, everything)]


@pytest.mark.parametrize("seed", range(3))
def test_a_job_that_cannot_start_adds_nothing_to_the_tags_behind_it(
    harness: Harness, context: Context, seed: int
) -> None:
    make_projects(context, WEIGHTS)
    change_project(context, "vision", ProjectSettings(max_slots=LARGEST["vision"]), actor=ADA)
    harness.add_node(slots=LARGEST["default"])
    rows, held = backlog(context, seed), {"default": 3, "vision": 5}
    store(context, harness.submit(), rows, held)
    assert listed(context) == [job.id for job in fair_order(rows, held, WEIGHTS, LARGEST)]
    for project in WEIGHTS:
        new = Waiting(context.new_id(), project, 1, queued_at=100.0)
        order = fair_order([*rows, new], held, WEIGHTS, LARGEST)
        assert place_of(context, new) == order.index(new)


def test_while_one_project_waits_it_is_the_order_of_arrival(
    harness: Harness, context: Context
) -> None:
    make_projects(context, WEIGHTS)
    rows = [
        Waiting(job.id, "vision", 1, job.queued_at, job.priority) for job in backlog(context, 1)
    ]
    store(context, harness.submit(), rows, {"default": 3, "vision": 5})
    with context.database.read() as connection:
        assert not read_order(connection).is_fair
        assert read_order(connection, candidate="speech").is_fair
    by_arrival = sorted(rows, key=lambda job: (-job.priority, job.queued_at, job.id))
    assert listed(context) == [job.id for job in by_arrival]


def test_a_candidate_has_the_place_that_it_gets(harness: Harness, context: Context) -> None:
    make_projects(context, WEIGHTS)
    rows, held = backlog(context, 2), {"default": 3, "vision": 5}
    store(context, harness.submit(), rows, held)
    for project in WEIGHTS:
        new = Waiting(context.new_id(), project, 2, queued_at=100.0)
        order = fair_order([*rows, new], held, WEIGHTS, dict.fromkeys(WEIGHTS, 8))
        assert place_of(context, new) == order.index(new)


def test_a_round_places_the_job_of_the_project_with_the_fewest_slots(
    harness: Harness, context: Context
) -> None:
    make_projects(context, {"vision": 1.0, "speech": 2.0})
    harness.add_node(slots=6)
    for project in ("vision", "speech"):
        for _ in range(8):
            harness.submit(project=project)
            harness.clock.advance(1)
    assert harness.place() == 6
    with context.database.read() as connection:
        running = jobs.c.state == JobState.STARTING
        started = Counter(connection.scalars(select(jobs.c.project).where(running)))
    assert started == {"vision": 2, "speech": 4}


def test_jobs_of_two_projects_that_need_the_same_are_in_two_groups(
    harness: Harness, context: Context
) -> None:
    make_projects(context, {"vision": 1.0})
    change_project(context, "vision", ProjectSettings(max_slots=0), actor=ADA)
    one, other = harness.submit(project="vision"), harness.submit()
    assert harness.place() == 0
    assert harness.job(one).demand != harness.job(other).demand
    assert harness.job(one).reason == "needs 1, and project vision may hold 0 slots"
    assert harness.job(other).reason == "no node is online that takes new work"
