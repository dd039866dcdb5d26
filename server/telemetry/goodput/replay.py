"""Replays a job's records with another save interval, as a pure function.

Each attempt trains for its recorded time, at its own pace, and fails at the recorded moment. Only
its start step, its number of saves and its number of lost steps change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

LEAST_SHARE = 0.25
"""An attempt's own pace is used only if its steps, without compilation and stalls, take more than
this share of its training time. Otherwise the own pace is too inexact, so the mean pace of all
attempts is used.
"""
CANDIDATES = 64
"""Maximum number of candidate intervals, evenly spaced on a logarithmic scale."""


@dataclass(frozen=True, slots=True)
class TrainedAttempt:
    """Records of an attempt that trained steps. Times are in milliseconds."""

    began: int
    """Time from the submission of the job to the start of the attempt's first step."""
    start_step: int
    last_step: int
    """Number of the last recorded step."""
    training: int
    """Time from the start of the first step to the end of the last recorded step, at least 0."""
    lived: int
    """Time from the start of the first step to the last sign of training."""
    compilation: int
    """Compilation time within `training`; a replay adds this time once to the attempt."""
    stalls: int
    """Time within `training` for which saves held up training."""
    loses_tail: bool = False
    """Whether the attempt ended without saving its last step, so that the steps after its newest
    save are lost."""
    chosen_start: bool = False
    """Whether a rollback or a person chose a start before the newest checkpoint."""

    @property
    def steps(self) -> int:
        """Number of the attempt's steps, at least 1."""
        return max(self.last_step - self.start_step, 1)

    @property
    def stepping(self) -> int:
        """Time of the attempt's steps without compilation and saves."""
        return max(self.training - self.compilation - self.stalls, 0)


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The records of a job that a replay reads."""

    attempts: Sequence[TrainedAttempt]
    """Attempts in the order of their numbers; at least one."""
    steps: int
    """Number of steps after which the job ends."""
    wall: int
    """Milliseconds from the submission of the job to its end, or to now."""
    succeeded: bool
    """Whether the job reached its last step; if so, the replay reaches it too, without a time
    limit.
    """
    stall: float
    """Milliseconds for which one save holds up training."""
    save: float
    """Milliseconds from the start of a save to its commit."""

    def step_milliseconds(self, attempt: TrainedAttempt) -> float:
        """Return an attempt's mean step time, more than 0, without compilation and saves.

        An attempt that spent most of its time on compilation and saves gets the mean of all
        attempts.
        """
        if attempt.stepping > LEAST_SHARE * attempt.training:
            return attempt.stepping / attempt.steps
        steps = sum(each.steps for each in self.attempts)
        stepping = sum(each.stepping for each in self.attempts)
        # If no attempt has a pace, count compilation and stalls as steps: a step is never free.
        whole = stepping or sum(each.training for each in self.attempts)
        return max(whole, 1) / steps


@dataclass(frozen=True, slots=True)
class Replayed:
    """The steps, saves and times that result from a replay."""

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
    """Milliseconds from the submission of the job to its end, or to now."""

    def goodput(self, productive: float) -> float | None:
        """Return the productive share of the wall time, from 0 to 1; None without wall time.

        `productive` is the fraction of the time of kept steps that counts as productive, at most 1.
        """
        if self.wall <= 0:
            return None
        # Limit to 1, because records of nodes with different clocks may overlap.
        return min(self.kept * productive / self.wall, 1.0)


def replay(run: RecordedRun, interval: int) -> Replayed:
    """Replay a run with a save after every `interval` steps; 0 means no saves."""
    position = run.attempts[0].start_step
    first, lost_steps, saves, lost, wall = position, 0, 0, 0.0, run.wall
    kept: list[_Kept] = []
    for index, attempt in enumerate(run.attempts):
        if attempt.chosen_start:
            chosen = _newest(attempt.start_step, interval)
            before, position = position, min(position, max(chosen, first))
            lost_steps += before - position
            while kept and kept[-1].start >= position:  # `kept` is in ascending order
                lost += kept.pop().milliseconds
            if kept:
                cut = kept[-1].until(position)
                lost += kept[-1].milliseconds - cut.milliseconds
                kept[-1] = cut
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
    """Return the candidate save interval, in steps, that gives the highest goodput.

    `productive` is the fraction of the time of kept steps that counts as productive, at most 1.
    """
    longest = max(run.steps - run.attempts[0].start_step, 1)
    steps: set[int] = {round(longest ** (n / (CANDIDATES - 1))) for n in range(CANDIDATES)}
    # Among equal candidates, prefer the longest interval because it writes least.
    return max(
        sorted(steps, reverse=True), key=lambda each: replay(run, each).goodput(productive) or 0.0
    )


@dataclass(frozen=True, slots=True)
class _Kept:
    """The steps of one attempt that the replay keeps."""

    start: int
    end: int
    step: float
    """Milliseconds of one step."""

    @property
    def milliseconds(self) -> float:
        return (self.end - self.start) * self.step

    def until(self, step: int) -> _Kept:
        """Return a copy with only the kept steps up to and including `step`."""
        return replace(self, end=max(min(self.end, step), self.start))


@dataclass(frozen=True, slots=True)
class _Pace:
    """The timetable of one attempt in a replay, from the step `start` on."""

    attempt: TrainedAttempt
    start: int
    interval: int
    run: RecordedRun
    step: float
    """Milliseconds of a step, more than 0."""

    def saves(self, steps: int) -> int:
        """Return the number of saves that start by the end of the next `steps` steps, without the
        save of the job's last step."""
        if self.interval == 0:
            return 0
        end = min(self.start + steps, self.run.steps - 1)  # the last step has its own save
        return max(end // self.interval - self.start // self.interval, 0)

    def end_of(self, steps: int) -> float:
        """Return the milliseconds until the end of `steps` steps, with compilation and saves."""
        attempt, run, before = self.attempt, self.run, self.saves(max(steps - 1, 0))
        # A save waits until the previous save has ended.
        period = self.interval * self.step + run.stall
        waits = max(run.save - period, 0.0) * max(before - 1, 0)
        spent = steps * self.step + before * run.stall + waits
        return attempt.compilation + spent if steps else 0.0

    def steps_within(self, time: float) -> int:
        """Return the number of steps that end within `time` milliseconds."""
        # Add half a millisecond, because recorded times are rounded to milliseconds.
        return bisect_right(range(1, self.run.steps + 1), time + 0.5, key=self.end_of)

    def saved(self, steps: int, time: float) -> int:
        """Return the step of the newest save committed within `time` ms; `start` without one."""
        newest = _newest(self.start + steps, self.interval)
        while newest > self.start:
            if self.end_of(newest - self.start) + self.run.save <= time + 0.5:
                return newest
            newest -= self.interval
        return self.start


def _newest(step: int, interval: int) -> int:
    return step // interval * interval if interval else 0
