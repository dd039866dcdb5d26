"""Replays a job's records with another save interval, as a pure function.

Each attempt trains for as long as it did, at its own pace, and fails at the same moment. Only its
start step, the number of its saves and the number of its lost steps change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

LEAST_SHARE = 0.25
"""Least share of pure steps, without compilation and stalls, in an attempt's training for its own
pace to count. Below it, the errors of the subtracted times are as large as the rest."""
CANDIDATES = 64
"""Intervals to choose the best one from, evenly spaced on a logarithmic scale."""


@dataclass(frozen=True, slots=True)
class TrainedAttempt:
    """Records of an attempt with steps. Times are in milliseconds."""

    began: int
    """From the submission to the start of its first step."""
    start_step: int
    last_step: int
    """Last recorded step."""
    training: int
    """From the start of its first step to the end of its last recorded one, at least 0."""
    lived: int
    """From the start of its first step to the last sign of training."""
    compilation: int
    """Compilation within `training`, which happens once."""
    stalls: int
    """Stalls by saves within `training`."""
    loses_tail: bool = False
    """Whether it ended without saving its last step: the steps after its newest save are lost."""
    chosen_start: bool = False
    """Whether it starts before the newest checkpoint: a rollback, or a person's choice."""

    @property
    def steps(self) -> int:
        """Number of its steps, at least 1."""
        return max(self.last_step - self.start_step, 1)

    @property
    def stepping(self) -> int:
        """Time of its steps without compilation and saves."""
        return max(self.training - self.compilation - self.stalls, 0)


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
    """Whether it reached its last step; then the replay takes as long as it needs."""
    stall: float
    """Milliseconds for which one save holds up training."""
    save: float
    """Milliseconds from the start of a save to its commit."""

    def step_milliseconds(self, attempt: TrainedAttempt) -> float:
        """Return an attempt's mean step time without compilation and saves, more than 0.

        An attempt that did little else gets the mean of all attempts.
        """
        if attempt.stepping > LEAST_SHARE * attempt.training:
            return attempt.stepping / attempt.steps
        steps = sum(each.steps for each in self.attempts)
        stepping = sum(each.stepping for each in self.attempts)
        # If no attempt has a pace, compilation and stalls count as steps: a step is never free.
        whole = stepping or sum(each.training for each in self.attempts)
        return max(whole, 1) / steps


@dataclass(frozen=True, slots=True)
class Replayed:
    """The outcome of a replay."""

    kept_steps: int
    kept: float
    """Milliseconds of kept steps."""
    lost_steps: int
    lost: int
    """Milliseconds of lost steps."""
    saves: int
    stalls: int
    """Milliseconds for which saves held up training."""
    wall: int
    """Milliseconds from the submission to the end, or to now."""


def replay(run: RecordedRun, interval: int) -> Replayed:
    """Replay a run with a save every `interval` steps; 0 means without saves."""
    position = run.attempts[0].start_step
    first, lost_steps, saves, lost, wall = position, 0, 0, 0.0, run.wall
    kept: list[_Kept] = []
    for index, attempt in enumerate(run.attempts):
        if attempt.chosen_start:
            chosen = _newest(attempt.start_step, interval)
            position = min(position, max(chosen, first))
            while kept and kept[-1].start >= position:  # they are in rising order
                kept.pop()
            if kept:
                kept[-1] = kept[-1].until(position)
        is_last = index == len(run.attempts) - 1
        pace = _Pace(attempt, position, interval, run, run.step_milliseconds(attempt))
        left = max(run.steps - position, 0)
        done = left if is_last and run.succeeded else min(pace.steps_within(attempt.lived), left)
        saves += pace.saves(done)
        reached = position + done
        if reached >= run.steps and run.succeeded:
            last = run.attempts[-1]
            after = run.wall - (last.began + last.training)
            wall = round(attempt.began + pace.end_of(done) + after)
            kept.append(_Kept(position, reached, pace.step))
            position = reached
            break
        saved = pace.saved(done, attempt.lived) if attempt.loses_tail else reached
        lost_steps += reached - saved
        lost += (reached - saved) * pace.step
        kept.append(_Kept(position, saved, pace.step))
        position = saved
    return Replayed(
        kept_steps=position - first,
        kept=sum(each.milliseconds for each in kept),
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
        productive: productive share of the time of kept steps, at most 1.
    """
    longest = max(run.steps - run.attempts[0].start_step, 1)
    steps: set[int] = {round(longest ** (n / (CANDIDATES - 1))) for n in range(CANDIDATES)}
    # Among equal ones the longest: it writes least.
    return max(sorted(steps, reverse=True), key=lambda each: goodput(run, each, productive))


def goodput(run: RecordedRun, interval: int, productive: float) -> float:
    """Return the productive share of the wall time of a replay."""
    return goodput_of(replay(run, interval), productive) or 0.0


def goodput_of(replayed: Replayed, productive: float) -> float | None:
    """Return the productive share of the wall time, from 0 to 1; None if that is zero.

    Args:
        replayed: the outcome.
        productive: productive share of the time of kept steps, at most 1.
    """
    if replayed.wall <= 0:
        return None
    # Records of nodes with different clocks may overlap.
    return min(replayed.kept * productive / replayed.wall, 1.0)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Steps of one attempt that the replay keeps."""

    start: int
    end: int
    step: float
    """Milliseconds of one step."""

    @property
    def milliseconds(self) -> float:
        return (self.end - self.start) * self.step

    def until(self, step: int) -> _Kept:
        """Return the kept steps up to a step."""
        return replace(self, end=max(min(self.end, step), self.start))


@dataclass(frozen=True, slots=True)
class _Pace:
    """The timetable of one attempt from a step on."""

    attempt: TrainedAttempt
    start: int
    interval: int
    run: RecordedRun
    step: float
    """Milliseconds of a step, more than 0."""

    def saves(self, steps: int) -> int:
        """Return the number of saves that start up to the end of so many steps."""
        if self.interval == 0:
            return 0
        end = min(self.start + steps, self.run.steps - 1)  # the last step has a save of its own
        return max(end // self.interval - self.start // self.interval, 0)

    def end_of(self, steps: int) -> float:
        """Return the end of so many steps in milliseconds, with the saves before the last one."""
        attempt, run, before = self.attempt, self.run, self.saves(max(steps - 1, 0))
        # A save waits for the one before it.
        period = self.interval * self.step + run.stall
        waits = max(run.save - period, 0.0) * max(before - 1, 0)
        spent = steps * self.step + before * run.stall + waits
        return attempt.compilation + spent if steps else 0.0

    def steps_within(self, time: float) -> int:
        """Return the number of steps that end within so many milliseconds."""
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
        """Return the step of the newest save committed within so many milliseconds."""
        newest = _newest(self.start + steps, self.interval)
        while newest > self.start:
            if self.end_of(newest - self.start) + self.run.save <= time + 0.5:
                return newest
            newest -= self.interval
        return self.start


def _newest(step: int, interval: int) -> int:
    return step // interval * interval if interval else 0
