"""Computes the ledger of a job from its events and from sums of its metrics, as a pure function.

Each millisecond has one category, so the sum is exact. A walk over the events gives a category to
the time between two events. Measured times, such as a stall, divide the training time of an
attempt. Each of them takes only milliseconds that no earlier one has taken.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from trainyard.protocol.event_kinds import EventKind
from trainyard.protocol.goodput import JOB_CATEGORIES, TimeCategory
from trainyard.protocol.states import AttemptOutcome

Spent = dict[TimeCategory, int]
"""Milliseconds by category; every category of a job is present."""
Part = tuple[TimeCategory, int]
"""A category and its milliseconds."""
_Stretch = tuple[int, int, tuple[Part, ...]]
"""Start, end and categories of an interval."""
LATEST = sys.maxsize
"""A time after all others."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A period over which the time of each category is spread evenly.

    Times are Unix times in milliseconds.
    """

    start: int
    end: int
    parts: tuple[Part, ...]
    """Categories of the interval, each with its time; the times sum to the length of the interval.
    """
    attempt: int | None = None
    """Number of the running attempt; None while the job waits for one."""

    def within(self, start: int, end: int) -> Iterator[Part]:
        """Yield each category with its time between `start` and `end`."""
        first, last = max(start, self.start), min(end, self.end)
        if last <= first:
            return
        length, whole = last - first, self.end - self.start
        before = passed = 0
        for category, time in self.parts:
            before += time
            # Differences of rounded sums instead of rounded times, so that the total stays exact.
            part = before * length // whole - passed
            passed += part
            if part:
                yield category, part


@dataclass(frozen=True, slots=True)
class Mark:
    """An event that may start or end a category. Times are Unix times in milliseconds."""

    at: int
    kind: EventKind
    attempt: int | None = None
    node: str | None = None
    not_before: int | None = None
    """Earliest launch time of a requeued job."""
    outcome: AttemptOutcome | None = None
    """Outcome of the attempt."""
    preempted: bool = False
    """Whether the attempt was preempted, which is not a failure."""


@dataclass(frozen=True, slots=True)
class Training:
    """The recorded steps of an attempt; times in milliseconds, by the clock of global rank 0."""

    began: int
    """Unix time at which the attempt's first step started."""
    recorded: int
    """Unix time at which the attempt's last recorded step ended."""
    productive: int
    """Time of kept steps, without compilation and without waiting for data."""
    lost: int
    """Time of lost steps, including compilation and waiting for data."""
    compilation: int
    """Compilation time during kept steps."""
    data_wait: int
    """Time spent on waiting for data during kept steps."""
    save_stall: int
    """Time for which saves held up training after the first step."""
    validation: int
    """Time of validation."""
    last_step: int = 0
    """Number of the last recorded step."""
    compiled: int = 0
    """Compilation time during all steps, kept or lost; the attempt's pace excludes this time."""

    @property
    def measured(self) -> tuple[tuple[TimeCategory, int], ...]:
        """The measured times, in the order in which the ledger assigns them."""
        return (
            (TimeCategory.PRODUCTIVE, self.productive),
            (TimeCategory.LOST, self.lost),
            (TimeCategory.COMPILATION, self.compilation),
            (TimeCategory.DATA_WAIT, self.data_wait),
            (TimeCategory.SAVE_STALL, self.save_stall),
            (TimeCategory.VALIDATION, self.validation),
        )

    @property
    def length(self) -> int:
        """Time from `began` to `recorded`, but at least the sum of the measured times.

        If a clock was set back, the difference of the two times is too small, or even negative.
        """
        return max(self.recorded - self.began, sum(time for _, time in self.measured))


@dataclass(frozen=True, slots=True)
class Ledger:
    """The wall time of a job by category."""

    intervals: tuple[Interval, ...]
    """Intervals in order of time, without gaps or overlaps."""
    spent: Spent
    scheduled: int
    """Total milliseconds of all attempts, each from its placement to its end."""
    failures: int
    """Number of attempts that failed and were not preempted."""


@dataclass(slots=True)
class _OpenAttempt:
    """The attempt that is running at the walk's position."""

    number: int | None
    placed: int
    leaves_at: int = LATEST
    """Time of the first order to end the attempt."""
    cancelled_at: int = LATEST
    stop_agreed: bool = False
    silent_nodes: set[str | None] = field(default_factory=set)
    silences: list[tuple[int, int]] = field(default_factory=list)
    """Periods in which at least one node was silent; a period that has not ended yet ends at
    `LATEST`.
    """

    def note(self, mark: Mark, at: int) -> None:
        match mark.kind:
            case EventKind.UNREACHABLE:
                if not self.silent_nodes:
                    self.silences.append((at, LATEST))
                self.silent_nodes.add(mark.node)
            case EventKind.REACHABLE | EventKind.NODE_ENDED if mark.node in self.silent_nodes:
                self.silent_nodes.remove(mark.node)
                if not self.silent_nodes:
                    self.silences[-1] = (self.silences[-1][0], at)
            case EventKind.STOP_AGREED:
                self.stop_agreed = True
            case EventKind.STOP_REQUESTED:
                self.leaves_at = min(self.leaves_at, at)
            case EventKind.CANCEL_REQUESTED:
                self.leaves_at = min(self.leaves_at, at)
                self.cancelled_at = min(self.cancelled_at, at)
            case _:
                pass

    def without_steps(
        self, start: int, end: int, *, leaves_at: int, before: TimeCategory
    ) -> Iterator[_Stretch]:
        """Yield the time from `start` to `end`, during which no step was recorded.

        Until `leaves_at`, the category is `before`; from then on, it is `ending`. Periods of
        silence have the category `unreachable` instead.
        """
        for first, last, category in (
            (start, leaves_at, before),
            (leaves_at, end, TimeCategory.ENDING),
        ):
            silent = sum(max(0, min(b, last) - max(a, first)) for a, b in self.silences)
            rest = last - first - silent
            yield first, last, ((TimeCategory.UNREACHABLE, silent), (category, rest))


def ledger_of(
    marks: Iterable[Mark],
    trainings: Mapping[int, Training],
    *,
    start: int,
    end: int,
    untimed: Collection[int] = (),
) -> Ledger:
    """Return the ledger of the time from `start` to `end`, Unix times in milliseconds.

    Args:
        marks: the events of a job in storage order. An event may have an earlier time than the
            previous event if a clock was set back; then the previous event's time is used for both.
        trainings: recorded steps by attempt number.
        start: the submission time of the job.
        end: the end time of the job, or now; a time before `start` counts as `start`.
        untimed: numbers of the attempts with an unknown end of their start-up, because they
            reported steps without times.
    """
    walk = _Walk(start, max(start, end), trainings=trainings, untimed=untimed)
    for mark in marks:
        walk.take(mark)
    return walk.finish()


class _Walk:
    def __init__(
        self, start: int, end: int, *, trainings: Mapping[int, Training], untimed: Collection[int]
    ) -> None:
        self._now, self._end = start, end
        self._trainings, self._untimed = trainings, untimed
        self._intervals: list[Interval] = []
        self._scheduled = self._failures = 0
        self._open: _OpenAttempt | None = None
        self._between = TimeCategory.QUEUED
        self._not_before: int | None = None
        self._placed_once = False

    def take(self, mark: Mark) -> None:
        """Assign the time up to an event, then apply the event."""
        self._move_to(min(max(mark.at, self._now), self._end))
        match mark.kind:
            case EventKind.PLACED:
                self._close()
                self._open, self._placed_once = _OpenAttempt(mark.attempt, self._now), True
            case EventKind.QUEUED | EventKind.RESUME_REQUESTED if self._open is None:
                requeued = self._placed_once
                self._between = TimeCategory.REQUEUED if requeued else TimeCategory.QUEUED
                self._not_before = mark.not_before
            case EventKind.JOB_ENDED if self._open is None:
                # After an attempt, the attempt's outcome has set the category. A job that ends in
                # the queue waits for a person from then on.
                if self._between in (TimeCategory.QUEUED, TimeCategory.REQUEUED):
                    self._between = TimeCategory.PAUSED
            case _:
                # A lost share of an ended attempt may report during the next attempt.
                if self._open is not None and self._open.number == mark.attempt:
                    self._apply(mark, self._open)

    def finish(self) -> Ledger:
        """Assign the remaining time and return the ledger."""
        self._move_to(self._end)
        self._close()
        spent: Spent = dict.fromkeys(JOB_CATEGORIES, 0)
        for interval in self._intervals:
            for category, part in interval.parts:
                spent[category] += part
        return Ledger(tuple(self._intervals), spent, self._scheduled, self._failures)

    def _apply(self, mark: Mark, attempt: _OpenAttempt) -> None:
        if mark.kind != EventKind.ATTEMPT_ENDED:
            attempt.note(mark, self._now)
            return
        self._close(mark.outcome)
        failed = mark.outcome == AttemptOutcome.FAILED and not mark.preempted
        self._failures += failed
        self._between = TimeCategory.IDLE_AFTER_FAILURE if failed else TimeCategory.PAUSED

    def _move_to(self, at: int) -> None:
        if self._open is None:
            since = self._now
            if self._not_before is not None and self._between == TimeCategory.REQUEUED:
                since = min(max(self._not_before, since), at)
                self._add(self._now, since, ((TimeCategory.BACKOFF, since - self._now),))
            self._add(since, at, ((self._between, at - since),))
        self._now = at

    def _add(
        self, start: int, end: int, parts: tuple[Part, ...], *, attempt: int | None = None
    ) -> None:
        if end > start:
            self._intervals.append(Interval(start, end, parts, attempt))

    def _close(self, outcome: AttemptOutcome | None = None) -> None:
        """Assign the time of the open attempt, which ends at the walk's position."""
        attempt, self._open = self._open, None
        if attempt is None:
            return
        self._not_before = None
        self._scheduled += self._now - attempt.placed
        training = self._trainings.get(attempt.number) if attempt.number is not None else None
        if training is None:
            before = TimeCategory.OTHER if attempt.number in self._untimed else TimeCategory.STARTUP
            leaves_at = min(attempt.leaves_at, self._now)
            stretches = attempt.without_steps(
                attempt.placed, self._now, leaves_at=leaves_at, before=before
            )
        else:
            stretches = _with_steps(attempt, training, outcome, end=self._now)
        for start, end, parts in stretches:
            self._add(start, end, parts, attempt=attempt.number)


def _with_steps(
    attempt: _OpenAttempt, training: Training, outcome: AttemptOutcome | None, *, end: int
) -> Iterator[_Stretch]:
    """Yield the intervals of an attempt with recorded steps, in order, from placement to `end`."""
    # The trainer's clock may differ from the server's, so shift the interval just far enough to
    # lie within the attempt.
    length = min(training.length, end - attempt.placed)
    first = min(max(training.began, attempt.placed), end - length)
    yield attempt.placed, first, ((TimeCategory.STARTUP, first - attempt.placed),)
    last = first + length
    taken, left = {}, length
    for category, time in training.measured:
        taken[category] = min(time, left)
        left -= taken[category]
    taken[TimeCategory.OTHER] = left
    lost = taken.pop(TimeCategory.LOST)
    yield first, last - lost, tuple(taken.items())
    yield last - lost, last, ((TimeCategory.LOST, lost),)  # steps after the last kept step
    leaves_at = max(min(attempt.cancelled_at, end), last)
    if attempt.stop_agreed or outcome == AttemptOutcome.SUCCEEDED:
        leaves_at = last
    yield from attempt.without_steps(last, end, leaves_at=leaves_at, before=TimeCategory.OTHER)
