"""The queue: at any length, every slot is considered and every job has a reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import func, insert, select, text, update

from server.cluster.placement.decide import Decisions, decide
from server.cluster.placement.demand import QueuedJob
from server.core.context import Context
from server.core.database.scheduler_tables import demands
from server.core.database.tables import jobs, nodes, notices
from server.jobs.jobs.service import stop
from server.jobs.queue import heads
from server.jobs.queue.groups import forget_groups, put_off
from server.jobs.queue.heads import FIRST_AT_ONCE, NOTIFIED
from server.scheduler.rounds import round as scheduling_round
from server.scheduler.rounds.round import DECIDE_AGAIN_SECONDS, Placer
from tests.actors import ADA
from tests.server.harness import Harness
from tests.server.statements import statements
from trainyard.base.ids import make_id
from trainyard.protocol.states import JobState
from trainyard.run.failures import FailureReason


def fill(harness: Harness, count: int, like: str) -> list[str]:
    """Queue copies of a queued job behind it; return their ids."""
    now = harness.clock.now()
    with harness.context.database.write() as connection:
        row = connection.execute(select(jobs).where(jobs.c.id == like)).one()
        copies = [
            row._asdict()
            | {
                "id": make_id(milliseconds=number, entropy=row.id[-10:].encode()),
                "name": f"copy-{number}",
                "queued_at": now,
            }
            for number in range(count)
        ]
        connection.execute(insert(jobs), copies)
    return [copy["id"] for copy in copies]


def notices_since(context: Context, seq: int) -> tuple[int, int]:
    """Return the count of notices changed after one, and the number of the newest."""
    with context.database.read() as connection:
        later = select(func.count(), func.max(notices.c.seq)).where(notices.c.kind == "waiting")
        count, newest = connection.execute(later.where(notices.c.seq > seq)).one()
        return count, newest


def reasons(context: Context) -> list[str | None]:
    with context.database.read() as connection:
        return list(connection.scalars(select(demands.c.reason).order_by(demands.c.key)))


def groups(context: Context) -> set[str]:
    with context.database.read() as connection:
        return set(connection.scalars(select(demands.c.key)))


def own_reason(context: Context, job_id: str) -> str | None:
    """Return the reason in the job's row."""
    with context.database.read() as connection:
        return connection.scalar(select(jobs.c.reason).where(jobs.c.id == job_id))


def set_online(context: Context, name: str, *, online: bool) -> None:
    values = {"offline_since": None if online else context.now()}
    with context.database.write() as connection:
        connection.execute(update(nodes).where(nodes.c.name == name).values(values))


def test_jobs_that_fit_nowhere_starve_no_other(harness: Harness, context: Context) -> None:
    harness.add_node("gpu", slots=4, device="cuda")
    harness.add_node("small", slots=1)
    set_online(context, "gpu", online=False)
    first = harness.submit(resources={"world_size": 4, "device": "cuda"})
    older = [first, *fill(harness, 1000, first)]
    harness.clock.advance(1)
    small = harness.submit(resources={"world_size": 1, "device": "cpu"})
    harness.clock.advance(1)
    behind = harness.submit(resources={"world_size": 1, "device": "cpu"})
    while harness.place() == 0:
        assert harness.job(small).demand is None, "every job has come into its group"
    assert harness.job(small).state == JobState.STARTING
    harness.place()
    for job_id in (older[0], older[500], older[-1]):
        job = harness.job(job_id)
        assert job.reason == "needs 4 cuda slots; no node that is online has cuda slots"
    assert harness.job(behind).reason == "needs 1 cpu slot, 0 free, 1 held by tiny"


def test_a_round_costs_the_same_however_many_wait(harness: Harness, context: Context) -> None:
    harness.add_node("a", slots=1)
    first = harness.submit(resources={"world_size": 1})
    copies = fill(harness, 300, first)
    assert harness.place() == 1
    told, newest = notices_since(context, 0)
    assert told == 300, "each reason is published once"
    assert harness.place() == 0
    with statements(context) as idle:
        assert harness.place() == 0
    assert len(idle) <= 9, idle  # BEGIN of each transaction included
    assert not any(text.startswith(("UPDATE", "INSERT")) for text in idle)
    set_online(context, "a", online=False)
    with statements(context) as changed:
        assert harness.place() == 0
    assert sum(text.startswith(("UPDATE", "INSERT")) for text in changed) == 2
    assert notices_since(context, newest)[0] == NOTIFIED
    assert harness.job(copies[-1]).reason == "no node is online that takes new work"


def test_more_than_one_round_can_place_start_in_their_order(
    harness: Harness, context: Context
) -> None:
    harness.add_node("a", slots=FIRST_AT_ONCE + 10)
    first = harness.submit(resources={"world_size": 1})
    copies = fill(harness, FIRST_AT_ONCE + 5, first)
    harness.clock.advance(1)
    last = harness.submit(resources={"world_size": 2})
    assert harness.place() == FIRST_AT_ONCE
    assert harness.job(last).state == JobState.QUEUED, "it overtakes no other job"
    assert harness.job(copies[-1]).state == JobState.QUEUED
    assert harness.place() == 7
    assert harness.job(last).state == JobState.STARTING


def test_many_groups_are_placed_by_one_round(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the first jobs, one job of each group is read; the others are omitted and kept."""
    monkeypatch.setattr(heads, "HEADS_AT_ONCE", 1)
    monkeypatch.setattr(heads, "FIRST_AT_ONCE", 7)
    monkeypatch.setattr(heads, "NOTIFIED", 1)
    harness.add_node("a", slots=30)
    queued = []
    for size in (1, 2, 3) * 3:
        harness.clock.advance(1)
        queued.append(harness.submit(resources={"world_size": size}))

    assert harness.place() == 7
    assert [harness.job(job_id).state for job_id in queued[7:]] == [JobState.QUEUED] * 2
    assert harness.place() == 2


def test_a_job_that_is_queued_again_is_looked_at_anew(harness: Harness, context: Context) -> None:
    harness.add_node("a", slots=2)
    job_id, (supervisor,) = harness.running(retry={"backoff_seconds": 60})
    before = groups(context)
    harness.commit_checkpoint(job_id, 1)
    supervisor.end("failed", FailureReason.HANG)
    assert harness.job(job_id).demand is None
    harness.place()
    assert harness.job(job_id).reason == "retry 1 of 2 in 60 s after hang"
    harness.clock.advance(61)
    assert harness.place() == 1
    assert groups(context) > before, "it is bound to the storage of its checkpoint"


def test_a_waiting_job_has_its_reason_in_one_place(harness: Harness, context: Context) -> None:
    harness.add_node("a", slots=2)
    job_id, (supervisor,) = harness.running(retry={"backoff_seconds": 60})
    supervisor.end("failed", FailureReason.HANG)
    assert own_reason(context, job_id) == "retry 1 of 2 in 60 s after hang"
    harness.submit(resources={"world_size": 2})
    assert harness.place() == 1
    harness.clock.advance(61)
    harness.place()
    assert harness.job(job_id).reason == "needs 1 slot, 0 free, 2 held by tiny"
    assert own_reason(context, job_id) is None
    stop(context, job_id, actor=ADA, reason="enough")
    assert (harness.job(job_id).reason, harness.job(job_id).demand) == ("enough", None)


def test_an_unreadable_job_keeps_no_other_from_its_slots(
    harness: Harness, context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    harness.add_node("a", slots=1)
    broken, whole = harness.submit(), harness.submit()
    harness.spoil_spec(broken)
    assert harness.place() == 1
    assert harness.job(whole).state == JobState.STARTING
    assert f"the stored spec of job {broken} cannot be read" in caplog.text
    assert "of_a_later_version" in (own_reason(context, broken) or "")
    caplog.clear()
    assert harness.place() == 0
    assert broken not in caplog.text, "it is read again after a pause"
    _, newest = notices_since(context, 0)
    harness.clock.advance(16)
    harness.place()
    assert broken in caplog.text
    assert notices_since(context, newest)[0] == 0, "live views have the reason"


def test_a_job_that_becomes_unreadable_in_its_group_leaves_it(
    harness: Harness, context: Context
) -> None:
    broken = harness.submit()
    harness.clock.advance(1)
    whole = harness.submit()
    assert harness.place() == 0  # both are in a group now
    harness.spoil_spec(broken)  # as for a server that was downgraded
    harness.add_node("a", slots=1)
    harness.place()
    assert "of_a_later_version" in (own_reason(context, broken) or "")
    assert harness.place() == 1
    assert harness.job(whole).state == JobState.STARTING


def test_a_job_that_is_queued_anew_meanwhile_is_not_put_off(
    harness: Harness, context: Context
) -> None:
    harness.add_node("a", slots=1)
    job_id = harness.submit()
    before = harness.job(job_id).queued_at
    harness.clock.advance(1)
    with context.database.write() as connection:  # as a stop and a resume do
        connection.execute(update(jobs).values(queued_at=harness.clock.now()))
        put_off(context, connection, [(job_id, before, "of its former launch")])
    assert harness.place() == 1


def test_the_reason_of_an_unreadable_job_holds_no_credentials(
    harness: Harness, context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    broken, without_launch = harness.submit(), harness.submit()
    with context.database.write() as connection:
        connection.execute(
            text("UPDATE jobs SET spec = :spec WHERE id = :id"),
            {"spec": '{"name": "tiny", "mirror": "s3://key:s3cret@bucket"}', "id": broken},
        )
        connection.execute(update(jobs).where(jobs.c.id == without_launch).values(pending=None))
    harness.place()
    assert "cannot be read" in (own_reason(context, without_launch) or "")
    reason = own_reason(context, broken) or ""
    assert "mirror" in reason
    assert "s3cret" not in reason + caplog.text
    assert "\n" not in reason


def test_groups_without_a_job_are_forgotten(harness: Harness, context: Context) -> None:
    job_id = harness.submit(resources={"world_size": 3})
    harness.place()
    assert forget_groups(context) == 0
    assert len(reasons(context)) == 1
    harness.add_node("a", slots=4)
    assert harness.place() == 1
    assert forget_groups(context) == 1
    other = harness.submit(resources={"world_size": 3})
    harness.place()
    with context.database.write() as connection:  # like a scheduler that has just lost its lead
        connection.execute(demands.delete())
    assert harness.place() == 0
    forget_groups(context)
    harness.place()
    assert harness.job(other).reason == "needs 3 slots, 1 free, 3 held by tiny"
    assert harness.job(job_id).reason is None


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_scheduler_that_starts_finds_the_groups(harness: Harness, context: Context) -> None:
    harness.add_node("a", slots=1)
    harness.submit()
    assert harness.place() == 1
    waiting = harness.submit()
    harness.place()
    assert Placer(context, harness.dispatcher).run() == 0
    assert harness.job(waiting).reason == "needs 1 slot, 0 free, 1 held by tiny"


@pytest.fixture
def four_demands_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round considers two demands first, and two others in turn."""
    monkeypatch.setattr(heads, "DEMANDS_AT_ONCE", 4)
    monkeypatch.setattr(heads, "FIRST_DEMANDS", 2)


def fit_nowhere(harness: Harness, count: int) -> list[str]:
    """Queue jobs that fit nowhere, each with another demand; return their ids."""
    sections = [{"node_selector": {"zone": f"z{number}"}} for number in range(count)]
    found = [harness.submit(resources=section) for section in sections]
    harness.clock.advance(1)
    return found


@pytest.mark.usefixtures("four_demands_at_once")
def test_no_number_of_different_demands_makes_a_round_longer_or_hides_a_job(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    considered: list[int] = []

    def counted(queue: Sequence[QueuedJob], *args: Any, **kwargs: Any) -> Decisions:
        considered.append(len({job.demand for job in queue}))
        return decide(queue, *args, **kwargs)

    monkeypatch.setattr(scheduling_round, "decide", counted)
    harness.add_node()
    odd = fit_nowhere(harness, 9)
    job_id = harness.submit()
    assert sum(harness.place() for _ in range(5)) == 1
    assert harness.job(job_id).state == JobState.STARTING
    assert considered == [4] * 5
    assert all("no node that is online has the labels" in harness.job(each).reason for each in odd)


@pytest.mark.usefixtures("four_demands_at_once")
def test_rounds_rest_once_they_have_considered_all_demands(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    considered: list[set[str]] = []

    def counted(queue: Sequence[QueuedJob], *args: Any, **kwargs: Any) -> Decisions:
        considered.append({job.id for job in queue})
        return decide(queue, *args, **kwargs)

    monkeypatch.setattr(scheduling_round, "decide", counted)
    harness.add_node("a", slots=1)
    holding = harness.running()[1][0]
    considered.clear()
    waiting = {*fit_nowhere(harness, 9), harness.submit()}
    for _ in range(2):
        for _ in range(20):
            assert harness.place() == 0
        assert 3 <= len(considered) <= 10
        assert set.union(*considered) == waiting
        considered.clear()
        harness.clock.advance(DECIDE_AGAIN_SECONDS)
    assert harness.place() == 0
    harness.submit(resources={"node_selector": {"zone": "another"}})
    holding.end("succeeded")
    assert sum(harness.place() for _ in range(10)) == 1, "a change in the midst of a turn"


@pytest.mark.usefixtures("four_demands_at_once")
def test_demands_that_fit_nowhere_keep_no_large_job_from_its_nodes(harness: Harness) -> None:
    """Each round considers small jobs with other demands behind the large one."""
    harness.add_node("a", slots=4)
    holding = [harness.running()[1][0] for _ in range(4)]
    fit_nowhere(harness, 2)
    large = harness.submit(resources={"world_size": 4})
    harness.clock.advance(1)
    behind = [harness.submit(resources={"exclude_nodes": [f"x{number}"]}) for number in range(30)]
    for _ in range(8):
        harness.place()
        started = {each for each in behind if harness.job(each).state == JobState.STARTING}
        behind = [each for each in behind if each not in started]
        holding += [supervisor for each in started for supervisor in harness.claim_all(each)]
        if harness.job(large).state == JobState.STARTING:
            break
        holding.pop(0).end("succeeded")
    assert harness.job(large).state == JobState.STARTING


@pytest.mark.usefixtures("four_demands_at_once")
def test_a_new_demand_at_the_head_of_the_queue_is_considered_at_once(harness: Harness) -> None:
    harness.add_node("a", slots=4)
    _, (supervisor,) = harness.running(resources={"world_size": 4})
    sections = [{"world_size": size, "priority": "low"} for size in (4, 3, 2, 1)]
    for section in sections:  # all of them keep nodes
        harness.submit(resources=section)
    fit_nowhere(harness, 9)
    for _ in range(9):
        assert harness.place() == 0
    first = harness.submit(resources={"world_size": 4, "device": "cpu", "priority": "high"})
    supervisor.end("succeeded")
    assert harness.place() == 1
    assert harness.job(first).state == JobState.STARTING
