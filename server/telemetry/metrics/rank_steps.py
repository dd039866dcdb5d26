"""Stages the metrics of a program's ranks by step, and folds them to minimum, mean and maximum.

The steps in a rank's records ascend, so a rank has completed a step once it logs a later step. When
all ranks have completed a step, its values are folded: `loss` from several ranks becomes
`loss/min`, `loss/mean` and `loss/max`. A step that some rank never completes is folded after a
timeout, when too many steps are staged, or at the end of the attempt; later values for the step are
left out. All of this happens in the transaction of the report, so that each value counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, select, update

from server.core.context import Context
from server.core.database.engine import batches
from server.core.database.metric_and_log_tables import rank_progress, rank_steps
from server.core.database.tables import attempts
from server.core.database.upsert import insert_or_replace
from server.telemetry.metrics.store import store_metrics
from trainyard.data import merge_digests
from trainyard.protocol.states import AttemptState
from trainyard.run.metric_names import LONGEST_LOGGED
from trainyard.run.record_base import to_plain
from trainyard.run.records import MetricRecord

WAITS = timedelta(seconds=120)
"""Time after which a step is folded even if some rank has not completed the step."""
MAX_STAGED = 10_000
"""Maximum number of staged steps per attempt. If there are more, the earliest ones are folded even
if they are incomplete."""
MAX_NAMES = 700
"""Maximum number of folded names per step. Each name makes three series, and an attempt may have
2,000 series."""
MAX_REWRITTEN = 200_000
"""A report stops staging steps after it has rewritten this number of staged values. Without this
limit, a rank that logs one value for each of many steps with many values would block the database
for minutes.
"""
FOLDED_AT_ONCE, VALUES_AT_ONCE = 5_000, 50_000
"""A report folds no further steps after this number of steps, or of their values; the next report
folds the remaining ones.
"""
STEPS_A_QUERY = 50
ENDED_AT_ONCE = 20
"""Maximum number of ended attempts that one check folds."""
OVER = 2**62
"""Step number that marks a rank as ended."""

RankRecord = tuple[int, MetricRecord]
"""A rank and one of its records."""

_OF_ATTEMPT = rank_steps.c.attempt_id == bindparam("attempt_id")
_STAGED = select(func.count()).select_from(rank_steps).where(_OF_ATTEMPT)
_REACHED = select(func.count(), func.min(rank_progress.c.step)).where(
    rank_progress.c.attempt_id == bindparam("attempt_id")
)


@dataclass
class _Fold:
    """The values of one step from the ranks that have reported so far."""

    time: float = 0.0
    ranks: int = 1
    """Number of ranks of the program."""
    values: dict[str, list[float]] = field(default_factory=dict)
    """By name: count, minimum, sum and maximum of the values."""
    digests: list[str] = field(default_factory=list)
    """Digests of the ranks, or the single merged digest."""
    digested: set[int] = field(default_factory=set)
    """Ranks that reported a digest."""

    @classmethod
    def of_row(cls, data: Mapping[str, Any]) -> _Fold:
        values = {name: [float(each) for each in row] for name, row in data["values"].items()}
        return cls(data["time"], data["ranks"], values, data["digests"], set(data["digested"]))

    @property
    def row(self) -> dict[str, Any]:
        digests = [merge_digests(self.digests)] if self.digests else []
        changed = {"values": to_plain(self.values), "digested": sorted(self.digested)}
        return vars(self) | changed | {"digests": digests}

    def add(self, rank: int, record: MetricRecord) -> None:
        self.time = max(self.time, record.time)
        self.ranks = max(self.ranks, record.ranks)
        if record.data_digest is not None and rank not in self.digested:
            self.digests.append(record.data_digest)
            self.digested.add(rank)
        for name, value in record.values.items():
            row = self.values.get(name)
            if row is not None:
                count, least, total, most = row
                row[0], row[2] = count + 1, total + value
                if value < least or least != least:  # any other value replaces NaN
                    row[1] = value
                if value > most or most != most:
                    row[3] = value
            elif len(name) <= LONGEST_LOGGED and len(self.values) < MAX_NAMES:
                self.values[name] = [1, value, value, value]

    def record(self, step: int) -> MetricRecord | None:
        """Return the folded step; None without values of several ranks or all digests."""
        values: dict[str, float] = {}
        for name, (count, least, total, most) in self.values.items():
            if count > 1:
                values |= {f"{name}/min": least, f"{name}/mean": total / count, f"{name}/max": most}
        # A digest of fewer ranks covers only some samples.
        digest = merge_digests(self.digests) if len(self.digested) == self.ranks else None
        if not values and digest is None:
            return None
        return MetricRecord(step=step, time=self.time, values=values, data_digest=digest)


def fold(
    connection: Connection, attempt_id: str, given: Sequence[RankRecord], *, now: datetime
) -> list[MetricRecord]:
    """Stage the records of ranks; return the records to store now.

    A rank's own values, named `<metric>/rank-<number>`, are not folded and come first. The folded
    values of the steps that are due follow, in the order of the steps.
    """
    if not given:
        return []
    alone: list[MetricRecord] = []
    steps: dict[int, list[RankRecord]] = {}
    for rank, record in given:
        ending = f"/rank-{rank}"
        own = {name: value for name, value in record.values.items() if name.endswith(ending)}
        if own and rank > 0:  # the values of rank 0 are stored already
            alone.append(replace(record, values=own, data_digest=None))
        shared = {name: value for name, value in record.values.items() if name not in own}
        steps.setdefault(record.step, []).append((rank, replace(record, values=shared)))
    _stage(connection, attempt_id, steps, now=now)
    _advance(connection, attempt_id, given)
    ranks = max(record.ranks for _, record in given)
    return [*alone, *_fold_due(connection, attempt_id, ranks, now=now)]


def reached_by_all(connection: Connection, attempt_id: str) -> tuple[int, int]:
    """Return the number of ranks with records, and the step that all these ranks have reached."""
    ranks, step = connection.execute(_REACHED, {"attempt_id": attempt_id}).one()
    return ranks, step or 0


def end_ranks(
    connection: Connection, attempt_id: str, ranks: Iterable[int], *, last: bool, now: datetime
) -> list[MetricRecord]:
    """Mark ranks as ended; instead, if `last`, fold the first remaining steps and return them.

    `last` is true if all ranks of the attempt have ended.
    """
    mine = rank_progress.c.attempt_id == attempt_id
    if not last:
        ended = rank_progress.c.rank.in_(list(ranks))
        connection.execute(update(rank_progress).where(mine, ended).values(step=OVER))
        return []
    folds = _take(connection, attempt_id, before=OVER, staged_before=now)
    if not connection.scalar(_STAGED, {"attempt_id": attempt_id}):  # else `fold_ended` continues
        connection.execute(delete(rank_progress).where(mine))
    return folds


def fold_ended(context: Context) -> None:
    """Fold the staged steps of ended attempts, for example after the loss of a node."""
    left = (
        select(rank_steps.c.attempt_id)
        .distinct()
        .join(attempts, attempts.c.id == rank_steps.c.attempt_id)
        .where(attempts.c.state == AttemptState.ENDED)
        .limit(ENDED_AT_ONCE)
    )
    with context.database.read() as connection:
        ended = connection.scalars(left).all()
    for attempt_id in ended:
        with context.database.write() as connection:
            folds = end_ranks(connection, attempt_id, (), last=True, now=context.now())
            store_metrics(connection, {attempt_id: folds})


def _stage(
    connection: Connection, attempt_id: str, steps: Mapping[int, list[RankRecord]], *, now: datetime
) -> None:
    """Add records to the rows of their steps; stop once `MAX_REWRITTEN` values are rewritten."""
    rewritten = 0
    for some in batches(sorted(steps), STEPS_A_QUERY):
        if rewritten > MAX_REWRITTEN:
            return
        mine = rank_steps.c.attempt_id == attempt_id, rank_steps.c.step.in_(some)
        query = select(rank_steps.c.step, rank_steps.c.data, rank_steps.c.staged_at).where(*mine)
        staged = {step: (data, since) for step, data, since in connection.execute(query)}
        rows = []
        for step in some:
            data, since = staged.get(step, (None, now))
            whole = _Fold() if data is None else _Fold.of_row(data)
            rewritten += len(whole.values)
            for rank, record in steps[step]:
                whole.add(rank, record)
            key = {"attempt_id": attempt_id, "step": step}
            rows.append(key | {"staged_at": since, "data": whole.row})
        insert_or_replace(connection, rank_steps, rows)


def _advance(connection: Connection, attempt_id: str, given: Iterable[RankRecord]) -> None:
    reached: dict[int, int] = {}
    for rank, record in given:
        reached[rank] = max(record.step, reached.get(rank, 0))
    mine = rank_progress.c.attempt_id == attempt_id, rank_progress.c.rank.in_(list(reached))
    query = select(rank_progress.c.rank, rank_progress.c.step).where(*mine)
    before = {row.rank: row.step for row in connection.execute(query)}
    rows = [
        {"attempt_id": attempt_id, "rank": rank, "step": step}
        for rank, step in reached.items()
        if step > before.get(rank, -1)
    ]
    insert_or_replace(connection, rank_progress, rows)


def _fold_due(
    connection: Connection, attempt_id: str, ranks: int, *, now: datetime
) -> list[MetricRecord]:
    """Fold the steps that are complete, too old, or beyond `MAX_STAGED`."""
    logging, slowest = reached_by_all(connection, attempt_id)
    complete = slowest if logging >= ranks else 0
    staged = connection.scalar(_STAGED, {"attempt_id": attempt_id}) or 0
    if staged > MAX_STAGED:
        query = select(rank_steps.c.step).where(_OF_ATTEMPT).order_by(rank_steps.c.step)
        surplus = query.limit(1).offset(staged - MAX_STAGED)
        first = connection.scalar(surplus, {"attempt_id": attempt_id})
        complete = max(complete, first or 0)
    return _take(connection, attempt_id, before=complete, staged_before=now - WAITS)


def _take(
    connection: Connection, attempt_id: str, *, before: int, staged_before: datetime
) -> list[MetricRecord]:
    """Remove the first due rows and return their folded records."""
    mine = rank_steps.c.attempt_id == attempt_id
    due = (rank_steps.c.step < before) | (rank_steps.c.staged_at < staged_before)
    query = (
        select(rank_steps.c.step, rank_steps.c.data)
        .where(mine, due)
        .order_by(rank_steps.c.step)
        .limit(STEPS_A_QUERY)
    )
    folds: list[MetricRecord] = []
    steps = values = 0
    while steps < FOLDED_AT_ONCE and values < VALUES_AT_ONCE:
        rows = connection.execute(query).all()
        if not rows:
            break
        some = [row.step for row in rows]
        connection.execute(delete(rank_steps).where(mine, rank_steps.c.step.in_(some)))
        for row in rows:
            whole = _Fold.of_row(row.data)
            values += len(whole.values)
            if (record := whole.record(row.step)) is not None:
                folds.append(record)
        steps += len(rows)
    return folds
