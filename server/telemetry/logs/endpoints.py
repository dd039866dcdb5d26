"""`/jobs/{id}/logs`: lines of a rank's log, selected by number or by text."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from server.api.auth.dependencies import may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.path_params import JobId
from server.api.http.query import AttemptNumber
from server.api.http.responses import reply
from server.telemetry.logs import pages as logs
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.metrics_and_logs import LogMatches, LogPage

MAX_LINE = 10**12

JobsRead = Annotated[Principal, may(Permission.JOBS_READ)]

router = APIRouter()

Rank = Annotated[int, Query(ge=0, le=65_535, description="Global rank.")]
Limit = Annotated[int, Query(ge=1, le=logs.MAX_LINES, description="Lines.")]


@router.get(
    "/jobs/{job_id}/logs",
    response_model=LogPage,
    tags=["logs"],
    summary="Lines of a rank's log",
)
def get_logs(
    context: ServerContext,
    principal: JobsRead,
    job_id: JobId,
    attempt: AttemptNumber = None,
    rank: Rank = 0,
    first_line: Annotated[
        int | None,
        Query(
            ge=-MAX_LINE,
            le=MAX_LINE,
            description="First line; a negative one counts from the end. Without it the page "
            "holds the last `limit` lines.",
        ),
    ] = None,
    limit: Limit = 500,
) -> Response:
    """Return lines of a rank's log by number, by default of the newest attempt."""
    return reply(
        logs.page(
            context,
            job_id,
            scope=principal.scope,
            attempt=attempt,
            rank=rank,
            from_line=first_line,
            limit=limit,
        )
    )


@router.get(
    "/jobs/{job_id}/logs/search",
    response_model=LogMatches,
    tags=["logs"],
    summary="Search a rank's log",
)
def search_logs(
    context: ServerContext,
    principal: JobsRead,
    job_id: JobId,
    text: Annotated[
        str, Query(min_length=1, max_length=200, description="Text to find, ignoring case.")
    ],
    attempt: AttemptNumber = None,
    rank: Rank = 0,
    first_line: Annotated[int, Query(ge=0, le=MAX_LINE, description="First line to search.")] = 0,
    limit: Limit = 200,
) -> Response:
    """Search a part of the log; the next search continues at `next_line`."""
    return reply(
        logs.search(
            context,
            job_id,
            text,
            scope=principal.scope,
            attempt=attempt,
            rank=rank,
            from_line=first_line,
            limit=limit,
        )
    )
