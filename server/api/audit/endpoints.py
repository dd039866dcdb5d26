"""`/audit`: the rows of the audit log, and their export as JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.responses import StreamingResponse

from server.api.audit.queries import AuditFilter, list_rows
from server.api.auth.dependencies import lasting_requests, may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.paging import MAX_INT, PageRequest, page_by
from server.api.http.responses import reply
from server.core.audit.export_lines import export
from server.core.errors import InvalidRequestError
from trainyard.base.ids import ID_PATTERN
from trainyard.base.names import MEMBER_NAME, NAME
from trainyard.protocol.audit_log.views import AuditOutcome, AuditRow
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.common import Page

LINES = "application/x-ndjson"
TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"

AuditRead = Annotated[Principal, may(Permission.AUDIT_READ)]
Time = Annotated[str | None, Query(pattern=TIME, examples=["2026-11-30T12:00:00Z"])]

router = APIRouter(prefix="/audit", tags=["audit"])


async def _wanted(
    *,
    user: Annotated[str | None, Query(pattern=MEMBER_NAME, description="Name of the user.")] = None,
    token: Annotated[str | None, Query(pattern=ID_PATTERN, description="Id of the token.")] = None,
    operation: Annotated[
        str | None,
        Query(
            pattern=r"^[a-z_]{1,80}$",
            description="Operation, as `operationId` of the OpenAPI document.",
            examples=["members_put"],
        ),
    ] = None,
    about: Annotated[
        str | None,
        Query(
            alias="object",
            pattern=r"^[!-~]{1,300}$",
            description="An object, as a path of the API; includes all below it, if it has a /.",
            examples=["projects/vision"],
        ),
    ] = None,
    project: Annotated[
        str | None, Query(pattern=NAME, max_length=80, description="Name of the project.")
    ] = None,
    outcome: Annotated[AuditOutcome | None, Query(description="What the request did.")] = None,
    since: Time = None,
    until: Time = None,
) -> AuditFilter:
    return AuditFilter(
        user=user,
        token=token,
        operation=operation,
        object=about,
        project=project,
        outcome=outcome,
        since=_time("since", since),
        until=_time("until", until),
    )


def _time(name: str, given: str | None) -> datetime | None:
    try:
        return None if given is None else datetime.fromisoformat(given)
    except ValueError:
        raise InvalidRequestError.at(
            f"query/{name}", f"{given!r} is no time; legal: such as 2026-11-30T12:00:00Z"
        ) from None


@router.get(
    "",
    dependencies=[may(Permission.AUDIT_READ)],
    response_model=Page[AuditRow],
    summary="Rows of the audit log",
)
def list_(
    context: ServerContext,
    wanted: Annotated[AuditFilter, Depends(_wanted)],
    page: Annotated[PageRequest[int], Depends(page_by("audit", int))],
) -> Response:
    """List the rows that have a number, the newest first. A row gets its number within 2 s."""
    rows = list_rows(context, wanted, after=page.after, limit=page.limit)
    shown, next_page_token = page.cut(rows, lambda row: row.seq)
    return reply(Page[AuditRow](items=tuple(shown), next_page_token=next_page_token))


@router.get(
    "/export",
    summary="Export of the audit log",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "One JSON object a line: an `AuditRow` without its nulls, or `anchor`, "
            "the signed digest of the row before it.",
            "content": {LINES: {"schema": {"type": "string"}}},
        }
    },
)
def export_(
    context: ServerContext,
    request: Request,
    principal: AuditRead,
    after: Annotated[
        int, Query(ge=0, le=MAX_INT, description="Number of the last row that is not needed.")
    ] = 0,
) -> StreamingResponse:
    """Stream all rows after a row in the order of their numbers, up to the end of the chain."""

    def lines() -> Iterator[bytes]:
        with lasting_requests(request).watched(principal) as access:
            for some in export(context, after):
                if access.has_ended:
                    return
                yield some

    return StreamingResponse(lines(), media_type=LINES)
