"""`/goodput` and `/jobs/{id}/goodput`: time of slots and jobs by category, and what-ifs."""

from __future__ import annotations

import asyncio
from datetime import date, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from server.api.auth.dependencies import may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.path_params import JobId
from server.api.http.responses import reply
from server.core.errors import InvalidRequestError
from server.telemetry.goodput.cluster import USUAL_DAYS, ClusterLedger, visible_part
from server.telemetry.goodput.queries import goodput_view
from server.telemetry.goodput.what_if import save_interval_what_if
from trainyard.base.names import NAME
from trainyard.protocol.goodput import ClusterGoodputView, GoodputView, SaveIntervalWhatIf
from trainyard.protocol.rest.access import Permission

JobsRead = Annotated[Principal, may(Permission.JOBS_READ)]

router = APIRouter(tags=["goodput"])

EARLIEST = date(2020, 1, 1)
"""Earliest valid last day, which is before the first release."""
MAX_DAYS = 92
"""Maximum number of days in one response."""

NO_PROJECT = ""
"""Name that no project has: a hidden project has the slot-time of an unknown one."""

Interval = Annotated[
    int, Query(ge=0, le=10**9, description="Steps between two saves; 0 for no saves.")
]


@router.get(
    "/jobs/{job_id}/goodput",
    response_model=GoodputView,
    summary="The goodput of a job",
)
def goodput(
    context: ServerContext,
    principal: JobsRead,
    job_id: JobId,
) -> Response:
    """Return the wall time of a job by category; the categories sum to the exact wall time."""
    return reply(goodput_view(context, job_id, scope=principal.scope))


@router.get(
    "/jobs/{job_id}/goodput/what-if",
    response_model=SaveIntervalWhatIf,
    summary="A job with another save interval",
)
def what_if(
    context: ServerContext,
    principal: JobsRead,
    job_id: JobId,
    interval_steps: Interval,
) -> Response:
    """Replay the records of a job with another number of steps between two saves."""
    return reply(save_interval_what_if(context, job_id, interval_steps, scope=principal.scope))


async def _ledger_of(request: Request) -> ClusterLedger:
    ledger = request.app.state.cluster_ledger
    assert isinstance(ledger, ClusterLedger)
    return ledger


First = Annotated[
    date | None,
    Query(alias="from", description="First day, in UTC; by default 29 days before the last."),
]
Last = Annotated[
    date | None, Query(alias="to", description="Last day, in UTC, included; by default today.")
]

Project = Annotated[
    str | None, Query(pattern=NAME, max_length=80, description="Only slots held by its jobs.")
]


@router.get(
    "/goodput",
    response_model=ClusterGoodputView,
    summary="The slot-time of the cluster",
)
async def cluster_goodput(
    context: ServerContext,
    principal: Annotated[Principal, may(Permission.NODES_READ)],
    ledger: Annotated[ClusterLedger, Depends(_ledger_of)],
    first: First = None,
    last: Last = None,
    project: Project = None,
) -> Response:
    """Return slot-time by category, in slots times milliseconds, with the exact total."""
    today = context.now().date()
    last = last or today
    if not EARLIEST <= last <= today:
        raise InvalidRequestError.at("query/to", f"{last} is not from {EARLIEST} to today")
    first = first or last - timedelta(days=USUAL_DAYS - 1)
    if not 0 <= (last - first).days < MAX_DAYS:
        raise InvalidRequestError.at(
            "query/from", f"{first} to {last} are not 1 to {MAX_DAYS} days"
        )
    if project is not None and not principal.scope.sees(project):
        project = NO_PROJECT
    answer = asyncio.wrap_future(ledger.view(first, last, project))
    # Shielded because other requests share the computation; cancelling one must not cancel it.
    view = await asyncio.shield(answer)
    return reply(visible_part(view, principal.scope))
