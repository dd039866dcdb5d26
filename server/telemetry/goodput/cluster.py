"""The slot-time of the cluster's held and free slots, by category and day."""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from traceback import clear_frames

from sqlalchemy import Connection, Subquery, func, select

from server.core.context import Context
from server.core.database.column_types import text_of
from server.core.database.engine import batches
from server.core.database.tables import attempts, jobs
from server.core.visibility.scope import Scope
from server.telemetry.goodput.capacity import read_capacity
from server.telemetry.goodput.holdings import HeldShare, read_holdings, spent_by_day
from server.telemetry.goodput.ledger import Ledger
from server.telemetry.goodput.queries import EPOCH, milliseconds, read_records
from server.telemetry.goodput.reliability import mean_time_to_failure
from server.telemetry.goodput.slot_time import DAY, ByDay, Spent, add, total, unheld
from trainyard.protocol.goodput import (
    SLOT_CATEGORIES,
    WORDS,
    ClusterGoodputView,
    DayOfSlots,
    LosingJob,
    ProjectSlotTime,
    SlotTime,
    TimeCategory,
)
from trainyard.protocol.states import AttemptCause, AttemptOutcome
from trainyard.run.failures import FailureReason

logger = logging.getLogger(__name__)

KEPT = timedelta(minutes=1)
"""Requests for the same days get a result of at most this age without a new computation."""
SCRAPED = timedelta(minutes=5)
"""A scrape starts the next computation when the last result has reached this age."""
SERVED = timedelta(minutes=10)
"""Maximum age of a result that is served while the next one is computed."""
MAX_KEPT = 16
"""Maximum number of results that one process keeps; the same maximum applies to failures."""
USUAL_DAYS = 30
"""Number of days in a response to a request without a first day."""
READ_AT_ONCE = 50
"""Number of jobs whose ledgers one transaction reads; a transaction takes about 0.1 s."""
MAX_LOSING = 10
"""Maximum number of jobs with lost steps in a response."""

_Asked = tuple[date, date, str | None]
"""First day, last day and project."""
_Answer = Future[ClusterGoodputView]
_Ended = tuple[datetime, _Answer]
"""End time of a computation, and its result."""


@dataclass(slots=True)
class _Snapshot:
    """Data that is common to the results for different days and projects."""

    now: datetime
    """The time that all results use as the present; it is taken before the ledgers are read."""
    read_at: datetime
    """Time at which the first result was finished."""
    ledgers: dict[str, Ledger | None] = field(default_factory=dict)
    """Ledgers of unsettled jobs by id; None for a deleted job."""


def visible_part(view: ClusterGoodputView, scope: Scope) -> ClusterGoodputView:
    """Return the slot-time with the projects and jobs that the caller sees; totals stay."""
    projects = tuple(each for each in view.projects if scope.sees(each.project))
    jobs = tuple(each for each in view.losing_jobs if scope.sees(each.project))
    return view.model_copy(update={"projects": projects, "losing_jobs": jobs})


class ClusterLedger:
    """The slot-time of the cluster, computed at most once a minute for the same days.

    A computation reads the ledger of every job that is not settled. Therefore only one thread
    computes. Results that start within one minute share their ledgers, and requests for the same
    days share one future. A request waits only if there is no result, or if the last one is older
    than `SERVED`, and a waiting request occupies no thread.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cluster-ledger")
        self._kept: dict[_Asked, _Ended] = {}
        self._failed: dict[_Asked, _Ended] = {}
        self._running: dict[_Asked, _Answer] = {}
        self._snapshot: _Snapshot | None = None  # used only by the thread

    def view(self, first: date, last: date, project: str | None = None) -> _Answer:
        """Return the slot-time from the start of `first` to the end of `last`, or to now.

        If `project` is given, only the slot-time that the project's jobs held is returned. The
        future raises errors of the database. A failed computation is repeated after `KEPT`.
        """
        asked, now = (first, last, project), self._context.now()
        with self._lock:
            running = self._begin(asked, now, pause=KEPT)
            if asked in (served := _within(SERVED, self._kept, now)):
                return served[asked][1]
            return running or self._failed[asked][1]

    def newest(self, days: int) -> ClusterGoodputView | None:
        """Return the newest result for this number of days up to now, without waiting.

        Return None if every result is older than `SERVED`. The next computation starts when today's
        result has reached the age `SCRAPED`. Shortly after midnight, the newest result may still
        end on the previous day.
        """
        now = self._context.now()
        today = now.date()
        with self._lock:
            self._begin((today - timedelta(days=days - 1), today, None), now, pause=SCRAPED)
            newest_first = reversed(_within(SERVED, self._kept, now).items())
        for (first, last, project), (_, answer) in newest_first:
            view = answer.result()
            had_ended = view.until.date() > last
            if project is None and (last - first).days == days - 1 and not had_ended:
                return view
        return None

    def close(self) -> None:
        """Stop the thread: await its current computation and cancel the queued ones."""
        self._thread.shutdown(cancel_futures=True)

    def _begin(self, asked: _Asked, now: datetime, *, pause: timedelta) -> _Answer | None:
        """Return the computation that runs for `asked`.

        If none runs, start one, or return None if the last one ended less than `pause` ago.
        """
        ended = [each[asked][0] for each in (self._kept, self._failed) if asked in each]
        if asked not in self._running and not any(_is_within(pause, at, now) for at in ended):
            self._running[asked] = self._thread.submit(self._answer, asked)
        return self._running.get(asked)

    def _answer(self, asked: _Asked) -> ClusterGoodputView:
        try:
            view = self._computed(asked)
        except Exception as error:
            logger.exception("the slot-time of %s to %s (project %s) cannot be computed", *asked)
            # Clear the frames: the failure is kept, and its traceback would keep a snapshot alive.
            clear_frames(error.__traceback__)
            self._end(asked, self._failed)
            raise
        self._end(asked, self._kept)
        return view

    def _end(self, asked: _Asked, answers: dict[_Asked, _Ended]) -> None:
        """Move a finished computation to `answers`."""
        # Ages count from the end; otherwise a computation longer than `KEPT` serves no request.
        now = self._context.now()
        with self._lock:
            answers.pop(asked, None)  # so that the newest result becomes the last one
            for each in (self._kept, self._failed):
                for old in each.keys() - _within(SERVED, each, now).keys():
                    del each[old]
            for oldest in list(answers)[: 1 - MAX_KEPT]:
                del answers[oldest]
            answers[asked] = (now, self._running.pop(asked))

    def _computed(self, asked: _Asked) -> ClusterGoodputView:
        now, snapshot = self._context.now(), self._snapshot
        usable = snapshot is not None and _is_within(KEPT, snapshot.read_at, now)
        # A snapshot taken before the requested last day started has no data for that day.
        if snapshot is None or not usable or snapshot.now.date() < asked[1]:
            snapshot = _Snapshot(now, now)
        view = _compute(self._context, asked, snapshot)
        if snapshot is not self._snapshot:
            snapshot.read_at = self._context.now()
            self._snapshot = snapshot
        return view


def _is_within(age: timedelta, finished_at: datetime, now: datetime) -> bool:
    # If the clock is set back, a result must not live longer.
    return timedelta() <= now - finished_at < age


def _within(
    age: timedelta, answers: Mapping[_Asked, _Ended], now: datetime
) -> dict[_Asked, _Ended]:
    return {asked: ended for asked, ended in answers.items() if _is_within(age, ended[0], now)}


def _compute(context: Context, asked: _Asked, snapshot: _Snapshot) -> ClusterGoodputView:
    first, last, project = asked
    now = snapshot.now
    since = datetime.combine(first, time(), UTC)
    until = max(min(datetime.combine(last + timedelta(days=1), time(), UTC), now), since)
    start, end = milliseconds(since), milliseconds(until)
    with context.database.read() as connection:
        held = read_holdings(connection, since=since, until=until, now=now, project=project)
        capacity = read_capacity(connection, since=since, until=until)
        failures = _failures(connection, since=since, until=until, project=project)
    _add_ledgers(context, snapshot.ledgers, held)
    by_day: ByDay = defaultdict(Counter)
    lost: Counter[str] = Counter()
    projects: dict[str, Spent] = defaultdict(Counter)
    for holding in held:
        ledger = snapshot.ledgers.get(holding.job_id)
        by_share: Mapping[int, Mapping[str, int]]
        if holding.is_settled and ledger is None:
            by_share = holding.stored()
        else:
            by_share = spent_by_day(holding, ledger, start=start, end=end)
        for day, times in by_share.items():
            if start <= day * DAY < end:
                by_day[day].update(times)
                projects[holding.project].update(times)
                lost[holding.job_id] += times.get(TimeCategory.LOST, 0)
    if project is None:
        add(by_day, unheld(capacity, (each.held for each in held), start=start, end=end))
    spent = total(by_day)
    whole = spent.total()
    attempt_seconds, node_days = _attempt_time(held, start=start, end=end)
    return ClusterGoodputView(
        since=since,
        until=until,
        slot_milliseconds=whole,
        categories=_times(spent, SLOT_CATEGORIES),
        goodput=spent[TimeCategory.PRODUCTIVE] / whole if whole else None,
        **dict(mean_time_to_failure(attempt_seconds, failures)),
        failures_per_1000_node_days=1000 * failures / node_days if node_days else None,
        days=tuple(
            DayOfSlots(
                day=(EPOCH + timedelta(days=day)).date(),
                slot_milliseconds=times.total(),
                categories=_present(times),
            )
            for day, times in sorted(by_day.items())
        ),
        projects=tuple(
            ProjectSlotTime(
                project=name, slot_milliseconds=times.total(), categories=_present(times)
            )
            for name, times in sorted(projects.items())
        ),
        losing_jobs=_losing_jobs(context, +lost, held),
    )


def _add_ledgers(
    context: Context, ledgers: dict[str, Ledger | None], held: Iterable[HeldShare]
) -> None:
    """Add the ledgers of the jobs that have unsettled shares.

    Each transaction reads some of the ledgers, because a transaction for all ledgers would stay
    open for seconds.
    """
    unsettled = {each.job_id for each in held if not each.is_settled}
    left = sorted(unsettled - ledgers.keys())
    for some in batches(left, READ_AT_ONCE):
        with context.database.read() as connection:
            records = read_records(context, connection, some)
        # None if the job was deleted before it was settled.
        ledgers |= {id_: records[id_].ledger if id_ in records else None for id_ in some}


def _losing_jobs(
    context: Context, lost: Counter[str], held: Iterable[HeldShare]
) -> tuple[LosingJob, ...]:
    most = lost.most_common(MAX_LOSING)
    held = [*held]
    names = {holding.job_id: holding.job_name for holding in held}
    projects = {holding.job_id: holding.project for holding in held}
    found: dict[str, Counter[str | None]] = {job_id: Counter() for job_id, _ in most}
    with context.database.read() as connection:
        failed = _failed(connection).c
        query = (
            select(failed.job_id, failed.reason, func.count())
            .where(failed.job_id.in_(list(found)))
            .group_by(failed.job_id, failed.reason)
        )
        for job_id, reason, count in connection.execute(query):
            found[job_id][reason] = count
    return tuple(
        LosingJob(
            job_id=job_id,
            name=names[job_id],
            lost_slot_milliseconds=time_lost,
            reason=_most_frequent(found[job_id]),
            failures=found[job_id].total(),
            project=projects[job_id],
        )
        for job_id, time_lost in most
    )


def _most_frequent(reasons: Counter[str | None]) -> FailureReason | None:
    # Another version may have stored a reason that this version does not know.
    known = (each for each in FailureReason if reasons[each])
    return max(known, key=lambda each: reasons[each], default=None)


def _attempt_time(held: Iterable[HeldShare], *, start: int, end: int) -> tuple[float, float]:
    """Return total seconds and node-days, between two times, of all attempts of existing jobs."""
    attempt_times: dict[tuple[str, int], int] = {}
    of_nodes = 0
    for share in held:
        if share.job_state is None:  # its attempts and their failures are deleted
            continue
        own, key = share.held, (share.job_id, share.attempt)
        time_held = max(min(own.until, end) - max(own.since, start), 0)
        of_nodes += time_held
        if not share.spare:  # a spare outlives an attempt that lost a node
            attempt_times[key] = max(attempt_times.get(key, 0), time_held)
    return sum(attempt_times.values()) / 1000, of_nodes / DAY


def _failures(
    connection: Connection, *, since: datetime, until: datetime, project: str | None
) -> int:
    """Return the number of attempts that failed here between two times, without preemptions."""
    failed = _failed(connection)
    query = (
        select(func.count())
        .join_from(failed, jobs, jobs.c.id == failed.c.job_id)
        .where(failed.c.ended_at >= since, failed.c.ended_at < until)
    )
    if project is not None:
        query = query.where(jobs.c.project == project)
    return connection.scalar(query) or 0


def _failed(connection: Connection) -> Subquery:
    """Return a query for the attempts that failed here without preemption, with their reasons."""
    attempt = attempts.c
    # The database extracts the reason, because a failure may have a traceback of 20,000 characters.
    reason = text_of(connection, attempt.failure, "reason")
    return (
        select(attempt.job_id, attempt.ended_at, reason.label("reason"))
        .where(
            attempt.outcome == AttemptOutcome.FAILED,
            attempt.cause != AttemptCause.IMPORT,  # an imported attempt held no slots here
            reason.is_distinct_from(FailureReason.PREEMPTED.value),
        )
        .subquery()
    )


def _present(spent: Spent) -> tuple[SlotTime, ...]:
    """Return the categories with a time above 0."""
    return _times(spent, (each for each in SLOT_CATEGORIES if spent[each]))


def _times(spent: Spent, categories: Iterable[TimeCategory]) -> tuple[SlotTime, ...]:
    return tuple(
        SlotTime(category=each, words=WORDS[each], slot_milliseconds=spent[each])
        for each in categories
    )
