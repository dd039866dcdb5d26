"""Jobs that ended long ago are deleted in parts; a needed one stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import func, select, update

from server.core.context import Context
from server.core.database.metric_and_log_tables import log_blocks
from server.core.database.schema import metadata
from server.core.database.slot_tables import holdings
from server.core.database.tables import checkpoints, events, jobs
from server.jobs.checkpoints.service import set_pin
from server.jobs.jobs.fork import fork
from server.jobs.jobs.resume import resume
from server.scheduler.retention import forget_jobs
from server.scheduler.retention.forget_jobs import JobPruner, LogPruner
from server.telemetry.goodput.holdings import SETTLED_AFTER, Settler
from tests.actors import ADA
from tests.server.harness import Harness
from tests.server.periodic import Repeated
from tests.server.reports import chunk, metric_lines, send
from trainyard.protocol.rest.checkpoints import ForkRequest
from trainyard.protocol.rest.resume import ResumeRequest

DAY = 86_400
OF_JOBS = (
    *("jobs", "attempts", "attempt_nodes", "metric_series", "metric_tails", "metric_chunks"),
    *("step_digests", "logs", "log_blocks", "notices", "idempotency_keys"),
)


def ended(harness: Harness, *, outcome: str = "succeeded", steps: int = 3, **sections: Any) -> str:
    """Return a job that trained, logged and ended."""
    job_id, (supervisor,) = harness.running(**sections)
    output = b"".join(b"line %d\n" % number for number in range(500))
    send(
        harness.context,
        supervisor,
        chunk("metrics", metric_lines(1, steps)),
        chunk("log:0", output),
    )
    supervisor.end(outcome)
    harness.clock.advance(1)
    return job_id


def forgotten(context: Context) -> int:
    """Delete old jobs; return their number."""
    return int(Repeated(context.clock, JobPruner(context).run).run())


def settled(harness: Harness) -> None:
    """Store the ledgers of the ended jobs."""
    harness.clock.advance(SETTLED_AFTER.total_seconds() + 1)
    Settler(harness.context).run()


def counts(context: Context) -> Mapping[str, int]:
    with context.database.read() as connection:
        return {
            table.name: connection.scalar(select(func.count()).select_from(table)) or 0
            for table in metadata.sorted_tables
        }


def job_ids(context: Context) -> list[str]:
    with context.database.read() as connection:
        return list(connection.scalars(select(jobs.c.id).order_by(jobs.c.id)))


@pytest.fixture
def node(harness: Harness) -> None:
    harness.add_node()


@pytest.mark.usefixtures("node")
def test_a_job_goes_with_all_its_rows_half_a_year_after_its_end(
    context: Context, harness: Harness
) -> None:
    job_id = ended(harness)
    settled(harness)
    pruner = Repeated(harness.clock, JobPruner(context).run)
    harness.clock.advance(729 * DAY)
    assert pruner.run() == 0
    harness.clock.advance(2 * DAY)
    before = counts(context)
    assert before["log_blocks"]
    assert pruner.run() == 1
    after = counts(context)
    assert {name: after[name] for name in OF_JOBS} == dict.fromkeys(OF_JOBS, 0)
    with context.database.read() as connection:
        (event,) = connection.execute(select(events).where(events.c.job_id == job_id))
        assert (event.kind, event.actor) == ("job_deleted", "retention")
        held = connection.scalar(select(func.count()).select_from(holdings))
    assert held == 1, "the cluster's slot-time outlives the job"


def pinned(context: Context, harness: Harness) -> str:
    job_id, (supervisor,) = harness.running(step=9)
    checkpoint = harness.commit_checkpoint(job_id, 4)
    set_pin(context, checkpoint, pinned=True, actor=ADA)
    supervisor.end("succeeded")
    return job_id


def with_a_checkpoint(context: Context, harness: Harness) -> str:
    job_id, (supervisor,) = harness.running(step=9)
    harness.commit_checkpoint(job_id, 4)
    supervisor.end("failed")
    return job_id


def parent(context: Context, harness: Harness) -> str:
    job_id, (supervisor,) = harness.running(step=9)
    checkpoint = harness.commit_checkpoint(job_id, 4)
    supervisor.end("succeeded")
    fork(context, checkpoint, ForkRequest(), actor=ADA)
    with context.database.write() as connection:  # its files are gone, and its fork goes on
        connection.execute(checkpoints.delete())
    return job_id


def tagged(context: Context, harness: Harness) -> str:
    return ended(harness, tags=["keep", "paper"])


def resumed(context: Context, harness: Harness) -> str:
    job_id = ended(harness, outcome="failed")
    resume(context, job_id, ResumeRequest(), actor=ADA)
    return job_id


def running(context: Context, harness: Harness) -> str:
    return harness.running()[0]


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    "make", [pinned, with_a_checkpoint, parent, tagged, running], ids=lambda make: make.__name__
)
def test_a_job_that_something_needs_stays(
    context: Context, harness: Harness, make: Callable[[Context, Harness], str]
) -> None:
    job_id = make(context, harness)
    settled(harness)
    harness.clock.advance(1000 * DAY)
    forgotten(context)
    assert job_id in job_ids(context)


@pytest.mark.usefixtures("node")
def test_an_end_whose_slot_time_is_not_settled_waits(context: Context, harness: Harness) -> None:
    ended(harness)
    harness.clock.advance(1000 * DAY)
    assert forgotten(context) == 0
    settled(harness)
    assert forgotten(context) == 1


@pytest.mark.usefixtures("node")
def test_a_large_job_goes_in_parts_and_the_next_round_goes_on(
    context: Context, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ended(harness, steps=90), ended(harness)
    settled(harness)
    harness.clock.advance(1000 * DAY)
    monkeypatch.setattr(forget_jobs, "ROWS_AT_ONCE", 10)
    pruner = Repeated(harness.clock, JobPruner(context).run, budget=0.0)
    rounds = 0
    while job_ids(context):
        pruner.run()
        rounds += 1
        assert rounds < 100
        assert second in job_ids(context) or first not in job_ids(context)
    assert rounds > 3
    assert counts(context)["metric_tails"] == 0


@pytest.mark.usefixtures("node")
def test_an_imported_run_has_a_time_of_its_own_and_zero_keeps_all(
    context: Context, harness: Harness
) -> None:
    job_id = ended(harness)
    settled(harness)
    with context.database.write() as connection:
        connection.execute(update(jobs).values(imported_from="wandb"))
    harness.clock.advance(729 * DAY)
    assert forgotten(context) == 0
    never = context.settings.model_copy(update={"imports_kept_days": 0.0})
    harness.clock.advance(2 * DAY)
    assert forgotten(replace(context, settings=never)) == 0
    assert job_ids(context) == [job_id]
    assert forgotten(context) == 1


@pytest.mark.usefixtures("node")
def test_one_job_that_cannot_be_deleted_keeps_no_other(
    context: Context, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ended(harness), ended(harness)
    settled(harness)
    harness.clock.advance(1000 * DAY)
    trimmed = forget_jobs._trimmed

    def fails(connection: object, job_id: str) -> bool:
        if job_id == first:
            raise ValueError("a row cannot be read")
        return trimmed(connection, job_id)  # type: ignore[arg-type]

    monkeypatch.setattr(forget_jobs, "_trimmed", fails)
    assert forgotten(context) == 1
    assert job_ids(context) == [first]
    assert second


@pytest.mark.usefixtures("node")
def test_logs_of_a_job_that_stays_go_and_its_series_stay(
    context: Context, harness: Harness
) -> None:
    with_a_checkpoint(context, harness)
    ended(harness)
    tagged(context, harness)
    pruner = LogPruner(context)
    before = counts(context)
    assert pruner.prune() == 0
    harness.clock.advance(366 * DAY)
    while pruner.prune():
        pass
    after = counts(context)
    assert 0 < after["log_blocks"] < before["log_blocks"], "those of the tag stay"
    assert after["metric_tails"] == before["metric_tails"]
    with context.database.read() as connection:
        assert connection.scalar(select(func.count()).select_from(log_blocks)) == 1
