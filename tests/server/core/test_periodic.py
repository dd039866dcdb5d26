"""Periodic work: due tasks run within their budget, whatever other tasks and the clock do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import pytest

from server.app.periodic_tasks import TASKS
from server.app.periodic_work import periodic_work
from server.core.database.engine import LeadLostError
from server.core.periodic import (
    EACH_ROUND,
    PeriodicTask,
    PeriodicWork,
    TaskTimes,
    read_times,
    store_times,
)
from tests.server.clock import FakeClock
from tests.server.harness import Harness

ROUND = 0.25
DAY = 86_400.0


def task(
    name: str, every: float = EACH_ROUND, budget: float = 0.1, *, resumes: bool = True
) -> PeriodicTask:
    return PeriodicTask(name, every, budget, "", resumes=resumes)


def test_what_fails_keeps_no_other_task_from_its_turn_and_runs_again_after_its_period() -> None:
    clock, done = FakeClock(), list[str]()

    def fails() -> None:
        done.append("fails")
        raise OSError("the disk is full")

    work = PeriodicWork(
        clock.monotonic,
        {task("fails", 60.0): fails, task("goes on", 60.0): lambda: done.append("on")},
    )
    for count in (1, 2):
        with pytest.raises(ExceptionGroup, match="periodic tasks failed: fails") as raised:
            work.run_due()
        assert [str(error) for error in raised.value.exceptions] == ["the disk is full"]
        work.run_due()
        assert done == ["fails", "on"] * count
        clock.advance(60)
    times = work.times
    assert (times["fails"].runs, times["fails"].failures) == (2, 2)
    assert (times["goes on"].runs, times["goes on"].failures) == (2, 0)


def test_a_task_that_fails_repeatedly_delays_itself_alone() -> None:
    clock, tries, others = FakeClock(), list[float](), 0
    once = OSError("the disk is full")  # raised again and again, as a cached exception is

    def fails() -> None:
        tries.append(clock.monotonic())
        if clock.monotonic() < 40:
            raise once

    def goes_on() -> None:
        nonlocal others
        others += 1

    work = PeriodicWork(clock.monotonic, {task("fails"): fails, task("goes on"): goes_on})
    for _ in range(200):
        with suppress(ExceptionGroup):
            work.run_due()
        clock.advance(ROUND)
    assert tries[:8] == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 25.5, 35.5]
    assert tries[8:11] == [45.5, 45.75, 46.0], "the delay ends with the first success"
    assert others == 200
    assert not getattr(once, "__notes__", [])


def test_a_former_leader_does_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def fails() -> None:
        raise OSError("the disk is full")

    def loses() -> None:
        raise LeadLostError

    tasks = {
        task("fails"): fails,
        task("loses"): loses,
        task("goes on"): lambda: done.append("on"),
    }
    with caplog.at_level(logging.ERROR), pytest.raises(LeadLostError):
        PeriodicWork(FakeClock().monotonic, tasks).run_due()
    assert done == []
    assert "the periodic task fails failed" in caplog.text
    assert "the disk is full" in caplog.text


def test_tasks_of_the_upkeep_share_no_round() -> None:
    clock, runs = FakeClock(), dict[str, list[float]]()

    def note(name: str) -> None:
        runs.setdefault(name, []).append(clock.monotonic())

    names = ("a", "b", "c", "d")
    tasks = {task(name, 60.0, resumes=False): partial(note, name) for name in names}
    work = PeriodicWork(clock.monotonic, {task("first", 60.0): partial(note, "first"), **tasks})
    for _ in range(480):
        work.run_due()
        clock.advance(ROUND)
    assert runs == {
        "first": [0.0, 60.0],
        "a": [0.0, 60.0],
        "b": [15.0, 75.0],
        "c": [30.0, 90.0],
        "d": [45.0, 105.0],
    }


async def coroutine() -> None:
    """Run nothing until it is awaited."""


def test_an_asynchronous_function_is_refused_before_the_first_round() -> None:
    for run in (coroutine, partial(coroutine)):
        with pytest.raises(TypeError, match="the run of sleeps is asynchronous"):
            PeriodicWork(FakeClock().monotonic, {task("sleeps"): run})


def back_an_hour(clock: FakeClock) -> None:
    clock.set(-3600)


def forward_a_day(clock: FakeClock) -> None:
    clock.set(DAY)


def stopped(clock: FakeClock) -> None:
    """Stop the wall clock."""
    advance = clock.advance

    def without_the_wall(seconds: float) -> None:
        advance(seconds)
        clock.set(-seconds)

    clock.advance = without_the_wall  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("happens", [back_an_hour, forward_a_day, stopped])
def test_no_clock_puts_a_task_off_or_repeats_it(happens: Callable[[FakeClock], None]) -> None:
    clock, runs = FakeClock(), list[float]()
    work = PeriodicWork(
        clock.monotonic, {task("task", 5.0): lambda: runs.append(clock.monotonic())}
    )
    for number in range(120):
        if number == 50:
            happens(clock)
        work.run_due()
        clock.advance(ROUND)
    assert runs == [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]


def test_a_run_in_steps_pauses_when_its_time_is_up_and_goes_on_in_the_next_round() -> None:
    clock, done = FakeClock(), list[int]()

    def steps() -> Iterator[None]:
        for number in range(5):
            clock.advance(0.05)
            done.append(number)
            yield

    work = PeriodicWork(clock.monotonic, {task("long", 10.0): steps})
    work.run_due()
    assert (done, work.times) == ([0, 1], {})
    clock.advance(ROUND)
    work.run_due()
    work.run_due()
    assert (done, work.times["long"].runs) == ([*range(5)], 1)
    assert work.times["long"].seconds == pytest.approx(0.25)
    clock.advance(20)
    work.run_due()
    assert work.times["long"].lag_seconds == pytest.approx(10.5)


def test_the_rest_of_a_run_that_does_not_resume_waits_for_the_next_period() -> None:
    clock, done = FakeClock(), list[int]()

    def steps() -> Iterator[None]:
        for number in range(3):
            done.append(number)
            clock.advance(0.06)
            yield

    work = PeriodicWork(clock.monotonic, {task("upkeep", 60.0, resumes=False): steps})
    work.run_due()
    work.run_due()
    assert done == [0, 1]
    clock.advance(60)
    work.run_due()
    assert done == [0, 1, 0, 1]


def test_steps_that_fail_are_dropped() -> None:
    clock = FakeClock()

    def steps() -> Iterator[None]:
        yield
        raise ValueError("no")

    work = PeriodicWork(clock.monotonic, {task("task", budget=0.0): steps})
    work.run_due()
    with pytest.raises(ExceptionGroup):
        work.run_due()
    work.run_due()
    assert work.times["task"].failures == 1


def test_a_scheduler_runs_each_task_of_the_table_in_its_order(harness: Harness) -> None:
    work = periodic_work(harness.context, harness.dispatcher)
    work.run_due()
    harness.clock.advance(60)
    work.run_due()
    assert [*work.times] == [*TASKS]
    harness.clock.advance(10)
    work.run_due()
    with harness.context.database.read() as connection:
        stored = {each.name: each for each in read_times(connection)}
    assert stored.keys() >= {"place_jobs", "plan_supply", "forget_jobs"}
    assert (stored["forget_jobs"].runs, stored["forget_jobs"].failures) == (1, 0)


def test_each_task_of_the_table_has_a_name_and_a_purpose_of_its_own() -> None:
    assert len({each.purpose for each in TASKS.values()}) == len(TASKS)
    assert all(each.name.isidentifier() for each in TASKS.values())
    assert all(each.purpose.endswith(".") for each in TASKS.values())


def test_times_of_a_removed_task_disappear(harness: Harness) -> None:
    store_times(harness.context, {"removed": TaskTimes(runs=1)})
    store_times(harness.context, {"task": TaskTimes(runs=2)})
    with harness.context.database.read() as connection:
        assert [(each.name, each.runs) for each in read_times(connection)] == [("task", 2)]
