"""A job replayed from its records with another save interval, on both databases."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from server.core.context import Context
from server.core.visibility.scope import SYSTEM_SCOPE
from server.telemetry.goodput.queries import goodput_view
from server.telemetry.goodput.step_sums import COMPILE, DATA, SAVE, STEP
from server.telemetry.goodput.what_if import SAVE_TIME, save_interval_what_if
from server.telemetry.metrics.points import CHUNK_POINTS, Points
from server.telemetry.metrics.store import store_points
from tests.server.harness import Harness
from trainyard.protocol.goodput import GoodputView, TimeCategory
from trainyard.run.failures import BadWindow, FailureReason

STEPS, STEP_SECONDS, STALL_SECONDS = 300, 2.0, 1.5
QUEUE_SECONDS, STARTUP_SECONDS = 30.0, 20.0
FAULTS = (161.0, 203.0)
"""Seconds from the first step of an attempt to its fault."""


def run_job(
    harness: Harness, context: Context, *, interval: int, faults: Sequence[float] = FAULTS
) -> str:
    """Run a job that saves synchronously and fails at `faults`, and return its id."""
    job_id = harness.submit(training={"steps": STEPS}, retry={"max_retries": 3})
    position = 0
    for fault in (*faults, None):
        harness.clock.advance(QUEUE_SECONDS)
        assert harness.place() == 1
        harness.clock.advance(STARTUP_SECONDS)
        (supervisor,) = harness.claim_all(job_id)
        position, seconds = train(
            harness, context, job_id=job_id, start=position, interval=interval, fault=fault
        )
        if fault is not None:
            harness.clock.advance(fault - seconds + 3)
            supervisor.end("failed", FailureReason.TRAINER_ERROR)
        else:
            harness.clock.advance(2)
            supervisor.end("succeeded")
    return job_id


def train(
    harness: Harness,
    context: Context,
    *,
    job_id: str,
    start: int,
    interval: int,
    fault: float | None,
) -> tuple[int, float]:
    """Store the steps of one attempt, and return its newest saved step and the seconds it took."""
    began = harness.clock.now().timestamp()
    at, step, saved = 0.0, start, start
    steps: dict[int, float] = {}
    saves: dict[int, float] = {}
    while step < STEPS and (fault is None or at + STEP_SECONDS <= fault):
        at, step = at + STEP_SECONDS, step + 1
        steps[step] = began + at
        if step % interval == 0 and step < STEPS and (fault is None or at + STALL_SECONDS <= fault):
            at += STALL_SECONDS
            saves[step + 1] = began + at
            harness.clock.advance(began + at - harness.clock.now().timestamp())
            harness.commit_checkpoint(job_id, step)
            saved = step
    by_name = {
        STEP: Points.of(steps, steps.values(), [STEP_SECONDS] * len(steps)),
        SAVE: Points.of(saves, saves.values(), [STALL_SECONDS] * len(saves)),
        SAVE_TIME: Points.of(saves, saves.values(), [STALL_SECONDS] * len(saves)),
    }
    with context.database.write() as connection:
        store_points(connection, harness.attempt(job_id).id, by_name)
    last = max(steps.values())
    harness.clock.advance(max(last - harness.clock.now().timestamp(), 0))
    return saved, harness.clock.now().timestamp() - began


def milliseconds(view: GoodputView, category: TimeCategory) -> int:
    return next(each.milliseconds for each in view.categories if each.category == category)


@pytest.mark.parametrize(("recorded", "asked"), [(50, 25), (40, 20), (50, 50), (10, 60)])
def test_the_forecast_of_an_interval_is_what_a_run_with_it_records(
    harness: Harness, context: Context, recorded: int, asked: int
) -> None:
    harness.add_node()
    job_id = run_job(harness, context, interval=recorded)
    answer = save_interval_what_if(context, job_id, asked, scope=SYSTEM_SCOPE)
    assert answer.replayed is not None
    followed = goodput_view(context, run_job(harness, context, interval=asked), scope=SYSTEM_SCOPE)
    assert answer.replayed.goodput == pytest.approx(followed.goodput, abs=0.02)
    lost = milliseconds(followed, TimeCategory.LOST)
    assert answer.replayed.lost_milliseconds == pytest.approx(lost, abs=2 * STEP_SECONDS * 1000)
    assert answer.replayed.kept_steps == STEPS
    assert answer.stall_seconds == STALL_SECONDS
    if recorded == asked:
        assert answer.replayed.lost_steps == answer.recorded.lost_steps
        assert answer.replayed.wall_milliseconds == answer.recorded.wall_milliseconds


@pytest.mark.parametrize("lost_before_its_first_step", [False, True])
def test_an_attempt_after_a_rollback_starts_where_it_started(
    harness: Harness, context: Context, *, lost_before_its_first_step: bool
) -> None:
    harness.add_node()
    job_id = harness.submit(training={"steps": STEPS}, retry={"max_retries": 3})
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(job_id)
    train(harness, context, job_id=job_id, start=0, interval=50, fault=270.0)
    window = BadWindow(start=960, end=976, first_step=60)
    supervisor.end("failed", FailureReason.LOSS_SPIKE, bad_window=window)
    for _ in range(lost_before_its_first_step):
        harness.clock.advance(QUEUE_SECONDS)
        assert harness.place() == 1
        harness.claim_all(job_id)[0].end("failed", FailureReason.TRAINER_ERROR)
    harness.clock.advance(QUEUE_SECONDS)
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(job_id)
    train(harness, context, job_id=job_id, start=50, interval=50, fault=None)
    harness.clock.advance(2)
    supervisor.end("succeeded")
    answer = save_interval_what_if(context, job_id, 50, scope=SYSTEM_SCOPE)
    assert answer.replayed is not None
    assert answer.replayed.wall_milliseconds == answer.recorded.wall_milliseconds
    assert answer.replayed.lost_steps == answer.recorded.lost_steps == 133 - 50
    assert answer.replayed.lost_milliseconds == pytest.approx(
        answer.recorded.lost_milliseconds, abs=2 * STEP_SECONDS * 1000
    )


def test_the_best_interval_of_a_job_that_fails_often(harness: Harness, context: Context) -> None:
    harness.add_node()
    job_id = run_job(harness, context, interval=100)
    answer = save_interval_what_if(context, job_id, 100, scope=SYSTEM_SCOPE)
    assert answer.best is not None
    assert answer.best.goodput is not None
    assert answer.recorded.goodput is not None
    assert answer.best.goodput > answer.recorded.goodput + 0.03
    assert answer.best_interval_steps is not None
    assert answer.best_interval_steps < 100
    assert answer.daly_interval_steps is not None
    assert 5 < answer.daly_interval_steps < 30
    assert answer.replayed is not None
    assert answer.recorded.expected_ettr is None
    mttf = goodput_view(context, job_id, scope=SYSTEM_SCOPE).mttf_seconds
    assert mttf is not None
    for outcome, interval in ((answer.replayed, 100), (answer.best, answer.best_interval_steps)):
        by_formula = published_ettr(mttf, interval * STEP_SECONDS)
        assert outcome.expected_ettr == pytest.approx(by_formula, abs=0.02)


def published_ettr(mttf: float, interval: float) -> float:
    """Return the expected ETTR of docs/goodput.md; all times are in seconds."""
    running = (1 - (STARTUP_SECONDS + interval / 2) / mttf) / (1 + STALL_SECONDS / interval)
    return running / (1 + QUEUE_SECONDS / mttf)


def test_no_expected_ettr_without_a_failure(harness: Harness, context: Context) -> None:
    harness.add_node()
    answer = save_interval_what_if(
        context, run_job(harness, context, interval=50, faults=()), 100, scope=SYSTEM_SCOPE
    )
    assert answer.stall_seconds == STALL_SECONDS
    assert answer.replayed is not None
    assert answer.best is not None
    assert (answer.replayed.expected_ettr, answer.best.expected_ettr) == (None, None)
    assert answer.daly_interval_steps is None


def test_no_expected_ettr_without_saves(harness: Harness, context: Context) -> None:
    harness.add_node()
    without_saves = save_interval_what_if(
        context, run_job(harness, context, interval=50), 0, scope=SYSTEM_SCOPE
    )
    assert without_saves.replayed is not None
    assert without_saves.replayed.expected_ettr is None
    assert without_saves.daly_interval_steps is not None


@pytest.mark.parametrize(
    ("passed", "seconds", "step"),
    [
        (-10.0, 1.0, 1.0),  # set back by 11 seconds in each step
        (1.0, -10.0, None),  # what a rank writes by itself
    ],
)
def test_records_that_no_clock_makes_leave_a_pace(
    harness: Harness, context: Context, passed: float, seconds: float, step: float | None
) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.launched(training={"steps": STEPS})
    began = harness.clock.now().timestamp()
    taken = range(1, 7)
    points = Points.of(taken, [began + passed * each for each in taken], [seconds] * len(taken))
    with context.database.write() as connection:
        store_points(connection, harness.attempt(job_id).id, {STEP: points})
    harness.clock.advance(66)
    supervisor.end("failed", FailureReason.TRAINER_ERROR)
    answer = save_interval_what_if(context, job_id, 5, scope=SYSTEM_SCOPE)
    assert answer.replayed is not None
    assert answer.replayed.expected_ettr is not None
    assert answer.daly_interval_steps is None, "no save is recorded"
    if step is not None:
        outcome = answer.replayed
        assert (outcome.lost_steps, outcome.lost_milliseconds) == (1, 1000 * step)
    spent = {
        each.category: each.milliseconds
        for each in goodput_view(context, job_id, scope=SYSTEM_SCOPE).categories
    }
    assert min(spent.values()) == 0
    assert sum(spent.values()) == 66_000


def test_a_job_that_waits_has_nothing_to_replay(harness: Harness, context: Context) -> None:
    answer = save_interval_what_if(context, harness.submit(), 5, scope=SYSTEM_SCOPE)
    assert (answer.replayed, answer.best, answer.daly_interval_steps) == (None, None, None)
    assert answer.recorded.kept_steps == 0


def test_the_compilation_of_lost_steps_is_no_part_of_their_pace(
    harness: Harness, context: Context
) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.launched(training={"steps": STEPS})
    began = harness.clock.now().timestamp()
    by_name = {
        STEP: Points.of(range(1, 7), [began + 59 + step for step in range(1, 7)], [60] + 5 * [1]),
        COMPILE: Points.of([1], [began + 60], [59]),
    }
    with context.database.write() as connection:
        store_points(connection, harness.attempt(job_id).id, by_name)
    harness.clock.advance(66)
    supervisor.end("failed", FailureReason.TRAINER_ERROR)
    answer = save_interval_what_if(context, job_id, 0, scope=SYSTEM_SCOPE)
    assert (answer.recorded.kept_steps, answer.recorded.lost_steps) == (0, 6)
    assert answer.replayed is not None
    assert (answer.replayed.lost_steps, answer.replayed.lost_milliseconds) == (6, 6_000)


@pytest.mark.parametrize("lie", [1.7e308, -1e300], ids=str)
def test_no_reported_duration_is_too_large_for_the_ledger(
    harness: Harness, context: Context, lie: float
) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running(training={"steps": STEPS})
    steps = range(1, CHUNK_POINTS + 2)  # of a chunk, and of the tail
    began = harness.clock.now().timestamp()
    with context.database.write() as connection:
        store_points(
            connection,
            harness.attempt(job_id).id,
            {
                name: Points.of(steps, [began + 1] * len(steps), [lie] * len(steps))
                for name in (STEP, DATA, COMPILE, SAVE, SAVE_TIME)
            },
        )
    harness.clock.advance(60)
    supervisor.end("failed", FailureReason.TRAINER_ERROR)
    view = goodput_view(context, job_id, scope=SYSTEM_SCOPE)
    assert sum(each.milliseconds for each in view.categories) == 60_000
    answer = save_interval_what_if(context, job_id, 10, scope=SYSTEM_SCOPE)
    assert answer.replayed is not None
    assert answer.stall_seconds == 0
