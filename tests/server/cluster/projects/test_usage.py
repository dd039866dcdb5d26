"""Slot-hours: from the placement to the end of each share, by calendar month."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import select

from server.app.periodic_work import periodic_work
from server.cluster.projects.queries import read_project
from server.cluster.projects.service import create_project
from server.cluster.projects.usage import USAGE_KEPT, RecentUsage, read_usage, split_by_month
from server.core.context import Context
from server.core.database.scheduler_tables import project_usage
from server.core.database.slot_tables import holdings
from server.core.liveness import beat
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.jobs.service import cancel, delete
from server.scheduler.rounds.leader import Leader
from server.scheduler.rounds.loop import Scheduler
from tests.actors import ADA
from tests.server.harness import Harness
from tests.server.statements import statements
from trainyard.protocol.rest.projects import ProjectRequest
from trainyard.protocol.states import DesiredState


def utc(*fields: int) -> datetime:
    return datetime(*fields, tzinfo=UTC)  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    ("since", "until", "parts"),
    [
        (utc(2026, 1, 5), utc(2026, 1, 6), [("2026-01", 86_400.0)]),
        (utc(2026, 1, 31, 23), utc(2026, 2, 1, 2), [("2026-01", 3600.0), ("2026-02", 7200.0)]),
        (utc(2026, 12, 31), utc(2027, 1, 1), [("2026-12", 86_400.0)]),
        (utc(2027, 1, 1), utc(2027, 1, 1, 1), [("2027-01", 3600.0)]),
        (utc(2026, 1, 2), utc(2026, 1, 1), []),
        (utc(2026, 1, 2), utc(2026, 1, 2), []),
    ],
)
def test_a_stretch_of_time_is_divided_at_the_ends_of_months(
    since: datetime, until: datetime, parts: list[tuple[str, float]]
) -> None:
    assert list(split_by_month(since, until)) == parts


def test_a_month_is_that_of_utc() -> None:
    east = timezone(timedelta(hours=9))
    (part,) = split_by_month(
        datetime(2026, 2, 1, 1, tzinfo=east), datetime(2026, 2, 1, 2, tzinfo=east)
    )
    assert part == ("2026-01", 3600.0)


def test_the_months_of_a_long_stretch_sum_to_it() -> None:
    since, until = utc(2023, 11, 17, 5, 3, 9), utc(2026, 3, 1, 0, 0, 1)
    parts = list(split_by_month(since, until))
    assert len(parts) == len({month for month, _ in parts}) == 29
    assert sum(seconds for _, seconds in parts) == (until - since).total_seconds()


def test_a_share_counts_from_its_placement_to_its_own_end(
    harness: Harness, context: Context
) -> None:
    """It starts in January and runs through February; its two shares end at different times."""
    harness.add_node("a", slots=2)
    harness.add_node("b", slots=2)
    harness.clock.advance(30 * 86_400 + 22 * 3600)  # 31 January, 22:00
    _, (first, second) = harness.running(resources={"world_size": 4, "nodes": 2})
    assert used(context) == 0
    harness.clock.advance(3 * 3600)  # 1 February, 01:00
    assert used(context) == 4
    first.end("succeeded")
    assert used(context) == 4
    harness.clock.advance(3600)
    assert used(context) == 2 + 2 * 2
    second.end("succeeded")
    harness.clock.advance(3600)
    assert used(context) == 2 + 2 * 2
    assert settled(context) == [("2026-01", 4 * 7200), ("2026-02", 6 * 3600)]
    assert held_seconds(context) == 4 * 7200 + 6 * 3600


def test_a_share_that_ends_before_it_began_used_nothing(harness: Harness, context: Context) -> None:
    """The clock of the server was set back."""
    harness.add_node(slots=2)
    _, (supervisor,) = harness.running()
    harness.clock.advance(-60)
    supervisor.end("succeeded")
    assert used(context) == held_seconds(context) == 0


def test_a_scheduler_sums_up_the_hours_once_in_some_rounds(
    harness: Harness, context: Context
) -> None:
    settings = ProjectRequest(name="vision", slot_hours_per_month=1.0)
    create_project(context, settings, actor=ADA)
    harness.add_node(slots=2)
    _, (supervisor,) = harness.running(project="vision")
    harness.submit(project="vision", resources={"world_size": 2, "min_world_size": 1})
    scheduler = Scheduler(
        context, harness.dispatcher, leader=Leader(context.database), work_of=periodic_work
    )
    with statements(context) as seen:
        for _ in range(4):
            assert scheduler.tick()
            harness.clock.advance(0.25)
    assert sum("FROM project_usage" in statement for statement in seen) == 1
    harness.clock.advance(USAGE_KEPT.total_seconds() + 3600)
    beat(context)
    assert scheduler.tick()
    assert supervisor.train(2) == DesiredState.STOP


def test_kept_hours_are_those_of_the_month_and_of_the_projects(
    harness: Harness, context: Context
) -> None:
    harness.add_node(slots=2)
    harness.clock.advance(31 * 86_400 - 2)  # 2 s before February
    harness.launched()
    harness.clock.advance(1)
    usage = RecentUsage().read
    with context.database.read() as connection:

        def hours(*projects: str) -> Mapping[str, float]:
            return usage(connection, context.now(), projects)

        assert hours("default") == {"default": 1 / 3600}
        assert hours("other") == {}
        assert hours("default") == {"default": 1 / 3600}
        harness.clock.advance(1)
        assert hours("default") == {"default": 0}
        harness.clock.advance(3)
        assert hours("default") == {"default": 0}
        harness.clock.advance(2)
        assert hours("default") == {"default": 5 / 3600}


def test_attempts_that_were_ended_unclaimed_count_and_stay_counted_without_their_job(
    harness: Harness, context: Context
) -> None:
    harness.add_node(slots=4)
    job_id = harness.submit(resources={"world_size": 2})
    assert harness.place() == 1
    harness.clock.advance(1800)
    cancel(context, job_id, actor=ADA, reason="")
    delete(context, job_id, actor=ADA, checkpoints="keep")
    assert used(context) == 1
    harness.launched()
    harness.clock.advance(3600)
    assert used(context) == 2
    assert read_project(context, "default", scope=SYSTEM_SCOPE).slot_hours_used == 2


def settled(context: Context) -> list[tuple[str, float]]:
    """Return the slot-seconds of ended shares by month."""
    query = select(project_usage.c.month, project_usage.c.slot_seconds).order_by("month")
    with context.database.read() as connection:
        return [(row.month, row.slot_seconds) for row in connection.execute(query)]


def held_seconds(context: Context) -> float:
    """Return the slot-seconds of ended shares in the history of slots."""
    query = select(holdings.c.slots, holdings.c.since, holdings.c.until)
    with context.database.read() as connection:
        rows = connection.execute(query).all()
    return float(sum(row.slots * (row.until - row.since).total_seconds() for row in rows))


def used(context: Context) -> float:
    with context.database.read() as connection:
        found = read_usage(connection, context.now(), ["default"])
        assert read_usage(connection, context.now(), ["other"]) == {}
    assert found.keys() <= {"default"}
    return found.get("default", 0.0)
