"""Values of an attempt's start step belong to the attempt that trained the step."""

from __future__ import annotations

from sqlalchemy import select

from server.core.database.metric_and_log_tables import metric_series
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.lineage import attempts_of, lineage_of
from server.jobs.checkpoints.deletion import Measured
from server.jobs.jobs.fork import fork
from server.jobs.jobs.resume import resume
from server.jobs.jobs.service import stop
from server.telemetry.metrics.charts import chart
from server.telemetry.metrics.lineage_values import measure
from tests.actors import ADA
from tests.server.harness import Harness, Supervisor
from tests.server.reports import chunk, json_lines, kept_events, metric_lines, send
from trainyard.protocol.rest.checkpoints import ForkRequest
from trainyard.protocol.rest.metrics_and_logs import CurveView
from trainyard.protocol.rest.resume import ResumeRequest

LOSS = "validation/loss"


def late_line(step: int, value: float, name: str = LOSS) -> bytes:
    record = {"step": step, "time": 2.0, "values": {name: value}, "data_digest": None}
    return json_lines([record])


def stopped(harness: Harness, *, validated: float | None = None) -> tuple[str, bytes]:
    """Stop a job that has saved step 6, and perhaps validated it; return its reports."""
    harness.add_node("node-1")
    job_id, (supervisor,) = harness.running(step=6)
    lines = metric_lines(1, 5) + metric_lines(
        6, 6, **({} if validated is None else {"validation__loss": validated})
    )
    send(harness.context, supervisor, chunk("metrics", lines))
    harness.commit_checkpoint(job_id, 6)
    stop(harness.context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    return job_id, lines


def resumed(harness: Harness, job_id: str) -> Supervisor:
    resume(harness.context, job_id, ResumeRequest(), actor=ADA)
    harness.pass_time(1)
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(job_id)
    supervisor.train(6)
    return supervisor


def curve(harness: Harness, job_id: str, name: str = LOSS) -> CurveView:
    (found,) = chart(harness.context, job_id, [name], scope=SYSTEM_SCOPE).curves
    return found


def best(harness: Harness, job_id: str) -> Measured:
    with harness.context.database.read() as connection:
        return measure(connection, lineage_of(attempts_of(connection, job_id)), LOSS, {6})


def test_a_value_that_is_made_up_belongs_to_the_step_of_the_stop(harness: Harness) -> None:
    job_id, _ = stopped(harness)
    supervisor = resumed(harness, job_id)
    assert best(harness, job_id).values == {}
    late = late_line(6, 2.5)
    send(harness.context, supervisor, chunk("metrics", late))
    assert best(harness, job_id).values == {6: 2.5}
    assert kept_events(harness.context, "continuity_checked") == [], "its first step is to come"
    send(harness.context, supervisor, chunk("metrics", metric_lines(7, 8), start=len(late)))
    found = curve(harness, job_id)
    assert (found.steps, found.last) == ([6], [2.5])
    assert curve(harness, job_id, "train/loss").steps == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [event["step"] for event in kept_events(harness.context, "continuity_checked")] == [7]


def test_a_value_that_the_step_has_stays(harness: Harness) -> None:
    job_id, _ = stopped(harness, validated=1.5)
    supervisor = resumed(harness, job_id)
    send(harness.context, supervisor, chunk("metrics", late_line(6, 2.5)))
    assert best(harness, job_id).values == {6: 1.5}


def test_it_goes_to_the_attempt_that_took_the_step_and_not_to_one_between(
    harness: Harness,
) -> None:
    """The second attempt is stopped before its first step, and saves its loaded state."""
    job_id, _ = stopped(harness)
    second = resumed(harness, job_id)
    harness.commit_checkpoint(job_id, 6)
    stop(harness.context, job_id, actor=ADA, reason="")
    second.end("stopped")
    third = resumed(harness, job_id)
    attempt = harness.attempt(job_id)
    assert (attempt.number, attempt.parent_checkpoint_id) == (3, f"{job_id}.a2.step-6")
    send(harness.context, third, chunk("metrics", late_line(6, 2.5)))
    assert best(harness, job_id).values == {6: 2.5}
    assert curve(harness, job_id).last == [2.5]


def test_a_fresh_start_keeps_its_values(harness: Harness) -> None:
    harness.add_node("node-1")
    job_id, (supervisor,) = harness.running()
    send(harness.context, supervisor, chunk("metrics", late_line(0, 4.0)))
    assert curve(harness, job_id).last == [4.0]


def test_a_fork_keeps_what_it_reports_of_its_start(harness: Harness) -> None:
    """Another job trained the step."""
    job_id, _ = stopped(harness)
    checkpoint = f"{job_id}.a1.step-6"
    _, forked = fork(harness.context, checkpoint, ForkRequest(name="forked"), actor=ADA)
    harness.pass_time(1)
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(forked)
    send(harness.context, supervisor, chunk("metrics", late_line(6, 2.5)))
    with harness.context.database.read() as connection:
        attempt = harness.attempt(forked).id
        series = metric_series.c
        found = select(series.name, series.last_step).where(series.attempt_id == attempt)
        assert connection.execute(found).all() == [(LOSS, 6)]
    assert best(harness, job_id).values == {}


def test_progress_has_all_values_of_the_newest_step(harness: Harness) -> None:
    harness.add_node("node-1")
    job_id, (supervisor,) = harness.running(step=5)
    lines = metric_lines(1, 6) + late_line(6, 2.5)
    send(harness.context, supervisor, chunk("metrics", lines))
    assert harness.job(job_id).progress.loss == 6.0
    (notice,) = kept_events(harness.context, "metrics")
    assert notice["values"] == {"train/loss": 6.0, LOSS: 2.5}
