"""Jobs side by side: the buckets of their own charts, with time and tokens, on both databases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from server.core.context import Context
from server.core.errors import InvalidRequestError, NotFoundError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.telemetry.metrics import points, store
from server.telemetry.metrics.charts import chart
from server.telemetry.metrics.compare import compare
from server.telemetry.metrics.points import Points
from server.telemetry.metrics.store import store_points
from server.telemetry.metrics.time_axis import Axis
from tests.server.records import add_attempt, add_attempts, add_job
from trainyard.protocol.rest.metrics_and_logs import (
    MAX_COMPARED,
    ComparedCurveView,
    CurveView,
)

LOSS, TOKENS = "train/loss", "train/tokens"


def train(
    context: Context,
    attempt_id: str,
    steps: Sequence[int],
    *,
    per_step: int = 1000,
    began: float = 5000.0,
    seconds: float = 2.0,
    values: Sequence[float] | None = None,
    with_tokens: bool = True,
) -> None:
    """Store steps like a trainer: loss and tokens with one time."""
    times = [began + seconds * step for step in steps]
    losses = list(map(float, steps)) if values is None else values
    by_name = {LOSS: Points.of(steps, times, losses)}
    if with_tokens:
        by_name[TOKENS] = Points.of(steps, times, [float(step * per_step) for step in steps])
    with context.database.write() as connection:
        store_points(connection, attempt_id, by_name)


def trained(context: Context, last: int, **given: float | bool) -> str:
    """Return a job of one attempt with the steps from 1 on."""
    job_id = add_job(context)
    train(context, add_attempt(context, job_id), range(1, last + 1), **given)  # type: ignore[arg-type]
    return job_id


def bare(curve: ComparedCurveView) -> CurveView:
    """Return a curve in the form of a job's own chart."""
    return CurveView.model_validate(curve.model_dump(include=set(CurveView.model_fields)))


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    cuts=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    back=st.integers(0, 20),
    chunk_points=st.sampled_from([1, 3, 7, 1000]),
    limit=st.sampled_from([1, 2, 5, 1000]),
    strange=st.booleans(),
)
def test_lines_are_those_of_each_job_and_every_bucket_ends_at_its_time_and_tokens(
    context: Context, cuts: list[int], back: int, chunk_points: int, limit: int, strange: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:  # small chunks: many borders with few points
        patch.setattr(points, "CHUNK_POINTS", chunk_points)
        patch.setattr(store, "CHUNK_POINTS", chunk_points)
        patch.setattr(store, "TAIL_LIMIT", 2 * chunk_points)
        first, second = add_job(context), trained(context, 17, seconds=3.0)
        end = sum(cuts)
        parent = max(end - back, 1)
        ids = add_attempts(context, first, [None, (1, parent)])
        done = 0
        for cut in cuts:
            losses = [math.nan if strange and n % 5 == 0 else n / 7 for n in range(cut)]
            train(context, ids[0], range(done + 1, done + cut + 1), values=losses)
            done += cut
        train(context, ids[1], range(parent + 1, end + 30), began=9000.0)
        view = compare(
            context, [first, second], [LOSS, TOKENS], max_points=limit, scope=SYSTEM_SCOPE
        )
        own = [
            chart(context, job, [LOSS, TOKENS], max_points=limit, scope=SYSTEM_SCOPE)
            for job in (first, second)
        ]
    for compared, alone in zip(view.jobs, own, strict=True):
        lineage = [curve for curve in alone.curves if curve.branch == "lineage"]
        assert list(map(bare, compared.curves)) == lineage
        assert (compared.names, compared.last_step) == (alone.names, alone.last_step)
    for curve in view.jobs[0].curves:
        began = [5000.0 if step <= parent else 9000.0 for step in curve.steps]
        assert curve.times == [b + 2.0 * step for b, step in zip(began, curve.steps, strict=True)]
        assert curve.tokens == [1000.0 * step for step in curve.steps]
    assert view.jobs[0].start_time == 5002.0
    assert view.jobs[1].start_time == 5003.0


@pytest.mark.parametrize(
    ("axis", "low", "high", "exact"),
    [
        ("step", 100, 200, (100, 200)),
        ("tokens", 100_000, 200_000, (100, 200)),
        ("seconds", 198.0, 398.0, (100, 200)),  # the first step came after two seconds
        ("tokens", 99_500, 200_500, (100, 200)),
    ],
)
def test_a_stretch_of_an_axis_is_drawn_and_hardly_more(
    context: Context, axis: Axis, low: float, high: float, exact: tuple[int, int]
) -> None:
    job_id = trained(context, 700)
    view = compare(context, [job_id], [LOSS], axis=axis, low=low, high=high, scope=SYSTEM_SCOPE)
    (curve,) = view.jobs[0].curves
    assert curve.steps[0] in {exact[0], exact[0] - 1}
    assert curve.steps[-1] in {exact[1], exact[1] + 1}


def test_a_stretch_within_chunks_is_as_sharp_as_one_of_live_points(context: Context) -> None:
    job_id = trained(context, 5000)
    view = compare(
        context, [job_id], [LOSS], axis="tokens", low=1_500_000, high=1_600_000, scope=SYSTEM_SCOPE
    )
    (curve,) = view.jobs[0].curves
    assert curve.steps == list(range(1500, 1601))
    assert curve.tokens == [1000.0 * step for step in curve.steps]


def test_each_job_has_its_own_stretch(context: Context) -> None:
    slow, fast = trained(context, 600), trained(context, 600, per_step=4000)
    short = trained(context, 5)
    view = compare(
        context,
        [slow, fast, short],
        [LOSS],
        axis="tokens",
        low=400_000,
        high=600_000,
        scope=SYSTEM_SCOPE,
    )
    assert [[(curve.steps[0], curve.steps[-1]) for curve in job.curves] for job in view.jobs] == [
        [(400, 600)],
        [(100, 150)],
        [],
    ]


def test_without_tokens_there_is_time_but_no_axis_of_tokens(context: Context) -> None:
    job_id = trained(context, 30, with_tokens=False)
    (curve,) = compare(context, [job_id], [LOSS], scope=SYSTEM_SCOPE).jobs[0].curves
    assert curve.times[-1] == 5060.0
    assert set(curve.tokens) == {None}
    assert (
        compare(context, [job_id], [LOSS], axis="tokens", scope=SYSTEM_SCOPE).jobs[0].curves == []
    )


def test_jobs_come_once_in_the_order_asked_for_with_what_there_is(context: Context) -> None:
    queued, done = add_job(context), trained(context, 3)
    view = compare(context, [queued, done, queued], scope=SYSTEM_SCOPE)
    assert [(job.id, job.names, job.curves, job.start_time) for job in view.jobs] == [
        (queued, [], [], None),
        (done, [LOSS, TOKENS], [], 5002.0),
    ]
    assert (view.jobs[1].name, view.jobs[1].state, view.jobs[1].layout) == (
        "job",
        "running",
        "1 rank",
    )
    drawn = compare(context, [queued, done], [LOSS], scope=SYSTEM_SCOPE)
    assert [len(job.curves) for job in drawn.jobs] == [0, 1]


def test_what_is_unknown_is_named(context: Context) -> None:
    job_id, nobody, other = trained(context, 3), context.new_id(), context.new_id()
    with pytest.raises(NotFoundError) as refused:
        compare(context, [nobody, job_id, other], [LOSS], scope=SYSTEM_SCOPE)
    assert [(p.pointer, p.detail) for p in refused.value.problems] == [
        ("query/jobs", f"no job has the id {nobody!r}"),
        ("query/jobs", f"no job has the id {other!r}"),
    ]
    with pytest.raises(InvalidRequestError, match=r"'train/los'; some that exist: train/loss"):
        compare(context, [job_id], [LOSS, "train/los"], scope=SYSTEM_SCOPE)
    queued = add_job(context)  # nothing is known of its series yet
    assert compare(context, [queued], ["train/los"], scope=SYSTEM_SCOPE).jobs[0].curves == []


def test_too_much_is_refused(context: Context) -> None:
    job_id = trained(context, 3)
    with pytest.raises(InvalidRequestError, match=f"9 jobs; legal: 1 to {MAX_COMPARED}"):
        compare(context, [context.new_id() for _ in range(9)], scope=SYSTEM_SCOPE)
    with pytest.raises(InvalidRequestError, match="99 names; at most 50"):
        compare(context, [job_id], [str(number) for number in range(99)], scope=SYSTEM_SCOPE)
    with pytest.raises(InvalidRequestError, match="max_points"):
        compare(context, [job_id], [LOSS], max_points=0, scope=SYSTEM_SCOPE)
    with pytest.raises(InvalidRequestError, match="from_x: 9 is after to_x=3"):
        compare(context, [job_id], [LOSS], low=9, high=3, scope=SYSTEM_SCOPE)


def test_the_number_of_queries_depends_on_the_jobs_alone(context: Context) -> None:
    asked: list[str] = []

    @event.listens_for(context.database.engine, "before_cursor_execute")
    def count(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        del connection, cursor, rest
        asked.append(statement)

    def queries(*jobs: str) -> int:
        asked.clear()
        compare(context, jobs, [LOSS, TOKENS], max_points=700, scope=SYSTEM_SCOPE)
        return len([statement for statement in asked if statement.startswith("SELECT")])

    small, large, larger = (trained(context, steps) for steps in (2100, 12_400, 30_100))
    assert queries(small) == queries(large)
    each = queries(small, large) - queries(small)
    assert queries(small, large, larger) == queries(small, large) + each
    assert each <= 10
