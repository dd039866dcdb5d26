"""`/workers/messages`: the long poll for workers that do not use the broker."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from server.api.auth.dependencies import Node
from server.api.http.request_body import JsonBody
from server.cluster.inbox.long_polls import Inboxes
from server.cluster.nodes.register import check_sender
from trainyard.protocol.node_sources.messages import MessagesReply, MessagesRequest

router = APIRouter(prefix="/workers", tags=["workers"])


@router.post("/messages", summary="Long poll of a worker without the broker")
async def messages(
    request: Request,
    principal: Node,
    body: Annotated[MessagesRequest, Depends(JsonBody(MessagesRequest))],
) -> MessagesReply:
    """Respond once the node has new work to claim.

    If no new work comes within the maximum wait, the lists of the response are empty.
    """
    check_sender(principal, body.node, body.protocol)
    inboxes = request.app.state.inboxes
    assert isinstance(inboxes, Inboxes)
    return await inboxes.messages(body.node, known=body.known, wait_seconds=body.wait_seconds)
