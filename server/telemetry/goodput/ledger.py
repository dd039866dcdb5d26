"""Computes the ledger of a job, a pure function of events and sums.

Each millisecond has one category, and the sum is exact by construction. A walk over the events
assigns the time between two events, and a measured time is taken only from the unassigned rest of
its interval.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from trainyard.protocol.event_kinds import EventKind
from trainyard.protocol.goodput import JOB_CATEGORIES, TimeCategory
from trainyard.protocol.states import AttemptOutcome

Spent = dict[TimeCategory, int]
"""Milliseconds by category; every category of a job is present."""
Part = tuple[TimeCategory, int]
"""A category and its milliseconds."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A period over which the time of each category is spread evenly."""

    start: int
    """Unix time in milliseconds."""
    end: int
    """Unix time in milliseconds."""
    parts: tuple[Part, ...]
    """Categories of the interval; their times sum to its length."""
    attempt: int | None = None
    """Number of the running attempt; None while the job waits for one."""

    def within(self, start: int, end: int) -> Iterator[Part]:
        """Yield the categories between `start` and `end`; they sum to the length of that part."""
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
    """Unix time at which its first step started."""
    recorded: int
    """Unix time at which its last recorded step ended."""
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
    """Compilation time during all steps, kept or lost; the attempt's pace excludes it."""

    @property
    def measured(self) -> tuple[tuple[TimeCategory, int], ...]:
        """The measured times, in the order in which they are taken from the interval."""
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
        """Time from `began` to `recorded`, at least the sum of the measured times.

        A clock that was set back shortens the difference, which may even be negative.
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
    leaves_at: int | None = None
    """Time of the first order to end the attempt."""
    cancelled_at: int | None = None
    stop_agreed: bool = False
    silent_nodes: set[str | None] = field(default_factory=set)
    silent_since: int = 0
    silences: list[tuple[int, int]] = field(default_factory=list)

    def hears(self, node: str | None, at: int) -> None:
        """End the silence of a node."""
        if node in self.silent_nodes:
            self.silent_nodes.discard(node)
            if not self.silent_nodes:
                self.silences.append((self.silent_since, at))

    def misses(self, node: str | None, at: int) -> None:
        """Start the silence of a node."""
        if not self.silent_nodes:
            self.silent_since = at
        self.silent_nodes.add(node)

    def silent_within(self, start: int, end: int) -> int:
        """Return the milliseconds between `start` and `end` in which any node was silent."""
        spans = list(self.silences)
        if self.silent_nodes:
            spans.append((self.silent_since, end))
        return sum(max(0, min(last, end) - max(first, start)) for first, last in spans)


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
        marks: the events of a job in storage order. If a clock was set back, an event with a time
          before its predecessor's counts as simultaneous with the predecessor.
        trainings: recorded steps by attempt number.
        start: the submission time of the job.
        end: the end time of the job, or now; a time before `start` counts as `start`.
        untimed: numbers of the attempts that reported steps without times, so that the end of their
          start-up is unknown.
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
        at = min(max(mark.at, self._now), self._end)
        if self._open is None:
            self._wait_until(at)
        self._now = at
        match mark.kind:
            case EventKind.PLACED:
                self._close(outcome=None)
                self._open, self._placed_once = _OpenAttempt(mark.attempt, at), True
            case EventKind.ATTEMPT_ENDED:
                if self._open is not None and self._open.number == mark.attempt:
                    self._ended(mark)
            case EventKind.QUEUED | EventKind.RESUME_REQUESTED | EventKind.JOB_ENDED:
                if self._open is None:
                    self._waits(mark)
            case _:
                # A lost share of an ended attempt may report during the next attempt.
                if self._open is not None and self._open.number == mark.attempt:
                    _note(self._open, mark.kind, node=mark.node, at=at)

    def finish(self) -> Ledger:
        """Assign the rest of the time and return the ledger."""
        if self._open is None:
            self._wait_until(self._end)
        self._now = self._end
        self._close(outcome=None)
        spent: Spent = dict.fromkeys(JOB_CATEGORIES, 0)
        for interval in self._intervals:
            for category, part in interval.parts:
                spent[category] += part
        return Ledger(tuple(self._intervals), spent, self._scheduled, self._failures)

    def _ended(self, mark: Mark) -> None:
        self._close(outcome=mark.outcome)
        failed = mark.outcome == AttemptOutcome.FAILED and not mark.preempted
        self._failures += failed
        self._between = TimeCategory.IDLE_AFTER_FAILURE if failed else TimeCategory.PAUSED

    def _waits(self, mark: Mark) -> None:
        if mark.kind == EventKind.JOB_ENDED:
            # After an attempt, the attempt's outcome has set the category. A job that ends in the
            # queue waits for a person from then on.
            if self._between in (TimeCategory.QUEUED, TimeCategory.REQUEUED):
                self._between = TimeCategory.PAUSED
            return
        self._between = TimeCategory.REQUEUED if self._placed_once else TimeCategory.QUEUED
        self._not_before = mark.not_before

    def _wait_until(self, at: int) -> None:
        since = self._now
        if self._not_before is not None and self._between == TimeCategory.REQUEUED:
            since = min(max(self._not_before, self._now), at)
            self._add(self._now, since, TimeCategory.BACKOFF)
        self._add(since, at, self._between)

    def _add(self, start: int, end: int, category: TimeCategory) -> None:
        if end > start:
            self._intervals.append(Interval(start, end, ((category, end - start),)))

    def _close(self, *, outcome: AttemptOutcome | None) -> None:
        """Assign the time of the open attempt, which ends at the walk's position."""
        attempt, self._open = self._open, None
        if attempt is None:
            return
        self._not_before = None
        self._scheduled += self._now - attempt.placed
        training = self._trainings.get(attempt.number) if attempt.number is not None else None
        before = TimeCategory.OTHER if attempt.number in self._untimed else TimeCategory.STARTUP
        for start, end, parts in _split(attempt, training, outcome, end=self._now, before=before):
            if end > start:
                self._intervals.append(Interval(start, end, parts, attempt.number))


def _note(attempt: _OpenAttempt, kind: EventKind, *, node: str | None, at: int) -> None:
    match kind:
        case EventKind.UNREACHABLE:
            attempt.misses(node, at)
        case EventKind.REACHABLE | EventKind.NODE_ENDED:
            attempt.hears(node, at)
        case EventKind.STOP_AGREED:
            attempt.stop_agreed = True
        case EventKind.STOP_REQUESTED | EventKind.CANCEL_REQUESTED:
            if attempt.leaves_at is None:
                attempt.leaves_at = at
            if kind == EventKind.CANCEL_REQUESTED and attempt.cancelled_at is None:
                attempt.cancelled_at = at
        case _:
            pass


_Stretch = tuple[int, int, tuple[Part, ...]]
"""Start, end and categories of an interval."""


def _split(
    attempt: _OpenAttempt,
    training: Training | None,
    outcome: AttemptOutcome | None,
    *,
    end: int,
    before: TimeCategory,
) -> Iterator[_Stretch]:
    """Yield the time of an attempt from its placement to `end`, in order.

    If no step is recorded, the time before the order to end has the category `before`.
    """
    if training is None:
        leaves_at = end if attempt.leaves_at is None else attempt.leaves_at
        yield from _unrecorded(attempt, attempt.placed, end, leaves_at=leaves_at, before=before)
        return
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
    leaves_at = end if attempt.cancelled_at is None else max(attempt.cancelled_at, last)
    if attempt.stop_agreed or outcome == AttemptOutcome.SUCCEEDED:
        leaves_at = last
    yield from _unrecorded(attempt, last, end, leaves_at=leaves_at, before=TimeCategory.OTHER)


def _unrecorded(
    attempt: _OpenAttempt, start: int, end: int, *, leaves_at: int, before: TimeCategory
) -> Iterator[_Stretch]:
    """Yield time without steps, before and after the order to end, less any silence."""
    for first, last, category in (
        (start, leaves_at, before),
        (leaves_at, end, TimeCategory.ENDING),
    ):
        silent = attempt.silent_within(first, last)
        yield first, last, ((TimeCategory.UNREACHABLE, silent), (category, last - first - silent))
