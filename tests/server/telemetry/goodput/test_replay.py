"""The replay against runs that are simulated step by step, and its estimates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.telemetry.goodput.replay import (
    RecordedRun,
    TrainedAttempt,
    _Kept,
    best_interval,
    replay,
)

STEPS, STEP, STARTUP = 200, 100, 700
"""Steps of a run, milliseconds of each, and those before the first step of an attempt."""


@dataclass
class Played:
    """A run that was simulated step by step."""

    attempts: list[TrainedAttempt] = field(default_factory=list)
    lost_steps: int = 0
    saves: int = 0
    wall: int = 0

    def run(self, *, stall: float, save: float) -> RecordedRun:
        """Return the run that its records contain."""
        return RecordedRun(self.attempts, STEPS, self.wall, succeeded=True, stall=stall, save=save)


def play(interval: int, faults: Sequence[int], *, stall: int, save: int) -> Played:
    """Simulate a run; its attempts fail some milliseconds after their first step starts."""
    played, position = Played(), 0
    for fault in [*faults, None]:
        played.wall += STARTUP
        start = saved = position
        now = stalls = 0
        commits: list[tuple[int, int]] = []
        training, stalled = 0, 0
        while position < STEPS and (fault is None or now + STEP <= fault):
            now += STEP
            position += 1
            training, stalled = now, stalls
            if position % interval == 0 and position < STEPS:
                commits.append((now + save, position))
                played.saves += 1
                now += stall
                stalls += stall
        lived = training if fault is None or position == STEPS else fault
        saved = max([start, *(step for at, step in commits if at <= lived)])
        played.attempts.append(
            TrainedAttempt(
                began=played.wall,
                start_step=start,
                last_step=position,
                training=training,
                lived=lived,
                compilation=0,
                stalls=stalled,
                loses_tail=position < STEPS,
            )
        )
        played.wall += lived
        if position == STEPS:
            break
        played.lost_steps += position - saved
        position = saved
    return played


def goodput(run: RecordedRun, interval: int) -> float:
    return replay(run, interval).goodput(1.0) or 0.0


faults = st.lists(st.integers(1 * STEP, 60 * STEP), max_size=4)


@given(
    faults=faults,
    recorded=st.integers(2, 60),
    asked=st.integers(2, 60),
    stall=st.integers(0, 150),
    writing=st.integers(0, 50),
)
def test_a_replay_is_the_run_that_is_played_with_the_other_interval(
    faults: list[int], recorded: int, asked: int, stall: int, writing: int
) -> None:
    save = stall + writing
    before = play(recorded, faults, stall=stall, save=save)
    after = play(asked, faults, stall=stall, save=save)
    if len(after.attempts) > len(before.attempts):
        return  # the recorded run ended before a fault of the replayed one
    replayed = replay(before.run(stall=stall, save=save), asked)
    assert replayed.lost_steps == after.lost_steps
    assert replayed.saves == after.saves
    assert replayed.wall == after.wall
    assert replayed.kept_steps == STEPS
    assert replayed.lost == after.lost_steps * STEP
    assert replayed.stalls == after.saves * stall


def test_without_saves_each_failure_loses_the_whole_attempt() -> None:
    run = play(10, [2_050, 1_550], stall=0, save=0).run(stall=0, save=0)
    assert replay(run, 0).lost_steps == 20 + 15


def test_a_run_that_goes_on_keeps_what_it_has() -> None:
    run = play(10, [2_050], stall=0, save=0).run(stall=0, save=0)
    last = replace(run.attempts[1], last_step=50, training=3_000, lived=3_000)
    going_on = replace(run, attempts=(run.attempts[0], last), succeeded=False, wall=10_000)
    assert replay(going_on, 7).kept_steps == 14 + 30
    assert replay(going_on, 7).wall == 10_000
    failed = replace(going_on, attempts=(run.attempts[0], replace(last, loses_tail=True)))
    assert replay(failed, 7).kept_steps == 42


def test_a_chosen_start_stays_at_or_before_its_step() -> None:
    run = play(10, [5_050], stall=0, save=0).run(stall=0, save=0)
    lived = run.attempts[1].training + 30 * STEP
    back = replace(run.attempts[1], start_step=20, training=lived, lived=lived, chosen_start=True)
    chosen = replace(run, attempts=(run.attempts[0], back), wall=run.wall + 30 * STEP)
    assert replay(chosen, 10).wall == run.wall + 30 * STEP
    assert replay(chosen, 8).wall == run.wall + (50 - 16) * STEP
    for interval in (8, 10):
        replayed = replay(chosen, interval)
        assert replayed.lost_steps == 50 - interval * (20 // interval)
        assert replayed.lost == replayed.lost_steps * STEP


def test_the_best_interval_weighs_stalls_against_lost_steps() -> None:
    often = play(2, [3_050, 3_050], stall=50, save=50).run(stall=50, save=50)
    best = best_interval(often, productive=1.0)
    chosen = goodput(often, best)
    assert chosen == pytest.approx(STEPS * STEP / replay(often, best).wall)
    assert all(goodput(often, each) <= chosen + 0.01 for each in range(1, STEPS))
    assert best > 2
    without = play(5, [], stall=50, save=50).run(stall=50, save=50)
    assert best_interval(without, productive=1.0) == STEPS, "without a failure saves only cost"


def attempt(
    began: int, steps: int, lived: int, *, compilation: int = 0, stalls: int = 0
) -> TrainedAttempt:
    """Return an attempt from step 0 that failed after its last recorded step."""
    return TrainedAttempt(
        began=began,
        start_step=0,
        last_step=steps,
        training=lived,
        lived=lived,
        compilation=compilation,
        stalls=stalls,
        loses_tail=True,
        chosen_start=True,
    )


def failed_run(*attempts: TrainedAttempt) -> RecordedRun:
    wall = attempts[-1].began + attempts[-1].lived
    return RecordedRun(attempts, 10_000, wall, succeeded=False, stall=0, save=0)


def test_an_attempt_that_only_compiled_has_the_pace_of_the_others() -> None:
    trained = attempt(0, 100, 10_000)
    compiled = attempt(10_000, 1, 60_000, compilation=60_000)
    assert replay(failed_run(trained, compiled), 1).kept_steps == 0
    stalled = attempt(10_000, 3, 60_000, compilation=50_000, stalls=9_990)
    run = failed_run(trained, stalled)
    assert run.step_milliseconds(stalled) == pytest.approx(10_010 / 103)
    assert replay(run, 0).lost_steps == 100 + 102
    assert replay(run, 1).kept_steps == 102


def test_a_chosen_start_looks_at_no_step_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a thousand resumes of a person take half a minute."""
    cut: list[int] = []
    until = _Kept.until

    def noted(kept: _Kept, step: int) -> _Kept:
        cut.append(step)
        return until(kept, step)

    monkeypatch.setattr(_Kept, "until", noted)
    each = attempt(0, 10, 1_000)
    many = [
        replace(each, began=1_000 * n, start_step=10 * n, last_step=10 * n + 10) for n in range(99)
    ]
    assert replay(failed_run(*many), 1).kept_steps == 990
    assert len(cut) <= 99
    back = replace(each, began=99_000, start_step=45, last_step=55)
    replayed = replay(failed_run(*many, back), 1)
    assert replayed.kept_steps == 55
    assert replayed.kept == pytest.approx(5_500)


def test_without_any_pace_no_step_is_free() -> None:
    run = failed_run(attempt(0, 2, 60_000, compilation=50_000, stalls=10_000))
    assert run.step_milliseconds(run.attempts[0]) == 30_000
    assert replay(run, 1).kept_steps == 0


@given(data=st.data(), asked=st.integers(0, 300), stall=st.integers(0, 500), ends=st.booleans())
def test_kept_steps_take_no_longer_than_the_run(
    data: st.DataObject, asked: int, stall: int, *, ends: bool
) -> None:
    attempts: list[TrainedAttempt] = []
    now = 0
    for _ in range(data.draw(st.integers(1, 4))):
        began = now + data.draw(st.integers(0, 2_000))
        training = data.draw(st.integers(1, 20_000))
        lived = training + data.draw(st.integers(0, 5_000))
        start = data.draw(st.integers(0, 150))
        attempts.append(
            TrainedAttempt(
                began=began,
                start_step=start,
                last_step=start + data.draw(st.integers(1, 150)),
                training=training,
                lived=lived,
                compilation=data.draw(st.integers(0, 25_000)),
                stalls=data.draw(st.integers(0, 25_000)),
                loses_tail=data.draw(st.booleans()),
                chosen_start=data.draw(st.booleans()),
            )
        )
        now = began + lived
    run = RecordedRun(attempts, 300, now, succeeded=ends, stall=stall, save=stall)
    replayed = replay(run, asked)
    assert replayed.kept <= replayed.wall + len(attempts), "times are rounded to a millisecond"
    assert (replayed.kept > 0) == (replayed.kept_steps > 0)
    assert 0 <= goodput(run, asked) <= 1
