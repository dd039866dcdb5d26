"""Streams a job's points and digests as CSV along its lineage, in short transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, select

from server.core.context import Context
from server.core.database.metric_and_log_tables import metric_chunks, metric_series, step_digests
from server.core.visibility.scope import Scope
from server.jobs.attempts.lineage import NEVER, Segment, lineage_of, own_steps
from server.telemetry.metrics.charts import attempt_keys
from server.telemetry.metrics.points import PACKED, Points, unpack
from server.telemetry.metrics.store import read_tails
from trainyard.run.metric_names import quoted

HEADER = "attempt,step,time,name,value\n"
DIGEST_NAME = "data_digest"
CHUNKS_AT_ONCE = 50
DIGESTS_AT_ONCE = 20_000


def csv_rows(
    context: Context,
    job_id: str,
    names: Sequence[str] = (),
    *,
    scope: Scope,
    attempt: int | None = None,
) -> Iterator[str]:
    """Yield the header and the rows of some series, or of all series if `names` is empty.

    The rows follow the current lineage or, with `attempt`, that attempt's own steps. The rows of an
    attempt are its digests by step, then its points by name and step. Rows with the name
    `data_digest` have the digest of a step's sequences and no time. No transaction is open between
    two pieces of text, so a slow reader blocks nothing.

    Raises:
        NotFoundError: no such job or attempt exists; the call itself raises it, not the iterator.
    """
    with context.database.read() as connection:
        keys = attempt_keys(connection, job_id, attempt, scope=scope)
    segments = lineage_of(keys).segments if attempt is None else (own_steps(keys[attempt]),)
    return _rows(context, segments, frozenset(names))


def _rows(context: Context, segments: Sequence[Segment], names: frozenset[str]) -> Iterator[str]:
    yield HEADER
    for segment in segments:
        if not names or DIGEST_NAME in names:
            yield from _digests(context, segment)
        with context.database.read() as connection:
            series = _series(connection, segment)
        for series_id, name in series:
            if not names or name in names:
                for points in _points(context, series_id, segment):
                    yield _text(points, f"{segment.number},", f",{quoted(name)},")


def _digests(context: Context, segment: Segment) -> Iterator[str]:
    columns = step_digests.c
    after = segment.after
    query = (
        select(columns.step, columns.digest)
        .where(columns.attempt_id == segment.attempt_id, columns.step <= segment.until)
        .order_by(columns.step)
        .limit(DIGESTS_AT_ONCE)
    )
    while True:
        with context.database.read() as connection:
            rows = connection.execute(query.where(columns.step > after)).all()
        if not rows:
            return
        yield "".join(f"{segment.number},{row.step},,{DIGEST_NAME},{row.digest}\n" for row in rows)
        after = rows[-1].step


def _series(connection: Connection, segment: Segment) -> list[tuple[int, str]]:
    """Return id and name of each series of an attempt, in the order of the names."""
    columns = metric_series.c
    query = select(columns.id, columns.name).where(columns.attempt_id == segment.attempt_id)
    return [(row.id, row.name) for row in connection.execute(query.order_by(columns.name))]


def _points(context: Context, series_id: int, segment: Segment) -> Iterator[Points]:
    """Yield the points of a series, a few chunks at a time; the tail comes with the last chunks."""
    columns = metric_chunks.c
    query = (
        select(*(columns[name] for name in PACKED))
        .where(columns.series_id == series_id, columns.first_step <= segment.until)
        .order_by(columns.first_step)
        .limit(CHUNKS_AT_ONCE)
    )
    after, more = segment.after, True
    while more:
        with context.database.read() as connection:
            # Tail first, so that a point that is compacted meanwhile is read twice, not never.
            tails = read_tails(connection, [series_id], first=after + 1, last=segment.until)
            rows = connection.execute(query.where(columns.last_step > after)).all()
        more = len(rows) == CHUNKS_AT_ONCE
        parts = [unpack(*row) for row in rows]
        if not more:
            parts += tails.values()
        found = Points.merged(parts).between(after + 1, min(segment.until, NEVER - 1))
        if len(found):
            yield found
            after = int(found.steps[-1])


def _text(points: Points, before: str, between: str) -> str:
    return "".join(
        f"{before}{step},{time!r}{between}{value!r}\n"
        for step, time, value in zip(
            points.steps.tolist(), points.times.tolist(), points.values.tolist(), strict=True
        )
    )
