"""Advice from the records of a job, on both databases."""

from __future__ import annotations

import pytest

from server.core.context import Context
from server.core.errors import NotFoundError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.telemetry.advice import observed
from server.telemetry.advice.observed import GC, RECENT, WARM_STEPS, advice
from server.telemetry.goodput.queries import records_of
from server.telemetry.goodput.step_sums import COMPILE, DATA, STEP
from server.telemetry.metrics.points import Points
from server.telemetry.metrics.store import store_points
from tests.server.harness import Harness
from trainyard.protocol.goodput import Hindrance


def record(
    harness: Harness, context: Context, *, job_id: str, values: dict[str, list[float]]
) -> None:
    """Store the values of each series for the steps 1, 2, ... of the newest attempt."""
    began = harness.clock.now().timestamp()
    by_name = {}
    for name, numbers in values.items():
        steps = range(1, len(numbers) + 1)
        by_name[name] = Points.of(steps, [began + step for step in steps], numbers)
    with context.database.write() as connection:
        store_points(connection, harness.attempt(job_id).id, by_name)
    harness.clock.advance(max(map(len, values.values())))


def test_a_job_without_steps_has_no_finding(harness: Harness, context: Context) -> None:
    job_id = harness.submit()
    view = advice(context, job_id, scope=SYSTEM_SCOPE)
    assert (view.attempt, view.recent_steps, view.findings) == (None, 0, ())


def test_an_unknown_job(context: Context) -> None:
    with pytest.raises(NotFoundError):
        advice(context, "no-such-job", scope=SYSTEM_SCOPE)


def test_recent_steps_count_and_the_first_step_does_not(harness: Harness, context: Context) -> None:
    harness.add_node()
    job_id, _ = harness.running(step=0, training={"steps": 5_000})
    steps = RECENT + 500
    waits = [900.0] + [0.0] * 499 + [0.25] * RECENT
    record(harness, context, job_id=job_id, values={STEP: [1.0] * steps, DATA: waits})
    view = advice(context, job_id, scope=SYSTEM_SCOPE)
    assert (view.attempt, view.recent_steps) == (1, RECENT)
    (found,) = [each for each in view.findings if each.hindrance == Hindrance.DATA_WAIT]
    assert found.share == pytest.approx(0.25)
    assert found.field == "data.path"


def test_steps_that_arrive_after_the_ledger_was_read_are_left_out(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL each statement sees rows stored until its start."""
    harness.add_node()
    job_id, _ = harness.running(step=0)
    record(harness, context, job_id=job_id, values={STEP: [1.0]})
    with context.database.read() as connection:
        records = records_of(context, connection, job_id)
    record(harness, context, job_id=job_id, values={STEP: [1.0, 2.0], COMPILE: [0.0, 0.5]})
    monkeypatch.setattr(observed, "records_of", lambda *_: records)
    view = advice(context, job_id, scope=SYSTEM_SCOPE)
    assert (view.attempt, view.recent_steps) == (None, 0)


def test_values_that_are_no_durations_are_left_out(harness: Harness, context: Context) -> None:
    harness.add_node()
    job_id, _ = harness.running(step=0)
    steps = [1.0, float("nan"), -5.0, 1.0, 1.0]
    record(
        harness,
        context,
        job_id=job_id,
        values={STEP: steps, DATA: [0.0, 0.5, 0.5, float("inf"), 0.5]},
    )
    (found,) = [
        each
        for each in advice(context, job_id, scope=SYSTEM_SCOPE).findings
        if each.hindrance == Hindrance.DATA_WAIT
    ]
    assert found.share == pytest.approx(0.5)


def test_the_memory_of_the_device_is_compared_with_the_peak(
    harness: Harness, context: Context
) -> None:
    harness.add_node()  # of 8 GiB a slot
    training = {"global_batch_size": 16, "micro_batch_size": 4}
    job_id, _ = harness.running(step=0, training=training)
    values = {STEP: [1.0] * 20, "memory/peak_reserved_gib": [2.0] * 20}
    record(harness, context, job_id=job_id, values=values)
    (found,) = advice(context, job_id, scope=SYSTEM_SCOPE).findings
    assert found.hindrance == Hindrance.SMALL_MICRO_BATCHES
    assert found.evidence[0].value == pytest.approx(0.25)
    record(
        harness,
        context,
        job_id=job_id,
        values={"memory/allocation_retries": [0.0, 0.0, 2.0, 3.0, 0.0, 1.0]},
    )
    retried = {
        each.hindrance: each for each in advice(context, job_id, scope=SYSTEM_SCOPE).findings
    }
    assert retried[Hindrance.FULL_MEMORY].evidence[0].value == 4


def test_compilation_after_the_start_counts_as_recompilation(
    harness: Harness, context: Context
) -> None:
    harness.add_node()
    job_id, _ = harness.running(step=0)
    compiled = [40.0] * WARM_STEPS + [0.2] * 80
    record(harness, context, job_id=job_id, values={STEP: [1.0] * 100, COMPILE: compiled})
    found = {each.hindrance: each for each in advice(context, job_id, scope=SYSTEM_SCOPE).findings}
    assert found[Hindrance.RECOMPILATION].evidence[0].value == pytest.approx(16.0)


def test_collections_of_recent_steps_are_summed(harness: Harness, context: Context) -> None:
    harness.add_node()
    job_id, _ = harness.running(step=0, training={"steps": 5_000})
    # A garbage collection before the recent steps, one without a duration, and ten that count.
    collected = [900.0] + [0.0] * 499 + [float("nan")] + [0.0] * 989 + [8.0] * 10
    record(harness, context, job_id=job_id, values={STEP: [1.0] * (RECENT + 500), GC: collected})
    found = {each.hindrance: each for each in advice(context, job_id, scope=SYSTEM_SCOPE).findings}
    assert found[Hindrance.GARBAGE_COLLECTION].evidence[0].value == pytest.approx(80.0)
    assert found[Hindrance.GARBAGE_COLLECTION].share == pytest.approx(0.08)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -3.0, 1e308])
def test_numbers_that_are_no_amounts_make_no_finding(
    harness: Harness, context: Context, odd: float
) -> None:
    harness.add_node()
    training = {"global_batch_size": 16, "micro_batch_size": 4}
    job_id, _ = harness.running(step=0, training=training)
    names = (
        *("memory/peak_reserved_gib", "memory/allocation_retries", DATA, GC),
        *("ranks/own_seconds_median", "ranks/own_seconds_max", "ranks/wait_seconds_median"),
    )
    record(
        harness,
        context,
        job_id=job_id,
        values={STEP: [1.0] * 20} | {name: [odd] * 20 for name in names},
    )
    assert advice(context, job_id, scope=SYSTEM_SCOPE).findings == ()
