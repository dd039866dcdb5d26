"""`/jobs/{id}/metrics` and `/metrics/compare`: charts of one job and of several jobs."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from server.api.auth.dependencies import lasting_requests, may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.examples import ANSWERS
from server.api.http.path_params import JobId
from server.api.http.query import AttemptNumber, ComparedJobs
from server.api.http.responses import JSON, reply
from server.core.lifecycle import still_sees
from server.telemetry.metrics.charts import MAX_NAMES, MAX_POINTS, chart
from server.telemetry.metrics.compare import END, compare
from server.telemetry.metrics.csv import csv_rows
from server.telemetry.metrics.time_axis import Axis
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.metrics_and_logs import ComparisonView, MetricsView

CSV = "text/csv"
MAX_STEP = 10**12
NAMES = r"^[^,\x00-\x20][^,\x00-\x1f]*(,[^,\x00-\x20][^,\x00-\x1f]*)*$"
series_query = partial(Query, max_length=5000, pattern=NAMES, examples=["train/loss,train/lr"])
"""Declares a parameter with series, separated by commas; the caller adds the description."""

JobsRead = Annotated[Principal, may(Permission.JOBS_READ)]

router = APIRouter()

Names = Annotated[
    str | None,
    series_query(
        description=f"Series, separated by commas; by default the first {MAX_NAMES} by name."
    ),
]
Points = Annotated[int, Query(ge=1, le=MAX_POINTS, description="Buckets of one curve.")]
Place = Annotated[float, Query(ge=0, le=END, description="An end of the range to draw.")]
Step = Annotated[int | None, Query(ge=0, le=MAX_STEP)]
EXAMPLES = {name: {"value": value} for name, value in ANSWERS[ComparisonView].items()}


@router.get(
    "/jobs/{job_id}/metrics",
    response_model=MetricsView,
    responses={200: {"content": {CSV: {"schema": {"type": "string"}}}}},
    tags=["metrics"],
    summary="Charts of a job",
)
def metrics(
    request: Request,
    context: ServerContext,
    principal: JobsRead,
    job_id: JobId,
    names: Names = None,
    max_points: Points = 1000,
    from_step: Step = None,
    to_step: Step = None,
    attempt: AttemptNumber = None,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """Return buckets of series along the lineage; each abandoned branch is a separate curve.

    With `Accept: text/csv`, return all points along the lineage as
    `attempt,step,time,name,value`.
    """
    wanted = tuple(names.split(",")) if names is not None else ()
    if CSV in accept:
        rows = csv_rows(context, job_id, wanted, scope=principal.scope, attempt=attempt)
        sees = still_sees(context, job_id, scope=principal.scope)
        guarded = lasting_requests(request).guarded(principal, rows, allows=sees)
        return StreamingResponse(guarded, media_type=CSV)
    if not wanted:
        wanted = tuple(chart(context, job_id, (), scope=principal.scope).names[:MAX_NAMES])
    view = chart(
        context,
        job_id,
        wanted,
        scope=principal.scope,
        max_points=max_points,
        from_step=from_step,
        to_step=to_step,
        attempt=attempt,
    )
    return reply(view)


@router.get(
    "/metrics/compare",
    response_model=ComparisonView,
    responses={200: {"content": {JSON: {"examples": EXAMPLES}}}},
    tags=["metrics"],
    summary="Charts of several jobs",
)
def compare_metrics(
    context: ServerContext,
    principal: JobsRead,
    jobs: ComparedJobs,
    names: Annotated[
        str | None,
        series_query(
            description="Series, separated by commas. Without it the answer has only the jobs and "
            "the names of their series."
        ),
    ] = None,
    max_points: Points = 1000,
    x: Annotated[Axis, Query(description="Unit of `from_x` and `to_x`.")] = "step",
    from_x: Place = 0.0,
    to_x: Place = END,
) -> Response:
    """Return buckets of the same series for several jobs, each along its current lineage.

    Each bucket also has the time and the tokens of its last step, so that curves can be overlaid by
    steps, tokens or time. With `x=tokens` or `x=seconds`, the range applies to each job separately,
    and seconds count from the job's first point. At both ends, the buckets extend to the next known
    step outside of the range.
    """
    view = compare(
        context,
        jobs.split(","),
        names.split(",") if names is not None else (),
        scope=principal.scope,
        max_points=max_points,
        axis=x,
        low=from_x,
        high=to_x,
    )
    return reply(view)
