"""The ledger of a job from stored rows, on both databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, insert, select, update

from server.core.context import Context
from server.core.database.metric_and_log_tables import metric_chunks, metric_series
from server.core.database.tables import attempts
from server.core.errors import NotFoundError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.jobs.service import stop
from server.telemetry.goodput import step_sums
from server.telemetry.goodput.queries import goodput_view
from server.telemetry.goodput.step_sums import (
    ATTEMPTS_AT_ONCE,
    DATA,
    STEP,
    RecordedSteps,
    read_trainings,
)
from server.telemetry.metrics import points, series, store
from server.telemetry.metrics.points import Points
from server.telemetry.metrics.store import store_points
from tests.actors import ADA
from tests.server.harness import BRINGS_CODE, Harness
from tests.server.records import add_attempt, add_job
from trainyard.protocol.goodput import GoodputView
from trainyard.run.failures import FailureReason


def spent(view: GoodputView) -> dict[str, int]:
    """Return the categories that have time."""
    assert sum(each.milliseconds for each in view.categories) == view.wall_milliseconds
    assert view.wall_milliseconds == (view.until - view.since) // timedelta(milliseconds=1)
    return {each.category.value: each.milliseconds for each in view.categories if each.milliseconds}


def train(
    context: Context, attempt_id: str, steps: range, *, began: float, **durations: dict[int, float]
) -> None:
    """Store steps of one second each, with a tenth of the time waiting for data."""
    listed = list(steps)
    times = [began + 1 + index for index in range(len(listed))]
    by_name = {
        STEP: Points.of(listed, times, [1.0] * len(listed)),
        DATA: Points.of(listed, times, [0.1] * len(listed)),
    }
    for name, at in durations.items():
        seconds = Points.of(at, [began] * len(at), at.values())
        by_name[f"{name}/{'stall_' if name == 'checkpoint' else ''}seconds"] = seconds
    with context.database.write() as connection:
        store_points(connection, attempt_id, by_name)


def test_a_job_with_a_fault(harness: Harness, context: Context) -> None:
    """Ten steps, a save at step 6, a fault; a retry repeats steps 7 to 10 and adds two."""
    harness.add_node()
    job_id = harness.submit(training={"steps": 12})
    harness.clock.advance(3)
    harness.place()
    harness.clock.advance(5)
    (supervisor,) = harness.claim_all(job_id)
    began = harness.clock.now().timestamp()
    train(
        context,
        harness.attempt(job_id).id,
        range(1, 11),
        began=began,
        compile={1: 0.5},
        checkpoint={1: 2.0, 7: 0.25},
    )
    harness.commit_checkpoint(job_id, 6)
    harness.clock.advance(12)
    supervisor.end("failed", FailureReason.TRAINER_ERROR)
    before = spent(goodput_view(context, job_id, scope=SYSTEM_SCOPE))
    assert before["productive"] == 6_000 - 600 - 500
    assert before["lost"] == 4_000, "no attempt can begin after the newest checkpoint"
    backoff = (harness.job(job_id).not_before - harness.clock.now()).total_seconds()
    harness.clock.advance(backoff + 2)
    harness.place()
    harness.clock.advance(4)
    (supervisor,) = harness.claim_all(job_id)
    began = harness.clock.now().timestamp()
    train(context, harness.attempt(job_id).id, range(7, 13), began=began, validation={12: 0.75})
    harness.clock.advance(8)
    supervisor.end("succeeded")
    harness.clock.advance(3_600)  # after the end no time passes for the job
    view = goodput_view(context, job_id, scope=SYSTEM_SCOPE)
    assert spent(view) == {
        "queued": 3_000,
        "startup": 5_000 + 4_000,
        "compilation": 500,
        "productive": 12_000 - 1_200 - 500,
        "data_wait": 1_200,
        "save_stall": 250,
        "lost": 4_000,
        "other": 2_000 - 250,
        "backoff": round(backoff * 1000),
        "requeued": 2_000,
        "validation": 750,
        "ending": 2_000 - 750,
    }
    assert view.failures == 1
    assert view.mttf_seconds == 17 + 12
    assert view.goodput == pytest.approx(10.3 / (34 + backoff))
    assert view.ettr == pytest.approx((12 - 0.5 + 0.25 + 0.75) / (34 + backoff))


@BRINGS_CODE
def test_a_program_that_logs_no_times_has_no_goodput(harness: Harness, context: Context) -> None:
    harness.add_node()
    job_id = harness.submit(program={"command": ["train.py"]})
    harness.place()
    harness.clock.advance(5)
    (supervisor,) = harness.claim_all(job_id)
    view = goodput_view(context, job_id, scope=SYSTEM_SCOPE)
    assert (spent(view), view.goodput, view.ettr) == ({"startup": 5_000}, 0.0, 0.0)
    with context.database.write() as connection:
        connection.execute(update(attempts).values(last_step=7))
    harness.clock.advance(5)
    supervisor.end("succeeded")
    view = goodput_view(context, job_id, scope=SYSTEM_SCOPE)
    assert (spent(view), view.goodput, view.ettr) == ({"other": 10_000}, None, None)


def test_a_stopped_job_has_an_end_and_a_waiting_one_has_none(
    harness: Harness, context: Context
) -> None:
    job_id = harness.submit()
    harness.clock.advance(1.5)
    assert spent(goodput_view(context, job_id, scope=SYSTEM_SCOPE)) == {"queued": 1_500}
    stop(context, job_id, actor=ADA, reason="")
    harness.clock.advance(10)
    view = goodput_view(context, job_id, scope=SYSTEM_SCOPE)
    assert spent(view) == {"queued": 1_500}
    assert (view.goodput, view.ettr, view.mttf_seconds) == (0.0, 0.0, None)


def test_a_job_that_is_not_there(context: Context) -> None:
    with pytest.raises(NotFoundError, match="no job has the id"):
        goodput_view(context, context.new_id(), scope=SYSTEM_SCOPE)


@given(
    gaps=st.lists(st.integers(1, 4), min_size=1, max_size=60),
    start=st.integers(0, 40),
    cut=st.integers(-1, 200),
    strange=st.sets(st.integers(0, 59), max_size=5),
    unsummed=st.booleans(),
)
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_sums_of_chunks_are_those_of_their_points(
    context: Context,
    gaps: list[int],
    start: int,
    cut: int,
    strange: set[int],
    unsummed: bool,
) -> None:
    """For any chunks, any start of the attempt's steps, and any end of the kept ones.

    Also for chunks of any version.
    """
    steps = np.cumsum(gaps)
    seconds = np.linspace(0.5, 2.0, len(steps))
    shown = [float("nan") if place in strange else value for place, value in enumerate(seconds)]
    attempt_id = add_attempt(context, add_job(context))
    with pytest.MonkeyPatch.context() as patch, context.database.write() as connection:
        patch.setattr(points, "CHUNK_POINTS", 7)
        patch.setattr(store, "CHUNK_POINTS", 7)
        store_points(connection, attempt_id, {STEP: Points.of(steps, 1e9 + steps, shown)})
        if unsummed:
            connection.execute(update(metric_chunks).values(step_sum=None))
        one = RecordedSteps(attempt_id, 1, start, cut)
        training = read_trainings(connection, [one]).get(attempt_id)
    finite = np.nan_to_num(np.array(shown))[steps > start]
    steps = steps[steps > start]
    if training is None:
        assert not len(steps)
        return
    before = np.concatenate(([start], steps[:-1]))
    kept = np.clip(cut - before, 0, steps - before)
    assert training.productive == round(float(finite @ kept) * 1000)
    assert training.lost == round(float(finite @ (steps - before - kept)) * 1000)
    assert training.recorded == (10**9 + int(steps[-1])) * 1000


def test_chunks_without_a_sum_are_decoded_once_and_some_at_a_time(context: Context) -> None:
    job_id = add_job(context)
    attempt_id = add_attempt(context, job_id)
    seconds = np.linspace(0.5, 2.0, 20_000)
    steps = np.arange(1, len(seconds) + 1)
    with context.database.write() as connection:
        by_name = {name: Points.of(steps, 1e9 + steps, seconds) for name in (STEP, DATA)}
        store_points(connection, attempt_id, by_name)
    wanted = goodput_view(context, job_id, scope=SYSTEM_SCOPE).categories
    stored = select(metric_chunks.c.series_id, metric_chunks.c.first_step, metric_chunks.c.step_sum)
    with context.database.write() as connection:
        sums = set(connection.execute(stored))
        connection.execute(update(metric_chunks).values(step_sum=None))
    batches: list[int] = []
    decode = series.decode

    def counted(connection: Connection, keys: Iterable[series.ChunkKey]) -> Any:
        batches.append(len(listed := list(keys)))
        return decode(connection, listed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_sums, "decode", counted)
        patch.setattr(step_sums, "SUMMED_AT_ONCE", 16)
        assert goodput_view(context, job_id, scope=SYSTEM_SCOPE).categories == wanted
        assert goodput_view(context, job_id, scope=SYSTEM_SCOPE).categories == wanted
    assert batches == [16, 16, 8, 0, 0], "a ledger decodes no chunk with a sum"
    with context.database.read() as connection:
        assert set(connection.execute(stored)) == sums


def test_many_attempts_are_read_with_the_parameters_that_a_database_takes(context: Context) -> None:
    job_id = add_job(context)
    first = add_attempt(context, job_id)
    names = (STEP, DATA, "compile/seconds", "checkpoint/stall_seconds", "validation/seconds")
    others = [(context.new_id(), number) for number in range(2, ATTEMPTS_AT_ONCE + 202)]
    with context.database.write() as connection:
        row = dict(connection.execute(select(attempts)).mappings().one())
        copies = [{**row, "id": id_, "number": number} for id_, number in others]
        connection.execute(insert(attempts), copies)
        ids = [first, *(id_ for id_, _ in others)]
        series_rows = [{"attempt_id": id_, "name": name} for id_ in ids for name in names]
        connection.execute(insert(metric_series), series_rows)
    for attempt_id in (ids[0], ids[-1]):
        train(context, attempt_id, range(1, 11), began=0.0, compile={1: 0.5})
    recorded = [RecordedSteps(id_, number, 0, 10) for number, id_ in enumerate(ids, start=1)]
    with context.database.read() as connection:
        raw = connection.connection.driver_connection
        if isinstance(raw, sqlite3.Connection):  # a tenth of what it takes, for fewer rows
            raw.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 3_276)
        trainings = read_trainings(connection, recorded)
    assert [ids.index(attempt_id) for attempt_id in trainings] == [0, len(ids) - 1]
    assert {each.compilation for each in trainings.values()} == {500}


def test_a_month_of_steps_is_summed_without_its_points(context: Context) -> None:
    attempt_id = add_attempt(context, add_job(context))
    steps = np.arange(1, 50_001)
    ones = Points.of(steps, 1e9 + steps, np.ones(len(steps)))
    with context.database.write() as connection:
        store_points(connection, attempt_id, {STEP: ones, DATA: ones})
    read: list[int] = []

    one = RecordedSteps(attempt_id, 1, 0, 40_500)

    def unpack(first_step: int, *columns: Any) -> Points:
        read.append(first_step)
        return points.unpack(first_step, *columns)

    with context.database.read() as connection, pytest.MonkeyPatch.context() as patch:
        patch.setattr(series, "unpack", unpack)
        training = read_trainings(connection, [one])[attempt_id]
    assert training.lost == 9_500_000
    assert read == 2 * [40_001], "the one that is cut"


def test_a_record_of_no_step_of_the_attempt_counts_as_none(
    harness: Harness, context: Context
) -> None:
    harness.add_node()
    job_id, _ = harness.running()
    attempt_id = harness.attempt(job_id).id
    train(context, attempt_id, range(1), began=harness.clock.now().timestamp())
    harness.clock.advance(6)
    assert spent(goodput_view(context, job_id, scope=SYSTEM_SCOPE)) == {"startup": 6000}
