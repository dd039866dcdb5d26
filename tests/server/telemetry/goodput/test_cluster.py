"""The slot-time of a cluster from what the server stored, on both databases."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from sqlalchemy import Connection, insert, select, text, update

from server.cluster.nodes.changes import set_drain
from server.core.context import Context
from server.core.database.slot_tables import capacity_changes, holdings
from server.core.database.tables import attempts, nodes
from server.jobs.jobs import service
from server.jobs.jobs.resume import resume
from server.telemetry.goodput.capacity import CapacityKeeper
from server.telemetry.goodput.cluster import ClusterLedger
from server.telemetry.goodput.holdings import (
    FAILED_PAUSE,
    SETTLED_AFTER,
    Settler,
    due_jobs,
)
from server.telemetry.goodput.queries import JobRecords, records_of
from tests.actors import ADA
from tests.server.harness import Harness
from tests.server.statements import query_plan
from tests.server.telemetry.goodput.test_goodput import train
from trainyard.protocol.goodput import SLOT_CATEGORIES, ClusterGoodputView
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.run.failures import FailureReason


def spent(view: ClusterGoodputView) -> dict[str, float]:
    """Return the categories that have slot-time, in seconds; all sums are exact."""
    times = {each.category: each.slot_milliseconds for each in view.categories}
    assert list(times) == list(SLOT_CATEGORIES)
    assert sum(times.values()) == view.slot_milliseconds
    assert sum(day.slot_milliseconds for day in view.days) == view.slot_milliseconds
    for day in view.days:
        assert sum(each.slot_milliseconds for each in day.categories) == day.slot_milliseconds
    return {category.value: time / 1000 for category, time in times.items() if time}


def of_today(context: Context, *, project: str | None = None) -> ClusterGoodputView:
    today = context.now().date()
    return ClusterLedger(context).view(today - timedelta(days=1), today, project).result()


def failed_and_retried(harness: Harness, context: Context) -> str:
    """Run a job of 2 slots for 40 s: it fails after 10 steps, keeps 6 of them, and succeeds."""
    job_id, supervisors = harness.launched(training={"steps": 12}, resources={"world_size": 2})
    began = harness.clock.now().timestamp()
    train(context, harness.attempt(job_id).id, range(1, 11), began=began)
    harness.commit_checkpoint(job_id, 6)
    harness.clock.advance(10)
    for supervisor in supervisors:
        supervisor.end("failed", FailureReason.TRAINER_ERROR)
    harness.clock.advance(24)
    assert harness.place() == 1
    supervisors = harness.claim_all(job_id)
    train(context, harness.attempt(job_id).id, range(7, 13), began=harness.clock.now().timestamp())
    harness.clock.advance(6)
    for supervisor in supervisors:
        supervisor.end("succeeded")
    return job_id


EXPECTED = {
    "productive": 2 * 12 * 0.9,
    "data_wait": 2 * 12 * 0.1,
    "lost": 2 * 4,
    "idle": 4 * 40 - 32,
}


def test_held_and_idle_slots_of_a_job_with_a_fault(harness: Harness, context: Context) -> None:
    harness.add_node(slots=4)
    CapacityKeeper(context).run()
    job_id = failed_and_retried(harness, context)
    view = of_today(context)
    assert view.slot_milliseconds == 4 * 40_000
    assert spent(view) == pytest.approx(EXPECTED)
    assert view.goodput == pytest.approx(2 * 12 * 0.9 / 160)
    (project,) = view.projects
    assert (project.project, project.slot_milliseconds) == ("default", 32_000)
    of_project = {each.category.value: each.slot_milliseconds for each in project.categories}
    assert of_project == pytest.approx(
        {name: 1000 * time for name, time in EXPECTED.items() if name != "idle"}
    )
    # Two attempts of 10 and 6 s, each on one node.
    assert (view.failures, view.mttf_seconds) == (1, 16.0)
    assert view.failures_per_1000_node_days == pytest.approx(1000 * 86_400 / 16)
    assert view.mttf_lower_seconds == pytest.approx(16 / 4.744, rel=1e-3)
    assert of_today(context, project="other").failures == 0
    assert of_today(context, project="default").slot_milliseconds == 32_000
    assert of_today(context, project="other").slot_milliseconds == 0
    (losing,) = view.losing_jobs
    assert (losing.job_id, losing.lost_slot_milliseconds) == (job_id, 8_000)
    assert (losing.reason, losing.failures) == (FailureReason.TRAINER_ERROR, 1)


def test_a_settled_job_counts_the_same_and_outlives_its_deletion(
    harness: Harness, context: Context
) -> None:
    harness.add_node(slots=4)
    CapacityKeeper(context).run()
    job_id = failed_and_retried(harness, context)
    settler = Settler(context)
    settler.run()
    assert unsettled(context) == 2, "the last records may still arrive"
    harness.clock.advance(SETTLED_AFTER.total_seconds() + 1)
    before = spent(of_today(context))
    settler.run()
    assert unsettled(context) == 0
    assert spent(of_today(context)) == before
    service.delete(context, job_id, checkpoints="keep", actor=ADA)
    after = of_today(context)
    assert spent(after) == before
    assert [(job.name, job.failures) for job in after.losing_jobs] == [("tiny", 0)]


def test_a_resume_makes_a_settled_job_count_anew(harness: Harness, context: Context) -> None:
    harness.add_node(slots=4)
    CapacityKeeper(context).run()
    job_id = failed_and_retried(harness, context)
    harness.clock.advance(SETTLED_AFTER.total_seconds() + 1)
    Settler(context).run()
    back = ResumeRequest(checkpoint_id=f"{job_id}.a1.step-6")
    resume(context, job_id, back, actor=ADA)
    harness.place()
    assert spent(of_today(context))["lost"] == 2 * (4 + 6), "steps 7 to 12 are taken again"


def test_a_job_that_cannot_be_settled_waits_and_the_others_are_settled(
    harness: Harness,
    context: Context,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness.add_node(slots=4)
    broken, fine = ended_job(harness), ended_job(harness)
    harness.clock.advance(SETTLED_AFTER.total_seconds() + 1)

    def read(context: Context, connection: Connection, job_id: str) -> JobRecords:
        if job_id == broken:
            raise ValueError("a broken record")
        return records_of(context, connection, job_id)

    monkeypatch.setattr("server.telemetry.goodput.holdings.records_of", read)
    settler = Settler(context)
    settler.run()
    assert unsettled(context) == 1
    assert [record.getMessage() for record in caplog.records if record.exc_info] == [
        f"the slot-time of job {broken} is left out for {FAILED_PAUSE}"
    ]
    with context.database.read() as connection:
        assert connection.scalars(due_jobs(context.now())).all() == [broken]
        assert connection.scalars(due_jobs(context.now(), without=[broken])).all() == []
    monkeypatch.undo()
    settler.run()
    assert unsettled(context) == 1, "it is not read again at once"
    harness.clock.advance(FAILED_PAUSE.total_seconds())
    settler.run()
    assert unsettled(context) == 0
    assert fine != broken


def test_the_search_for_unsettled_jobs_reads_no_settled_ones(context: Context) -> None:
    if not context.database.is_sqlite:  # PostgreSQL scans tables of a few rows
        return
    plan = query_plan(context, "holdings", Settler(context).run)
    found = [step for step in plan if "holdings" in step or " jobs" in step]
    assert len(found) == 2, found
    assert "ix_holdings_unsettled" in found[0]
    assert "SEARCH jobs" in found[1]
    assert "(id=?)" in found[1]


def test_a_clock_that_is_set_back_stops_neither_settling_nor_the_record_of_nodes(
    harness: Harness, context: Context
) -> None:
    node = harness.add_node(slots=4)
    keeper, settler = CapacityKeeper(context), Settler(context)
    ended_job(harness)
    harness.clock.advance(SETTLED_AFTER.total_seconds() + 3_600)
    set_drain(context, node, "finish", actor=ADA)
    settler.run()
    keeper.run()
    assert unsettled(context) == 0
    harness.clock.advance(-1_800)
    set_drain(context, node, None, actor=ADA)
    ended_job(harness)
    keeper.run()
    CapacityKeeper(context).run()
    with context.database.read() as connection:
        query = select(capacity_changes.c.takes_jobs).order_by(capacity_changes.c.since)
        assert list(connection.scalars(query)) == [False, True]
    harness.clock.advance(SETTLED_AFTER.total_seconds() + 1)
    assert unsettled(context) == 1
    settler.run()
    assert unsettled(context) == 0


def ended_job(harness: Harness) -> str:
    """Run a job that ends after a second, and return its id."""
    job_id, (supervisor,) = harness.launched()
    harness.clock.advance(1)
    supervisor.end("succeeded")
    return job_id


def unsettled(context: Context) -> int:
    with context.database.read() as connection:
        rows = connection.execute(select(holdings.c.spent).where(holdings.c.spent.is_(None)))
        return len(rows.all())


def test_a_share_that_has_not_ended_counts_to_now(harness: Harness, context: Context) -> None:
    harness.add_node(slots=4)
    CapacityKeeper(context).run()
    harness.launched(resources={"world_size": 3})
    harness.clock.advance(7)
    assert spent(of_today(context)) == {"startup": 21.0, "idle": 7.0}


def test_capacity_changes_once_for_each_change_of_a_node(
    harness: Harness, context: Context
) -> None:
    node = harness.add_node(slots=4)
    keeper = CapacityKeeper(context)
    for _ in range(3):
        keeper.run()
        harness.clock.advance(10)
    set_drain(context, node, "finish", actor=ADA)
    keeper.run()
    harness.clock.advance(5)
    set_drain(context, node, None, actor=ADA)
    CapacityKeeper(context).run()  # another scheduler continues
    harness.clock.advance(5)
    assert spent(of_today(context)) == {"idle": 4 * 35.0, "drained": 4 * 5.0}
    with context.database.read() as connection:
        assert len(connection.execute(select(capacity_changes)).all()) == 3


def test_slots_that_are_withheld_are_not_idle(harness: Harness, context: Context) -> None:
    harness.add_node(slots=4)
    keeper = CapacityKeeper(context)
    keeper.run()
    harness.clock.advance(10)
    with context.database.write() as connection:
        connection.execute(update(nodes).values(withheld={"1": "another program holds 2 GiB"}))
    keeper.run()
    harness.clock.advance(5)
    assert spent(of_today(context)) == {"idle": 4 * 10.0 + 3 * 5.0, "withheld": 5.0}


def test_failures_are_counted_by_reasons_that_need_not_be_read(
    harness: Harness, context: Context
) -> None:
    """All counts of an answer use one definition of failure: a preemption is no failure."""
    harness.add_node(slots=4)
    CapacityKeeper(context).run()
    job_id = failed_and_retried(harness, context)
    reasons = [FailureReason.PREEMPTED, "of another version", "of another version", None]
    with context.database.write() as connection:
        copied = dict(connection.execute(select(attempts)).mappings().first() or {})
        rows = [
            {**copied, "id": context.new_id(), "number": number, "failure": None}
            for number, _ in enumerate(reasons, start=3)
        ]
        outcome = {"outcome": "failed", "state": "ended", "ended_at": context.now()}
        connection.execute(insert(attempts), [row | outcome for row in rows])
        for row, reason in zip(rows, reasons, strict=True):
            if reason is not None:
                stored = text("UPDATE attempts SET failure = :failure WHERE id = :id")
                failure = json.dumps({"reason": reason, "a field that came later": 1})
                connection.execute(stored, {"failure": failure, "id": row["id"]})
    harness.clock.advance(1)
    view = of_today(context)
    assert view.failures == 4, "all but the preempted one"
    (losing,) = view.losing_jobs
    assert (losing.job_id, losing.failures) == (job_id, 4)
    assert losing.reason == FailureReason.TRAINER_ERROR, "the most frequent one that is known"
    assert of_today(context, project="default").failures == 4
    assert of_today(context, project="other").failures == 0
