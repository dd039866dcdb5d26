"""Spare nodes that left, and the reservation of others."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sqlalchemy import Connection, select

from server.cluster.projects.usage import ReadUsage
from server.core.context import Context
from server.core.database.slot_tables import holdings
from server.jobs.jobs.service import cancel
from server.scheduler.elastic.grow_jobs import Room, read_room
from server.scheduler.rounds import spares
from tests.actors import ADA
from tests.server.harness import Harness
from tests.server.periodic import Repeated
from tests.server.scheduler.elastic.spare_nodes import (
    FOUR,
    change,
    go_offline,
    look_for_spares,
    ranks_and_spares,
    with_spare,
)
from tests.server.statements import statements
from trainyard.protocol.rest.nodes import Drain
from trainyard.protocol.states import AttemptState, JobState


def test_a_spare_node_that_leaves_is_replaced_while_training_goes_on(harness: Harness) -> None:
    job_id, _ = with_spare(harness)
    change(harness, "c", notice="spot")
    assert harness.empty() == 0
    harness.keep_spares()
    assert ranks_and_spares(harness, job_id)[1] == []
    harness.add_node("d", slots=2)
    look_for_spares(harness)
    assert ranks_and_spares(harness, job_id)[1] == ["d"]
    assert harness.attempt(job_id).state == AttemptState.RUNNING
    look_for_spares(harness)
    assert ranks_and_spares(harness, job_id)[1] == ["d"]


@pytest.mark.parametrize(
    ("column", "useless", "usable"),
    [
        ("drain", Drain(running="finish", by="ada", at=datetime(2026, 1, 1, tzinfo=UTC)), None),
        ("withheld", {"1": "held by another program"}, {}),
    ],
)
def test_a_spare_node_that_is_usable_again_is_reserved_again(
    harness: Harness, column: str, useless: object, usable: object
) -> None:
    job_id, supervisors = with_spare(harness)
    change(harness, "c", **{column: useless})
    harness.clock.advance(7)
    look_for_spares(harness)
    assert ranks_and_spares(harness, job_id)[1] == []
    assert harness.job(job_id).spare_slots == 0
    change(harness, "c", **{column: usable})
    look_for_spares(harness)
    assert ranks_and_spares(harness, job_id)[1] == ["c"]
    assert harness.job(job_id).spare_slots == 2
    harness.clock.advance(9)
    for supervisor in supervisors:
        supervisor.end("succeeded")
    with harness.context.database.read() as connection:
        of_spares = holdings.c.spare & (holdings.c.job_id == job_id)
        rows = connection.execute(select(holdings).where(of_spares).order_by(holdings.c.since))
        assert [(row.until - row.since).total_seconds() for row in rows] == [7 + 5, 9]


def test_a_round_reads_once_where_no_spare_node_needs_anything(
    harness: Harness, context: Context
) -> None:
    with_spare(harness)
    harness.add_node("d", slots=4)
    change(harness, "c", slots=4, withheld={"3": "held by another program"})
    look_for_spares(harness)
    with statements(context) as seen:
        harness.keep_spares()
    assert len([each for each in seen if each.lstrip().startswith("SELECT")]) == 1
    assert not [each for each in seen if each.lstrip().startswith(("INSERT", "UPDATE", "DELETE"))]


def test_a_missing_spare_takes_no_node_that_a_waiting_job_needs(harness: Harness) -> None:
    job_id, _ = with_spare(harness)
    go_offline(harness, "c")
    harness.keep_spares()
    harness.add_node("d", slots=2)
    waiting = harness.submit(resources={"world_size": 6}, training=FOUR["training"])
    harness.place()
    look_for_spares(harness)
    assert ranks_and_spares(harness, job_id)[1] == []
    cancel(harness.context, waiting, actor=ADA, reason="")
    look_for_spares(harness)
    assert len(ranks_and_spares(harness, job_id)[1]) == 1


@pytest.fixture
def hurried(harness: Harness) -> None:
    """Limit a round to one step."""
    harness.reserving = Repeated(harness.clock, harness.spares.reserve, every=5.0, budget=0.0)


def three_without_spares(harness: Harness) -> list[str]:
    """Return jobs of one rank each whose spare nodes have left."""
    resources = {"world_size": 1, "nodes": 1, "spare_nodes": 1}
    found = []
    for number in range(3):
        for name in ("rank", "spare"):
            harness.add_node(f"{name}-{number}", slots=1)
        found.append(harness.running(resources=resources)[0])
        go_offline(harness, ranks_and_spares(harness, found[-1])[1][0])
    for _ in found:
        harness.keep_spares()
    return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
    """The times of reads of the slots that jobs may grow onto."""
    found: list[datetime] = []

    def counted(connection: Connection, now: datetime, usage: ReadUsage) -> Room | None:
        found.append(now)
        return read_room(connection, now, usage)

    monkeypatch.setattr(spares, "read_room", counted)
    return found


def test_jobs_of_one_tick_share_what_is_read(harness: Harness, reads: list[datetime]) -> None:
    found = three_without_spares(harness)
    for number in range(2):
        harness.add_node(f"new-{number}", slots=1)
    reads.clear()
    harness.clock.advance(5)
    harness.keep_spares()
    assert len(reads) == 1
    reserved = [each for job_id in found for each in ranks_and_spares(harness, job_id)[1]]
    assert sorted(reserved) == ["new-0", "new-1"]


@pytest.mark.usefixtures("hurried")
def test_the_search_goes_on_in_the_next_tick(harness: Harness, reads: list[datetime]) -> None:
    found = three_without_spares(harness)
    harness.clock.advance(5)
    for number in range(3):
        harness.add_node(f"new-{number}", slots=1)
    reads.clear()
    for count in (1, 2, 3):
        harness.keep_spares()
        harness.clock.advance(0.25)
        assert sum(harness.job(job_id).spare_slots for job_id in found) == count
        assert len(reads) == count
    reserved = {ranks_and_spares(harness, job_id)[1][0] for job_id in found}
    assert reserved == {"new-0", "new-1", "new-2"}


@pytest.mark.usefixtures("hurried")
def test_a_search_that_goes_on_takes_no_node_that_a_job_needs_by_now(harness: Harness) -> None:
    found = three_without_spares(harness)
    harness.clock.advance(5)
    for number in range(3):
        harness.add_node(f"new-{number}", slots=1)
    harness.keep_spares()
    waiting = harness.submit(resources={"world_size": 4})
    harness.place()
    assert harness.job(waiting).state == JobState.QUEUED
    for _ in range(3):
        harness.clock.advance(0.25)
        harness.keep_spares()
    assert sum(harness.job(job_id).spare_slots for job_id in found) == 1
