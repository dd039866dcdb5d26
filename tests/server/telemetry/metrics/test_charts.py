"""Charts against a brute-force computation, on both databases."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, func, select

from server.core.context import Context
from server.core.database.metric_and_log_tables import metric_chunks, metric_series
from server.core.errors import InvalidRequestError, NotFoundError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.telemetry.metrics import charts, points, series, store
from server.telemetry.metrics.charts import chart
from server.telemetry.metrics.points import Points
from server.telemetry.metrics.series import decode
from server.telemetry.metrics.store import TAIL_LIMIT, newest_values, read_tails, store_points
from tests.server.records import add_attempt, add_attempts, add_job
from trainyard.protocol.rest.metrics_and_logs import CurveView

Point = tuple[int, float]


def stored(context: Context, attempt_id: str, *batches: Sequence[Point]) -> None:
    """Store points of `train/loss`, one report after the other."""
    for batch in batches:
        steps = [step for step, _ in batch]
        values = [value for _, value in batch]
        with context.database.write() as connection:
            store_points(
                connection, attempt_id, {"train/loss": Points.of(steps, map(float, steps), values)}
            )


def expected(points: Sequence[Point], curve: CurveView) -> None:
    """Compare each bucket with the points of its steps; together the buckets hold all points."""
    assert sum(curve.count) == len(points)
    for index, (first, last) in enumerate(zip(curve.first_steps, curve.steps, strict=True)):
        inside = [(step, value) for step, value in points if first <= step <= last]
        finite = [value for _, value in inside if math.isfinite(value)]
        assert (inside[0][0], inside[-1][0]) == (first, last)
        assert curve.count[index] == len(inside)
        assert curve.non_finite[index] == len(inside) - len(finite)
        assert curve.min[index] == (min(finite) if finite else None)
        assert curve.max[index] == (max(finite) if finite else None)
        assert curve.last[index] == (finite[-1] if finite else None)
    assert all(a < b for a, b in itertools.pairwise(curve.first_steps))


values = st.one_of(
    st.floats(-1e6, 1e6),
    st.sampled_from([math.nan, math.inf, -math.inf]),
)


@st.composite
def reports(draw: st.DrawFn) -> list[list[Point]]:
    """Points with gaps between their steps, in reports of all sizes."""
    batches = []
    step = draw(st.integers(-1, 50))
    for _ in range(draw(st.integers(1, 12))):
        gap = draw(st.sampled_from([1, 1, 1, 7, 10_000]))
        batch = []
        for value in draw(st.lists(values, max_size=30)):
            step += gap if draw(st.booleans()) else 1
            batch.append((step, value))
        batches.append(batch)
    return batches


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    batches=reports(),
    chunk_points=st.sampled_from([1, 2, 3, 7, 1000]),
    limit=st.sampled_from([1, 2, 5, 10, 1000]),
    at_once=st.sampled_from([1, 3, 100]),
    window=st.one_of(st.none(), st.tuples(st.integers(0, 200), st.integers(0, 300))),
)
def test_buckets_equal_a_brute_force_computation(
    context: Context,
    batches: list[list[Point]],
    chunk_points: int,
    limit: int,
    at_once: int,
    window: tuple[int, int] | None,
) -> None:
    with pytest.MonkeyPatch.context() as patch:  # small chunks: many borders with few points
        patch.setattr(points, "CHUNK_POINTS", chunk_points)
        patch.setattr(store, "CHUNK_POINTS", chunk_points)
        patch.setattr(store, "TAIL_LIMIT", 2 * chunk_points)
        job_id = add_job(context)
        stored(context, add_attempt(context, job_id), *batches)
        first, last = (window[0], window[0] + window[1]) if window else (0, 2**40)
        drawn = partial(
            chart, context, job_id, ["train/loss"], max_points=limit, scope=SYSTEM_SCOPE
        )
        at_a_time = drawn(from_step=first, to_step=last)
        patch.setattr(series, "DECODED_AT_ONCE", at_once)
        patch.setattr(series, "MERGED_AT", at_once)
        patch.setattr(charts, "JOINED_AT_ONCE", at_once)
        view = drawn(from_step=first, to_step=last)
    assert view == at_a_time, "what is decoded at once changes the buckets"
    wanted = [p for p in itertools.chain(*batches) if first <= p[0] <= last]
    if not wanted:
        assert view.curves == []
        return
    (curve,) = view.curves
    assert len(curve.steps) <= limit
    expected(wanted, curve)


def test_buckets_are_about_equally_wide_whatever_the_chunks(context: Context) -> None:
    job_id = add_job(context)
    attempt_id = add_attempt(context, job_id)
    data = [(step, float(step)) for step in range(1, 30_501)]
    stored(context, attempt_id, data[:700], data[700:])
    for limit in (10, 25, 40, 100):
        (curve,) = chart(
            context, job_id, ["train/loss"], max_points=limit, scope=SYSTEM_SCOPE
        ).curves
        expected(data, curve)
        widths = np.array(curve.count)
        assert len(widths) >= limit / 2
        assert widths.max() <= 3 * len(data) / limit


def test_one_spike_and_one_nan_are_seen_in_any_resolution(context: Context) -> None:
    job_id = add_job(context)
    data = [(step, 1.0) for step in range(5000)]
    data[1234] = (1234, 1e9)
    data[4321] = (4321, math.nan)
    stored(context, add_attempt(context, job_id), data)
    for limit in (1, 3, 10, 4999, 10_000):
        (curve,) = chart(
            context, job_id, ["train/loss"], max_points=limit, scope=SYSTEM_SCOPE
        ).curves
        assert max(value for value in curve.max if value is not None) == 1e9
        assert sum(curve.non_finite) == 1


def test_the_tail_stays_short_and_no_point_is_lost(context: Context) -> None:
    job_id = add_job(context)
    attempt_id = add_attempt(context, job_id)
    data = [(step, 0.5 * step) for step in range(5200)]
    for start in range(0, len(data), 130):
        stored(context, attempt_id, data[start : start + 130])
        with context.database.read() as connection:
            tails = read_tails(connection, [1], first=0, last=10_000)
            counted = connection.scalar(select(metric_series.c.tail))
        assert sum(map(len, tails.values())) == counted
        assert counted <= TAIL_LIMIT
    with context.database.read() as connection:
        assert connection.scalar(select(func.count()).select_from(metric_chunks)) == 4
    (curve,) = chart(context, job_id, ["train/loss"], max_points=10_000, scope=SYSTEM_SCOPE).curves
    expected(data, curve)
    assert len(curve.steps) == 5200


def test_a_large_report_goes_straight_into_chunks(context: Context) -> None:
    job_id = add_job(context)
    attempt_id = add_attempt(context, job_id)
    data = [(step, float(step)) for step in range(3456)]
    stored(context, attempt_id, data[:10], data[10:])
    with context.database.read() as connection:
        (tail,) = read_tails(connection, [1], first=0, last=10_000).values()
    assert tail.steps.tolist() == list(range(3000, 3456))


def test_the_newest_live_values_come_from_rows_of_any_size(context: Context) -> None:
    attempt_id = add_attempt(context, add_job(context))
    data = [(step, float(step)) for step in range(12)]
    stored(context, attempt_id, data[:7], data[7:8], data[8:])
    with context.database.read() as connection:
        for limit in (1, 4, 5, 6, 12):
            found = newest_values(connection, [attempt_id], "train/loss", limit=limit)
            assert found == {attempt_id: [float(step) for step in range(11, 11 - limit, -1)]}
        every = newest_values(connection, [attempt_id], "train/loss", limit=100)
        assert every == {attempt_id: [float(step) for step in range(11, -1, -1)]}
        assert newest_values(connection, [attempt_id], "absent", limit=1) == {}


@pytest.mark.parametrize("at_once", [1, 10_000])
def test_segments_that_overlap_share_buckets(
    context: Context, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Like those of a program that counts from 0 in each attempt and saves any step."""
    monkeypatch.setattr(series, "MERGED_AT", at_once)
    job_id = add_job(context)
    # 1 runs to 100; 2 continues from there and saves step 10; 3 continues from that step.
    ids = add_attempts(context, job_id, [None, (1, 100), (2, 10)])
    stored(context, ids[0], [(step, 1.0) for step in range(1, 101)])
    stored(context, ids[2], [(step, 3.0) for step in range(11, 1001)])
    view = chart(context, job_id, ["train/loss"], max_points=100, scope=SYSTEM_SCOPE)
    (curve,) = (each for each in view.curves if each.branch == "lineage")
    assert len(curve.steps) <= 100
    assert sum(curve.count) == 100 + 990
    assert all(a < b for a, b in itertools.pairwise(curve.first_steps))


def test_a_step_is_kept_once(context: Context) -> None:
    job_id = add_job(context)
    attempt_id = add_attempt(context, job_id)
    stored(context, attempt_id, [(1, 1.0), (2, 2.0)], [(2, 20.0), (3, 3.0), (1, 10.0), (3, 30.0)])
    (curve,) = chart(context, job_id, ["train/loss"], scope=SYSTEM_SCOPE).curves
    assert (curve.steps, curve.last) == ([1, 2, 3], [1.0, 2.0, 3.0])


def test_lines_follow_the_lineage_and_show_what_it_left(context: Context) -> None:
    job_id = add_job(context)
    # 1 runs to 10; 2 continues from 6 to 9; 3 continues from 2's step 8.
    ids = add_attempts(context, job_id, [None, (1, 6), (2, 8)])
    stored(context, ids[0], [(step, 1.0) for step in range(1, 11)])
    stored(context, ids[1], [(step, 2.0) for step in range(7, 10)])
    stored(context, ids[2], [(9, 3.0), (10, 3.0)])
    view = chart(context, job_id, ["train/loss"], scope=SYSTEM_SCOPE)
    curves = {
        curve.branch: dict(zip(curve.steps, curve.last, strict=True)) for curve in view.curves
    }
    assert curves == {
        "lineage": dict.fromkeys(range(1, 7), 1.0) | {7: 2.0, 8: 2.0, 9: 3.0, 10: 3.0},
        "attempt-2": {9: 2.0},
        "attempt-1": dict.fromkeys(range(7, 11), 1.0),
    }
    (own,) = chart(context, job_id, ["train/loss"], attempt=1, scope=SYSTEM_SCOPE).curves
    assert (own.branch, own.steps) == ("attempt-1", list(range(1, 11)))


def test_a_chunk_that_the_lineage_cuts_is_shared_out(context: Context) -> None:
    job_id = add_job(context)
    ids = add_attempts(context, job_id, [None, (1, 1500)])
    first = [(step, float(step)) for step in range(1, 3001)]
    second = [(step, -float(step)) for step in range(1501, 4001)]
    stored(context, ids[0], first)
    stored(context, ids[1], second)
    for limit in (3, 50, 10_000):
        curves = chart(context, job_id, ["train/loss"], max_points=limit, scope=SYSTEM_SCOPE).curves
        by_branch = {curve.branch: curve for curve in curves}
        expected(first[:1500] + second, by_branch["lineage"])
        expected(first[1500:], by_branch["attempt-1"])


def test_names_are_listed_and_unknown_ones_have_no_line(context: Context) -> None:
    job_id = add_job(context)
    stored(context, add_attempt(context, job_id), [(1, 1.0)])
    view = chart(context, job_id, ["perf/nothing"], scope=SYSTEM_SCOPE)
    assert (view.names, view.curves) == (["train/loss"], [])


def test_chunks_are_fetched_by_one_statement_whatever_their_number(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement with another text is compiled again, which takes longer than fetching chunks."""
    monkeypatch.setattr(store, "CHUNK_POINTS", 4)
    monkeypatch.setattr(points, "CHUNK_POINTS", 4)
    job_id = add_job(context)
    batch = [(step, float(step)) for step in range(1, 401)]
    for attempt_id in add_attempts(context, job_id, [None, (1, 200)]):
        stored(context, attempt_id, batch)
    with context.database.read() as connection:
        columns = metric_chunks.c
        keys = [
            tuple(row) for row in connection.execute(select(columns.series_id, columns.first_step))
        ]
        assert len(keys) == 200
        sent: set[str] = set()

        def note(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
            sent.add(sql)

        event.listen(connection, "before_cursor_execute", note)
        for some in (keys[:1], keys[50:150], keys, [*keys, (keys[0][0], 10**12)]):
            decoded = decode(connection, some)
            assert decoded.keys() == {*some} & {*keys}
            for (_, first_step), found in decoded.items():
                assert found.steps.tolist() == list(range(first_step, first_step + 4))
                assert found.values.tolist() == found.steps.tolist()
        assert decode(connection, []) == {}
    assert len(sent) == 1


def test_what_cannot_be_drawn_is_refused(context: Context) -> None:
    job_id = add_job(context)
    with pytest.raises(NotFoundError, match="no attempt 4"):
        chart(context, job_id, ["train/loss"], attempt=4, scope=SYSTEM_SCOPE)
    with pytest.raises(NotFoundError, match="no job"):
        chart(context, context.new_id(), ["train/loss"], scope=SYSTEM_SCOPE)
    with pytest.raises(InvalidRequestError, match="max_points"):
        chart(context, job_id, ["train/loss"], max_points=0, scope=SYSTEM_SCOPE)
    with pytest.raises(InvalidRequestError, match="names"):
        chart(context, job_id, [str(number) for number in range(99)], scope=SYSTEM_SCOPE)
