"""Points that a restart in event files removes, wherever they are stored."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import select

from server.core.context import Context
from server.core.database.metric_and_log_tables import metric_chunks, metric_series, metric_tails
from server.core.visibility.scope import SYSTEM_SCOPE
from server.telemetry.metrics.charts import chart
from server.telemetry.metrics.points import unpack_tail
from server.telemetry.metrics.series import read_values
from tests.server.harness import Harness, Supervisor
from tests.server.reports import chunk, kept_events, send
from trainyard.run.record_base import to_json
from trainyard.run.records import MetricRecord, SeriesRestart

FILE = "event_files"


class Writer:
    """Reports lines of event files, in one or more reports."""

    def __init__(self, context: Context, supervisor: Supervisor) -> None:
        self._context, self._supervisor, self._end = context, supervisor, 0

    def send(self, *records: MetricRecord) -> None:
        """Send some lines in one report."""
        content = b"".join(to_json(record).encode() + b"\n" for record in records)
        send(self._context, self._supervisor, chunk(FILE, content, start=self._end))
        self._end += len(content)


def points(first: int, last: int, value: float, *names: str) -> list[MetricRecord]:
    values = dict.fromkeys(names or ("loss",), value)
    return [
        MetricRecord(step=step, time=1000.0 + step, values=values) for step in range(first, last)
    ]


def restart(step: int, *names: str) -> SeriesRestart:
    return SeriesRestart(step=step, time=1.0, values={}, names=names or ("loss",))


def stored(context: Context, name: str = "loss") -> tuple[list[int], list[float]]:
    """Return steps and values of a series; its row must agree with its points."""
    with context.database.read() as connection:
        query = select(metric_series).where(metric_series.c.name == name)
        row = connection.execute(query).one()
        values = read_values(connection, [row.id], first=0, last=10**9)[row.id]
        own = metric_tails.c.series_id == row.id
        tails = connection.scalars(select(metric_tails.c.points).where(own)).all()
        assert row.tail == len(unpack_tail(tails))
        steps = values[0].tolist()
        assert row.last_step == (steps[-1] if steps else -1)
        assert not (np.diff(values[0]) <= 0).any()
    return steps, values[1].tolist()


@pytest.fixture
def writer(context: Context, harness: Harness) -> Writer:
    """Return the writer of a running job."""
    harness.add_node("node-1")
    _, (supervisor,) = harness.running(step=0, training={"steps": 100_000})
    return Writer(context, supervisor)


@pytest.mark.parametrize(("before", "step"), [(3, 0), (150, 100), (2500, 1000), (2500, 2400)])
@pytest.mark.parametrize("together", [True, False])
def test_the_points_from_a_step_on_are_replaced(
    context: Context, writer: Writer, before: int, step: int, together: bool
) -> None:
    first, second = points(0, before, 1.0), points(step + 5, step + 20, 2.0)
    if together:
        writer.send(*first, restart(step), *second)
    else:
        writer.send(*first)
        writer.send(restart(step))
        writer.send(*second)
    kept = min(before, step)
    # A restart after the end removes nothing; the first value of an existing step counts.
    assert stored(context) == (
        [*range(kept), *range(step + 5, step + 20)],
        [1.0] * kept + [2.0] * 15,
    )


def test_only_the_series_that_it_names_lose_points(context: Context, writer: Writer) -> None:
    writer.send(*points(0, 50, 1.0, "loss", "lr"), restart(10), restart(5, "none"))
    assert len(stored(context)[0]) == 10
    assert len(stored(context, "lr")[0]) == 50


def test_chunks_and_tails_on_both_sides_of_the_step(context: Context, writer: Writer) -> None:
    for start in range(0, 3500, 500):  # chunks of one compaction, and a tail after them
        writer.send(*points(start, start + 500, 1.0))
    with context.database.read() as connection:
        assert connection.execute(select(metric_chunks)).all()
    writer.send(restart(3300), *points(3310, 3320, 2.0))
    writer.send(restart(1500), *points(1500, 4000, 3.0))
    assert stored(context) == ([*range(4000)], [1.0] * 1500 + [3.0] * 2500)


def test_a_chart_shows_the_later_session(context: Context, harness: Harness) -> None:
    harness.add_node("node-1")
    job_id, (supervisor,) = harness.running(step=0, training={"steps": 100_000})
    writer = Writer(context, supervisor)
    writer.send(*points(0, 150, 1.0))
    writer.send(restart(100), *points(105, 120, 2.0))
    (curve,) = chart(context, job_id, ["loss"], max_points=1000, scope=SYSTEM_SCOPE).curves
    assert curve.steps == [*range(100), *range(105, 120)]
    assert curve.last == [1.0] * 100 + [2.0] * 15


def test_a_restart_is_a_line_of_event_files_alone(context: Context, harness: Harness) -> None:
    harness.add_node("node-1")
    _, (supervisor,) = harness.running(step=0, training={"steps": 100_000})
    content = to_json(restart(0)).encode() + b"\n"
    send(context, supervisor, chunk("metrics", content))
    assert len(kept_events(context, "line_skipped")) == 1


def test_a_restart_of_a_name_that_no_series_has_is_skipped(
    context: Context, writer: Writer
) -> None:
    for name in ("a,b", "a\0"):
        writer.send(restart(0, name))
    assert len(kept_events(context, "line_skipped")) == 2


def test_a_metric_may_have_the_name_of_its_field(context: Context, writer: Writer) -> None:
    writer.send(*points(0, 3, 1.0, "names"))
    assert stored(context, "names")[0] == [0, 1, 2]


def test_a_report_has_few_restarts_and_the_sender_continues(
    context: Context, harness: Harness
) -> None:
    """Each reads and writes the tails of its series: thousands in a report would take minutes."""
    harness.add_node()
    _, (supervisor,) = harness.launched()
    lines = [one for number in range(9) for one in (*points(1, 4, number), restart(1))]
    lines += points(1, 3, 7.0)
    content = [to_json(line).encode() + b"\n" for line in lines]
    reply = send(context, supervisor, chunk(FILE, b"".join(content), start=0))
    assert reply.acknowledged[FILE] == sum(map(len, content[: 5 * 4]))
    rest = b"".join(content[5 * 4 :])
    reply = send(context, supervisor, chunk(FILE, rest, start=reply.acknowledged[FILE]))
    assert reply.acknowledged[FILE] == sum(map(len, content))
    assert stored(context) == ([1, 2], [7.0, 7.0])
