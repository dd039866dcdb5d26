"""The order of the queue in SQL and in memory equals its definition, on both databases."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from server.cluster.placement.demand import Demand
from server.cluster.projects.quotas import read_user_quotas
from server.cluster.projects.service import change_project, create_project
from server.core.context import Context
from server.core.database.scheduler_tables import demands, projects
from server.core.database.tables import jobs
from server.jobs.jobs.service import cancel
from server.jobs.queue import heads
from server.jobs.queue.groups import enter_groups
from server.jobs.queue.order import QueueKey, key_of_candidate, read_order, read_shares
from server.jobs.queue.queries import count_up_to, read_waiting
from server.jobs.queue.scheduling_queue import GroupedJob, SchedulingQueue, group_sizes
from server.scheduler.rounds import round as round_of_placement
from tests.actors import ADA
from tests.server.cluster.placement.fair_order import Waiting, fair_order
from tests.server.harness import Harness
from trainyard.protocol.rest.projects import ProjectRequest, ProjectSettings
from trainyard.protocol.states import JobState

START = datetime(2026, 1, 1, tzinfo=UTC)
WEIGHTS = {"default": 1.0, "speech": 3.0, "vision": 0.7}
LARGEST = {"default": 6, "speech": 6, "vision": 2}
"""Largest startable jobs: for vision by its quota, for the others by the node's slots."""
SIZES = (1, 2, 4, 8)
"""Slots of jobs, including those of their spare nodes."""


def make_projects(context: Context, weights: Mapping[str, float]) -> None:
    for name, weight in weights.items():
        if name == "default":
            change_project(context, name, ProjectSettings(weight=weight), actor=ADA)
        else:
            create_project(context, ProjectRequest(name=name, weight=weight), actor=ADA)


def key_of(project: str, size: int) -> str:
    return f"group-{project}-{size}"


def store(context: Context, like: str, *, rows: Sequence[Waiting], held: Mapping[str, int]) -> None:
    """Store queued jobs in groups, and a running job of so many slots for each project."""
    with context.database.write() as connection:
        row = connection.execute(select(jobs).where(jobs.c.id == like)).one()._asdict()
        waiting = [
            {
                "id": job.id,
                "project": job.project,
                "world_size": -(-job.size // 2),  # the other slots belong to spare nodes
                "priority": job.priority,
                "queued_at": START + timedelta(seconds=job.queued_at),
                "state": JobState.QUEUED,
                "demand": key_of(job.project, job.size),
            }
            for job in rows
        ]
        running = [
            {"id": context.new_id(), "project": project, "world_size": slots, "state": "running"}
            for project, slots in held.items()
        ]
        groups = [
            {"key": key_of(project, size), "shape": astuple(Demand(1)), "slots": size}
            for project in {*WEIGHTS, *(job.project for job in rows)}
            for size in SIZES
        ]
        connection.execute(insert(demands), groups)
        connection.execute(insert(jobs), [row | each for each in waiting])
        connection.execute(insert(jobs), [row | each for each in running])
        connection.execute(update(jobs).where(jobs.c.id == like).values(state=JobState.SUCCEEDED))


def backlog(context: Context, seed: int, count: int = 40) -> list[Waiting]:
    choose = random.Random(seed)
    return [
        Waiting(
            id=context.new_id(),
            project=choose.choice(list(WEIGHTS)),
            size=choose.choice(SIZES),
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


def kept(
    context: Context, queue: SchedulingQueue, *, limit: int = 1000, of_group: int = 1
) -> tuple[list[str], int]:
    """Return the ids in the order of the scheduler, and how many of them have no gap."""
    with context.database.read() as connection:
        queue.update(connection, group_sizes(connection), quotas={})
        rows, complete = queue.first(
            read_shares(connection, read_user_quotas(connection)), limit=limit, of_group=of_group
        )
    return [row.id for row in rows], complete


def place_of(context: Context, new: Waiting) -> int:
    """Return how many jobs would be ahead of a job if it were queued now."""
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
    store(context, harness.submit(), rows=rows, held=held)
    everything = dict.fromkeys(WEIGHTS, 8)
    assert listed(context) == [
        job.id for job in fair_order(rows, held, weights=WEIGHTS, largest=everything)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_a_job_that_cannot_start_adds_nothing_to_the_tags_behind_it(
    harness: Harness, context: Context, seed: int
) -> None:
    make_projects(context, WEIGHTS)
    change_project(context, "vision", ProjectSettings(max_slots=LARGEST["vision"]), actor=ADA)
    harness.add_node(slots=LARGEST["default"])
    rows, held = backlog(context, seed), {"default": 3, "vision": 5}
    store(context, harness.submit(), rows=rows, held=held)
    assert listed(context) == [
        job.id for job in fair_order(rows, held, weights=WEIGHTS, largest=LARGEST)
    ]
    for project in WEIGHTS:
        new = Waiting(context.new_id(), project, 1, queued_at=100.0)
        order = fair_order([*rows, new], held, weights=WEIGHTS, largest=LARGEST)
        assert place_of(context, new) == order.index(new)


@pytest.mark.parametrize("seed", range(4))
def test_the_scheduler_follows_all_changes_of_the_order(
    harness: Harness, context: Context, seed: int
) -> None:
    """Some jobs start, others leave; returning jobs enter through `enter_groups`."""
    choose = random.Random(seed)
    make_projects(context, WEIGHTS)
    harness.add_node(slots=LARGEST["default"])
    rows = backlog(context, seed)
    store(context, harness.submit(), rows=rows, held={"default": 3, "vision": 5})
    queue = SchedulingQueue()
    away: list[Waiting] = []
    for _ in range(12):
        order = listed(context)
        assert kept(context, queue) == (order, len(order))
        gone = [job for job in rows if job.id in order and choose.random() < 0.2]
        back = [job for job in away if choose.random() < 0.5]
        away = [job for job in [*away, *gone] if job not in back]
        with context.database.write() as connection:
            for job in gone:
                state = choose.choice((JobState.RUNNING, JobState.CANCELLED))
                left = update(jobs).where(jobs.c.id == job.id)
                connection.execute(left.values(state=state, demand=None))
            for job in back:
                entered = {
                    "state": JobState.QUEUED,
                    "demand": key_of(choose.choice(list(WEIGHTS)), choose.choice(SIZES)),
                    "priority": choose.choice((-50, 0, 50)),
                }
                connection.execute(update(jobs).where(jobs.c.id == job.id).values(**entered))
        queue.enter(job.id for job in back)
        project = choose.choice(list(WEIGHTS))
        most = choose.choice((None, 2, 4))
        settings = ProjectSettings(weight=choose.choice((0.5, 1.0, 4.0)))
        change_project(context, project, settings, actor=ADA)
        with context.database.write() as connection:
            connection.execute(
                update(projects).where(projects.c.name == project).values(max_slots=most)
            )


def test_a_job_that_returns_to_its_group_has_its_new_place(
    harness: Harness, context: Context
) -> None:
    rows = [Waiting(context.new_id(), "default", 1, queued_at=float(at)) for at in range(3)]
    store(context, harness.submit(), rows=rows, held={"default": 1})
    queue = SchedulingQueue()
    assert kept(context, queue)[0] == [job.id for job in rows]
    with context.database.write() as connection:
        last = update(jobs).where(jobs.c.id == rows[2].id)
        connection.execute(last.values(priority=50))
    queue.enter([rows[2].id])
    assert kept(context, queue)[0] == [rows[2].id, rows[0].id, rows[1].id]


def test_a_job_that_an_update_could_not_read_is_read_by_the_next(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Waiting(context.new_id(), "default", 1, queued_at=float(at)) for at in range(2)]
    store(context, harness.submit(), rows=rows, held={"default": 1})
    queue = SchedulingQueue()
    kept(context, queue)
    with context.database.write() as connection:
        last = update(jobs).where(jobs.c.id == rows[1].id)
        connection.execute(last.values(priority=50))
    queue.enter([rows[1].id])

    def lose_the_reply(*_: object) -> None:
        raise OSError("the reply was lost")

    with monkeypatch.context() as patch:
        patch.setattr(GroupedJob, "all", lose_the_reply)
        with pytest.raises(OSError, match="the reply was lost"):
            kept(context, queue)
    assert kept(context, queue)[0] == [rows[1].id, rows[0].id]


@pytest.mark.parametrize(("limit", "of_group"), [(0, 1), (3, 2), (5, 4), (10, 1), (50, 1)])
def test_the_first_jobs_are_those_of_the_queue_and_of_each_group(
    harness: Harness, context: Context, limit: int, of_group: int
) -> None:
    make_projects(context, WEIGHTS)
    rows, held = backlog(context, 3), {"default": 3, "vision": 5}
    store(context, harness.submit(), rows=rows, held=held)
    with context.database.write() as connection:  # groups of several projects
        for number, job in enumerate(rows):
            key = key_of(list(WEIGHTS)[number % 3], job.size)
            connection.execute(update(jobs).where(jobs.c.id == job.id).values(demand=key))
        group_of = dict(connection.execute(select(jobs.c.id, jobs.c.demand)).all())
    order, turn = listed(context), Counter[str | None]()
    expected = []
    for place, job_id in enumerate(order):
        turn[group_of[job_id]] += 1
        if place < limit or turn[group_of[job_id]] <= of_group:
            expected.append(job_id)
    assert kept(context, SchedulingQueue(), limit=limit, of_group=of_group) == (
        expected,
        min(limit, len(order)),
    )


def test_while_one_project_waits_it_is_the_order_of_arrival(
    harness: Harness, context: Context
) -> None:
    make_projects(context, WEIGHTS)
    rows = [
        Waiting(job.id, "vision", 1, job.queued_at, job.priority) for job in backlog(context, 1)
    ]
    store(context, harness.submit(), rows=rows, held={"default": 3, "vision": 5})
    with context.database.read() as connection:
        assert not read_order(connection).is_fair
        assert read_order(connection, candidate="speech").is_fair
    by_arrival = sorted(rows, key=lambda job: (-job.priority, job.queued_at, job.id))
    assert listed(context) == [job.id for job in by_arrival]


def test_a_candidate_has_the_place_that_it_gets(harness: Harness, context: Context) -> None:
    make_projects(context, WEIGHTS)
    rows, held = backlog(context, 2), {"default": 3, "vision": 5}
    store(context, harness.submit(), rows=rows, held=held)
    for project in WEIGHTS:
        new = Waiting(context.new_id(), project, 2, queued_at=100.0)
        order = fair_order([*rows, new], held, weights=WEIGHTS, largest=dict.fromkeys(WEIGHTS, 8))
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


def test_projects_without_a_quota_share_groups(harness: Harness, context: Context) -> None:
    make_projects(context, {"vision": 1.0})
    one, other = harness.submit(project="vision"), harness.submit()
    assert harness.place() == 0
    assert harness.job(one).demand == harness.job(other).demand
    change_project(context, "vision", ProjectSettings(max_slots=0), actor=ADA)
    assert harness.place() == 0
    assert harness.job(one).demand != harness.job(other).demand
    assert harness.job(one).reason == "needs 1, and project vision may hold 0 slots"
    assert harness.job(other).reason == "no node is online that takes new work"
    change_project(context, "vision", ProjectSettings(max_slots=1), actor=ADA)
    change_project(context, "vision", ProjectSettings(max_slots=None), actor=ADA)
    assert harness.place() == 0
    assert harness.job(one).demand == harness.job(other).demand
    assert harness.job(one).reason == "no node is online that takes new work"


def test_a_round_of_groups_of_several_projects_keeps_their_order(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "FIRST_AT_ONCE", 2)
    monkeypatch.setattr(heads, "NOTIFIED", 1)
    monkeypatch.setattr(heads, "HEADS_AT_ONCE", 1)
    make_projects(context, {"vision": 1.0, "speech": 1.0})
    harness.add_node(slots=8)
    queued = {}
    for project in ("vision", "vision", "vision", "vision", "speech", "speech"):
        harness.clock.advance(1)
        queued[harness.submit(project=project)] = project
    started = []
    while harness.place():
        placed = [j for j in queued if harness.job(j).state == JobState.STARTING]
        started.append(sorted(queued[job_id] for job_id in placed))
    assert started[:2] == [["speech", "vision"], ["speech", "speech", "vision", "vision"]]
    assert len(started[-1]) == len(queued)


def test_a_round_sees_jobs_that_entered_groups_in_one_that_failed(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = harness.submit(resources={"world_size": 2})
    assert harness.place() == 0
    harness.clock.advance(1)
    second = harness.submit(resources={"world_size": 2})

    def commit_and_fail(*given: Any, **named: Any) -> None:
        enter_groups(*given, **named)
        raise OSError("the reply was lost")

    with monkeypatch.context() as patch:
        patch.setattr(round_of_placement, "enter_groups", commit_and_fail)
        with pytest.raises(OSError, match="the reply was lost"):
            harness.place()
    cancel(context, first, actor=ADA, reason="enough")  # its group has as many jobs as before
    harness.add_node(slots=2)
    assert harness.place() == 1
    assert harness.job(second).state == JobState.STARTING


def test_a_job_counts_with_the_slots_of_the_spare_nodes_that_it_waits_for(
    harness: Harness, context: Context
) -> None:
    make_projects(context, {"vision": 1.0})
    harness.add_node(slots=8)
    queued = []
    for project, resources in (
        ("vision", {"world_size": 2, "nodes": 1, "spare_nodes": 1}),
        ("vision", {"world_size": 1}),
        ("default", {"world_size": 1}),
        ("default", {"world_size": 2}),
        ("default", {"world_size": 1}),
    ):
        harness.clock.advance(1)
        queued.append(harness.submit(project=project, resources=resources))
    queue = SchedulingQueue()
    queue.enter(enter_groups(context))
    # The second one of vision has 4 slots ahead of it, the last one of default 3.
    expected = [queued[each] for each in (0, 2, 3, 4, 1)]
    assert listed(context) == kept(context, queue)[0] == expected
    with context.database.read() as connection:
        order = read_order(connection)
        key = key_of_candidate(
            connection, order, project="vision", priority=0, now=harness.clock.now()
        )
        assert key.tag == 5.0
