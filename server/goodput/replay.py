"""The replay of a job's records with another save interval, as a pure function.

Each attempt trains for as long as it did, at its own pace, and fails at the same moment. What
changes is where it begins, how often a save holds it up, and how many of its steps are lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CANDIDATES = 64
"""Intervals among which the best one is searched, evenly on a logarithmic scale."""


@dataclass(frozen=True, slots=True)
class TrainedAttempt:
    """What is recorded of an attempt that has steps. Times are in milliseconds."""

    began: int
    """From the submission to the beginning of its first step."""
    start_step: int
    last_step: int
    """Last recorded step."""
    training: int
    """From the beginning of its first step to the end of its last recorded one."""
    lived: int
    """From the beginning of its first step to the last sign that its ranks trained."""
    compilation: int
    """Part of `training` that passes once."""
    stalls: int
    """Part of `training` for which saves held it up."""
    loses_tail: bool = False
    """Whether it ended without saving its last step: the steps after its newest save are lost."""
    chosen_start: bool = False
    """Whether it starts before the newest checkpoint: a rollback, or a person's choice."""

    @property
    def step_milliseconds(self) -> float:
        """Mean time of a step without compilation and saves."""
        left = self.training - self.compilation - self.stalls
        return max(left, 0) / max(self.last_step - self.start_step, 1)


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The records of a job that a replay reads."""

    attempts: Sequence[TrainedAttempt]
    """In their order; at least one."""
    steps: int
    """Steps after which the job ends."""
    wall: int
    """Milliseconds from the submission to the end, or to now."""
    succeeded: bool
    """Whether it reached its last step: with other saves it takes as long as it needs."""
    stall: float
    """Milliseconds for which one save holds up training."""
    save: float
    """Milliseconds from the beginning of a save to its commit."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The outcome of a replay."""

    kept_steps: int
    lost_steps: int
    lost: int
    """Milliseconds of lost steps."""
    saves: int
    stalls: int
    """Milliseconds for which saves held up training."""
    wall: int
    """Milliseconds from the submission to the end, or to now."""


def replay(run: RecordedRun, interval: int) -> Replayed:
    """Return what becomes of a run that saves after each `interval` steps; never when 0."""
    position = run.attempts[0].start_step
    first, lost_steps, saves, lost, wall = position, 0, 0, 0.0, run.wall
    for index, attempt in enumerate(run.attempts):
        if attempt.chosen_start:
            chosen = _newest(attempt.start_step, interval)
            position = min(position, max(chosen, first))
        is_last = index == len(run.attempts) - 1
        pace = _Pace(attempt, position, interval, run)
        left = max(run.steps - position, 0)
        done = left if is_last and run.succeeded else min(pace.steps_within(attempt.lived), left)
        saves += pace.saves(done)
        reached = position + done
        if reached >= run.steps and run.succeeded:
            last = run.attempts[-1]
            after = run.wall - (last.began + last.training)
            wall = round(attempt.began + pace.end_of(done) + after)
            position = reached
            break
        if attempt.loses_tail:
            position = pace.saved(done, attempt.lived)
            lost_steps += reached - position
            lost += (reached - position) * attempt.step_milliseconds
        else:
            position = reached
    return Replayed(
        kept_steps=position - first,
        lost_steps=lost_steps,
        lost=round(lost),
        saves=saves,
        stalls=round(saves * run.stall),
        wall=wall,
    )


def best_interval(run: RecordedRun, *, productive: float) -> int:
    """Return the save interval, in steps, with the highest goodput of all candidates.

    Args:
        run: the records.
        productive: milliseconds that count as productive in a kept step.
    """
    longest = max(run.steps - run.attempts[0].start_step, 1)
    steps: set[int] = {round(longest ** (n / (CANDIDATES - 1))) for n in range(CANDIDATES)}
    # Of equal ones the longest: it writes least.
    return max(sorted(steps, reverse=True), key=lambda each: goodput(run, each, productive))


def goodput(run: RecordedRun, interval: int, productive: float) -> float:
    """Return the productive share of the wall time of a replay."""
    replayed = replay(run, interval)
    return replayed.kept_steps * productive / replayed.wall if replayed.wall else 0.0


def daly_milliseconds(stall: float, mttf: float) -> float:
    """Return the best training time between two saves by Daly's higher-order estimate.

    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps"
    (2006), equation 37; its first term is Young's formula, sqrt(2 x stall x mttf).

    Args:
        stall: time for which a save holds up training, more than 0.
        mttf: mean time to failure, in the same unit.
    """
    if stall >= 2 * mttf:
        return mttf
    ratio = stall / (2 * mttf)
    return math.sqrt(2 * stall * mttf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall


@dataclass(frozen=True, slots=True)
class _Pace:
    """The timetable of one attempt from a step on."""

    attempt: TrainedAttempt
    start: int
    interval: int
    run: RecordedRun

    def saves(self, steps: int) -> int:
        """Return how many saves begin up to the end of so many steps."""
        if self.interval == 0:
            return 0
        end = min(self.start + steps, self.run.steps - 1)  # the last step has a save of its own
        return max(end // self.interval - self.start // self.interval, 0)

    def end_of(self, steps: int) -> float:
        """Return when so many steps have ended, with the saves before the last of them."""
        attempt, run, before = self.attempt, self.run, self.saves(max(steps - 1, 0))
        # A save waits for the one before it.
        period = self.interval * attempt.step_milliseconds + run.stall
        waits = max(run.save - period, 0.0) * max(before - 1, 0)
        spent = steps * attempt.step_milliseconds + before * run.stall + waits
        return attempt.compilation + spent if steps else 0.0

    def steps_within(self, time: float) -> int:
        """Return how many steps end within so many milliseconds."""
        low, high = 0, self.run.steps
        while low < high:
            middle = (low + high + 1) // 2
            # Half a millisecond: recorded times are rounded to one.
            if self.end_of(middle) <= time + 0.5:
                low = middle
            else:
                high = middle - 1
        return low

    def saved(self, steps: int, time: float) -> int:
        """Return the step of the newest save that is committed within so many milliseconds."""
        newest = _newest(self.start + steps, self.interval)
        while newest > self.start:
            if self.end_of(newest - self.start) + self.run.save <= time + 0.5:
                return newest
            newest -= self.interval
        return self.start


def _newest(step: int, interval: int) -> int:
    return step // interval * interval if interval else 0
