"""A first or last quota of a project moves its waiting jobs to other groups, without a round."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event, select

from server.cluster.membership.limit_users import limit_users
from server.cluster.projects.quotas import read_quotas, read_user_quotas
from server.cluster.projects.service import change_project, create_project
from server.core.context import Context
from server.core.database.scheduler_tables import demands
from server.core.database.tables import jobs
from server.jobs.jobs.service import cancel
from server.jobs.queue.groups import GROUPED_AT_ONCE, enter_groups, forget_groups
from server.jobs.queue.order import read_shares
from server.jobs.queue.scheduling_queue import SchedulingQueue, group_sizes
from tests.actors import ADA
from tests.server.harness import Harness
from tests.server.jobs.queue.test_groups import fill
from tests.server.jobs.queue.test_order import listed
from trainyard.protocol.rest.projects import ProjectRequest, ProjectSettings
from trainyard.protocol.states import JobState
from trainyard.protocol.user_accounts.members import UserLimits

OWNERS = (ADA, replace(ADA, user_id="u1"), replace(ADA, user_id="u2"))
WITH_QUOTA, WITHOUT = ProjectSettings(max_slots=9), ProjectSettings(max_slots=None)


@pytest.fixture
def vision(context: Context) -> str:
    """A project without a quota."""
    return create_project(context, ProjectRequest(name="vision"), actor=ADA).name


def toggle(context: Context, project: str, settings: ProjectSettings) -> int:
    """Change a project, and return how many statements changed jobs."""
    counts: list[int] = []

    def note(*called: Any) -> None:
        _, _, statement, parameters, _, many = called
        if statement.startswith("UPDATE jobs"):
            counts.append(len(parameters) if many else 1)

    event.listen(context.database.engine, "before_cursor_execute", note)
    change_project(context, project, settings, actor=ADA)
    event.remove(context.database.engine, "before_cursor_execute", note)
    return sum(counts)


def test_waiting_jobs_move_to_groups_of_their_own_and_back(
    harness: Harness, context: Context, vision: str
) -> None:
    small = [harness.submit(project=vision, resources={"world_size": 2}) for _ in range(3)]
    large = harness.submit(project=vision, resources={"world_size": 4})
    other = harness.submit(resources={"world_size": 2})
    harness.place()
    shared = harness.job(other).demand
    before = {job_id: harness.job(job_id).reason for job_id in (*small, large)}
    harness.spoil_spec(small[0])  # no spec is read
    assert toggle(context, vision, WITH_QUOTA) == 2, "one statement a group"
    own = {job_id: harness.job(job_id).demand for job_id in (*small, large)}
    assert len({own[job_id] for job_id in small}) == 1
    assert shared not in own.values()
    assert own[large] not in {None, own[small[0]]}
    assert {job_id: harness.job(job_id).reason for job_id in own} == before
    assert harness.job(other).demand == shared
    assert toggle(context, vision, ProjectSettings(max_slots=7)) == 0, "it has a quota already"
    toggle(context, vision, WITHOUT)
    assert {harness.job(job_id).demand for job_id in (*small, other)} == {shared}
    forget_groups(context)
    with context.database.read() as connection:
        assert len(connection.execute(select(demands)).all()) == 2


def test_a_job_has_the_same_group_whether_it_enters_or_moves(
    harness: Harness, context: Context, vision: str
) -> None:
    spec = {
        "world_size": 4,
        "nodes": 2,
        "spare_nodes": 1,
        "node_selector": {"rack": "r1"},
        "exclude_nodes": ["b", "a"],
    }
    moved = harness.submit(project=vision, resources=spec)
    harness.place()
    toggle(context, vision, WITH_QUOTA)
    entered = harness.submit(project=vision, resources=spec)
    harness.place()
    assert harness.job(moved).demand == harness.job(entered).demand


def test_no_other_job_waits_for_the_jobs_of_a_project_whose_quota_is_set_or_removed(
    harness: Harness, context: Context, vision: str
) -> None:
    first = harness.submit(project=vision, resources={"world_size": 4})
    fill(harness, GROUPED_AT_ONCE, first)  # more than one round could enter again
    while enter_groups(context):
        pass
    for settings in (WITH_QUOTA, WITHOUT):
        assert toggle(context, vision, settings) == 1
        harness.add_node(f"node-{settings.max_slots}", slots=1)
        harness.clock.advance(1)
        other = harness.submit()
        assert harness.place() == 1, "in the next round"
        assert harness.job(other).state == JobState.STARTING
        assert enter_groups(context) == frozenset()


@pytest.mark.parametrize("seed", range(4))
def test_the_scheduler_follows_jobs_that_move(
    harness: Harness, context: Context, vision: str, seed: int
) -> None:
    """Jobs enter, leave and move at random; a group may keep its size with other jobs."""
    choose = random.Random(seed)
    names = (
        "default",
        vision,
        create_project(context, ProjectRequest(name="speech"), actor=ADA).name,
    )
    queue = SchedulingQueue()
    waiting: list[str] = []
    for _ in range(15):
        for _ in range(choose.randrange(3)):
            harness.clock.advance(1)
            size = choose.choice((1, 2))
            harness.actor = choose.choice(OWNERS)
            waiting.append(
                harness.submit(project=choose.choice(names), resources={"world_size": size})
            )
        queue.enter(enter_groups(context))
        for _ in range(choose.randrange(3)):
            if waiting and choose.random() < 0.6:
                gone = waiting.pop(choose.randrange(len(waiting)))
                cancel(context, gone, actor=ADA, reason="enough")
            settings = choose.choice((WITH_QUOTA, WITHOUT))
            change_project(context, choose.choice(names), settings, actor=ADA)
            limits = UserLimits(max_running=choose.choice((None, None, 2)))
            limit_users(context, choose.choice(names), limits, actor=ADA)
        with context.database.read() as connection:
            quotas = read_quotas(connection, context.now())
            queue.update(connection, group_sizes(connection), quotas=quotas)
            shares = read_shares(connection, read_user_quotas(connection))
            rows, _ = queue.first(shares, limit=1000, of_group=1)
            stored = dict(connection.execute(select(jobs.c.id, jobs.c.demand)).all())
        assert [row.id for row in rows] == listed(context)
        assert {row.id: row.group for row in rows} == {row.id: stored[row.id] for row in rows}
        by_user = {name for name, quota in quotas.items() if quota.users is not None}
        owners = {(row.group, row.owner_id) for row in rows if row.project in by_user}
        assert len({group for group, _ in owners}) == len(owners), "a group has one owner"
