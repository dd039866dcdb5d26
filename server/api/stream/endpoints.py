"""`GET /stream`: every change, as server-sent events."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from sse_starlette import EventSourceResponse

from server.api.auth.dependencies import lasting_requests, may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.core.addresses import Networks, counted_as
from server.core.events.shares import Holder
from server.core.events.stream import follow
from server.core.events.tail import Subscription, Tail
from trainyard.base.ids import ID_PATTERN
from trainyard.protocol.rest.access import Permission

PING_SECONDS = 15
SEND_SECONDS = 30.0
"""Time after which a client that reads nothing is disconnected, in seconds."""
EVENT_SCHEMA = {
    "type": "object",
    "description": "One server-sent event.",
    "properties": {
        "id": {"type": "string", "description": "Id of the event."},
        "event": {"type": "string", "enum": ["message", "reset"]},
        "data": {
            "type": "string",
            "description": "A `StreamItem` as JSON; an empty object in a reset.",
            "contentMediaType": "application/json",
            "contentSchema": {
                "anyOf": [
                    {"$ref": "#/components/schemas/StreamItem"},
                    {"type": "object", "maxProperties": 0},
                ]
            },
        },
        "retry": {"type": "integer"},
    },
}

router = APIRouter(prefix="/stream", tags=["events"])


@router.get(
    "",
    summary="Every change, live",
    response_class=EventSourceResponse,
    responses={
        200: {
            "description": "Each message's `data` is a `StreamItem`: an event, or a notice, which "
            "has no id. `event: reset` follows a gap that is not replayed, or a change of what the "
            "client sees: the client must reload its state.",
            "content": {"text/event-stream": {"schema": EVENT_SCHEMA}},
        }
    },
)
async def stream(
    request: Request,
    context: ServerContext,
    principal: Annotated[Principal, may(Permission.JOBS_READ)],
    job: Annotated[
        str | None, Query(pattern=ID_PATTERN, description="Only the events of this job.")
    ] = None,
    last_event_id: Annotated[
        str,
        Header(
            pattern=r"^([0-9]{1,18})?$",
            description="Id of the last event seen: later ones are replayed.",
        ),
    ] = "",
) -> EventSourceResponse:
    """Stream events in the order in which they happened, each once; `reset` replaces a gap."""
    tail = request.app.state.tail
    assert isinstance(tail, Tail)
    host = request.client.host if request.client else ""
    is_proxy = host in Networks(context.settings.trusted_proxies)  # stands for many clients
    holder = Holder(principal.actor.identity, None if is_proxy else counted_as(host))
    tail.check_room(holder)
    last = int(last_event_id) if last_event_id else None

    def watched(subscription: Subscription) -> AbstractContextManager[object]:
        return lasting_requests(request).watched(
            principal,
            subscription.end_soon,
            allows=lambda scope: scope.within(Permission.JOBS_READ) != frozenset(),
            on_change=subscription.see,
        )

    content = follow(
        context,
        tail,
        last_event_id=last,
        job_id=job,
        holder=holder,
        scope=principal.scope,
        watched=watched,
    )
    return EventSourceResponse(content, ping=PING_SECONDS, send_timeout=SEND_SECONDS)
