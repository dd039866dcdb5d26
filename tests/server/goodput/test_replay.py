"""The replay against runs that are played step by step, and its estimates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.goodput.replay import (
    RecordedRun,
    TrainedAttempt,
    best_interval,
    daly_milliseconds,
    goodput,
    replay,
)

STEPS, STEP, STARTUP = 200, 100, 700
"""Steps of a run, milliseconds of each, and those before the first step of an attempt."""


@dataclass
class Played:
    """A run that was played step by step."""

    attempts: list[TrainedAttempt] = field(default_factory=list)
    lost_steps: int = 0
    saves: int = 0
    wall: int = 0

    def run(self, *, stall: float, save: float) -> RecordedRun:
        """Return what its records hold."""
        return RecordedRun(self.attempts, STEPS, self.wall, succeeded=True, stall=stall, save=save)


def play(interval: int, faults: Sequence[int], *, stall: int, save: int) -> Played:
    """Play a run whose attempts fail so many milliseconds after their first step begins."""
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
        return  # the recorded run had ended before a fault that the other one meets
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


def test_the_best_interval_weighs_stalls_against_lost_steps() -> None:
    often = play(2, [3_050, 3_050], stall=50, save=50).run(stall=50, save=50)
    best = best_interval(often, productive=STEP)
    chosen = goodput(often, best, STEP)
    assert all(goodput(often, each, STEP) <= chosen + 0.01 for each in range(1, STEPS))
    assert best > 2
    without = play(5, [], stall=50, save=50).run(stall=50, save=50)
    assert best_interval(without, productive=STEP) == STEPS, "without a failure saves only cost"


def test_dalys_estimate_is_youngs_with_a_correction() -> None:
    young = math.sqrt(2 * 6 * 3_600)
    assert daly_milliseconds(6, 3_600) == pytest.approx(young, rel=0.03)
    assert daly_milliseconds(6, 3_600) != pytest.approx(young, rel=1e-4)
    assert daly_milliseconds(100, 40) == 40
