"""The order of the queue while projects limit their users, in SQL, in memory and by definition."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from sqlalchemy import select, update

from server.cluster.membership.limit_users import limit_users
from server.cluster.projects.quotas import read_user_quotas
from server.core.context import Context
from server.core.database.tables import jobs
from server.core.people.member_tables import members
from server.core.people.user_tables import users
from server.core.subject import ADMIN_USER_ID
from server.jobs.queue.order import read_shares
from server.jobs.queue.scheduling_queue import SchedulingQueue, group_sizes
from tests.actors import ADMIN
from tests.server.cluster.placement.fair_order import Waiting, fair_order
from tests.server.harness import Harness
from tests.server.jobs.queue.test_order import (
    WEIGHTS,
    backlog,
    kept,
    listed,
    make_projects,
    place_of,
    store,
)
from tests.server.members import add_user
from trainyard.protocol.user_accounts.members import UserLimits

LIMITS = {"vision": UserLimits(max_slots=4), "speech": UserLimits(max_running=2)}
OWN = UserLimits(max_slots=9, max_running=1)
"""Own limits of ada in project vision; the project `default` has no limits."""
HELD = {"default": 3, "speech": 1, "vision": 2}
"""Slots of a running job of ada in each project."""


@pytest.fixture
def owners(harness: Harness, context: Context) -> Sequence[str]:
    """Limit users in two projects; return the ids of ada, of another user, and of the admin."""
    make_projects(context, WEIGHTS)
    for name in ("ada", "bob"):
        add_user(context, name, {"vision": "member"})
    for project, limits in LIMITS.items():
        limit_users(context, project, limits, actor=ADMIN)
    with context.database.write() as connection:
        ids = [
            str(connection.scalar(select(users.c.id).where(users.c.name == name)))
            for name in ("ada", "bob")
        ]
        of_ada = update(members).where(members.c.user_id == ids[0])
        connection.execute(of_ada.values(OWN.model_dump()))
    return *ids, ADMIN_USER_ID


def owned(context: Context, like: str, *, seed: int, owners: Sequence[str]) -> Sequence[Waiting]:
    """Store waiting jobs of several owners, and running jobs of the first owner."""
    choose = random.Random(seed)
    rows = [replace(each, owner=choose.choice(owners)) for each in backlog(context, seed, 60)]
    store(context, like, rows=rows, held=HELD)
    with context.database.write() as connection:
        for row in rows:
            its = update(jobs).where(jobs.c.id == row.id)
            connection.execute(its.values(owner_id=row.owner))
        running = update(jobs).where(jobs.c.state == "running")
        connection.execute(running.values(owner_id=owners[0]))
    return rows


def beyond(rows: Sequence[Waiting], owners: Sequence[str]) -> set[str]:
    """Return the jobs beyond a limit, by trying the jobs of each owner one by one."""
    found: set[str] = set()
    waits: defaultdict[tuple[str, str], list[Waiting]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (-row.priority, row.queued_at, row.id)):
        waits[row.project, row.owner].append(row)
    for (project, owner), own in waits.items():
        limits = LIMITS.get(project, UserLimits())
        if (project, owner) == ("vision", owners[0]):
            limits = OWN
        if owner == ADMIN_USER_ID:
            limits = UserLimits()
        slots, count = (HELD[project], 1) if owner == owners[0] else (0, 0)
        blocked = False
        for row in own:
            never = limits.max_slots is not None and row.size > limits.max_slots
            if not (never or blocked):
                slots, count = slots + row.size, count + 1
                blocked = (limits.max_slots is not None and slots > limits.max_slots) or (
                    limits.max_running is not None and count > limits.max_running
                )
            if never or blocked:
                found.add(row.id)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_job_beyond_a_limit_adds_nothing_to_the_tags_behind_it(
    harness: Harness, context: Context, owners: Sequence[str], seed: int
) -> None:
    rows = owned(context, harness.submit(), seed=seed, owners=owners)
    limits = beyond(rows, owners)
    assert {row.project for row in rows if row.id in limits} == {"vision", "speech"}

    def order(*new: Waiting) -> list[str]:
        largest: Mapping[str, int] = dict.fromkeys(WEIGHTS, 8)
        jobs = fair_order(
            [*rows, *new], HELD, weights=WEIGHTS, largest=largest, beyond_limits=limits
        )
        return [job.id for job in jobs]

    assert listed(context) == order()
    assert kept(context, SchedulingQueue()) == (order(), len(rows))
    for project in WEIGHTS:
        new = Waiting(context.new_id(), project, 1, queued_at=100.0)
        assert place_of(context, new) == order(new).index(new.id)


def test_the_scheduler_notices_changed_limits_and_use(
    harness: Harness, context: Context, owners: Sequence[str]
) -> None:
    owned(context, harness.submit(), seed=7, owners=owners)
    queue, orders = SchedulingQueue(), []
    for change in range(6):
        if change % 2:
            limits = UserLimits(max_slots=change, max_running=change)
            limit_users(context, "speech", limits, actor=ADMIN)
        else:
            with context.database.write() as connection:
                running = update(jobs).where(jobs.c.state == "running")
                connection.execute(running.values(owner_id=owners[change % 3]))
        with context.database.read() as connection:
            queue.update(connection, group_sizes(connection), quotas={})
            shares = read_shares(connection, read_user_quotas(connection))
            rows, _ = queue.first(shares, limit=1000, of_group=1)
        orders.append([row.id for row in rows])
        assert orders[-1] == listed(context)
    assert len({*map(tuple, orders)}) > 1


def test_a_users_jobs_beyond_the_limit_do_not_send_colleagues_back(
    harness: Harness, context: Context, owners: Sequence[str]
) -> None:
    ada, bob, _ = owners
    rows = [
        *(Waiting(context.new_id(), "vision", 1, float(at), owner=ada) for at in range(9)),
        Waiting(context.new_id(), "vision", 1, 10.0, owner=bob),
        *(Waiting(context.new_id(), "default", 2, float(at), owner=bob) for at in range(9)),
    ]
    store(context, harness.submit(), rows=rows, held={"default": 1, "vision": 1})
    with context.database.write() as connection:
        for row in rows:
            its = update(jobs).where(jobs.c.id == row.id)
            connection.execute(its.values(owner_id=row.owner))
        running = update(jobs).where(jobs.c.state == "running")
        connection.execute(running.values(owner_id=ada))
    order = listed(context)
    projects = {row.id: row.project for row in rows}
    first = Counter(projects[job_id] for job_id in order[: order.index(rows[9].id)])
    assert first == {"vision": 9, "default": 1}
