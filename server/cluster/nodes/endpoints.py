"""`/nodes`: the nodes, with their drains, labels and metrics."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from server.api.auth.dependencies import may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.paging import PageRequest, page_by
from server.api.http.path_params import NodeName
from server.api.http.request_body import JsonBody
from server.api.http.responses import reply, reply_rows
from server.cluster.nodes import series
from server.cluster.nodes.changes import set_drain, set_labels
from server.cluster.nodes.queries import list_nodes
from trainyard.base.names import NAME
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.common import Page
from trainyard.protocol.rest.nodes import (
    CordonRequest,
    DrainRequest,
    LabelChange,
    NodeMetrics,
    NodeView,
)

CordonBody = Annotated[CordonRequest, Depends(JsonBody(CordonRequest, default=CordonRequest()))]
DrainBody = Annotated[DrainRequest, Depends(JsonBody(DrainRequest, default=DrainRequest()))]

NodesWrite = Annotated[Principal, may(Permission.NODES_WRITE)]

router = APIRouter(prefix="/nodes", tags=["nodes"])


@router.get(
    "",
    response_model=Page[NodeView],
    summary="The machines",
)
def list_(
    context: ServerContext,
    principal: Annotated[Principal, may(Permission.NODES_READ)],
    page: Annotated[PageRequest[str], Depends(page_by("nodes", str, NAME))],
) -> Response:
    """List nodes by name, with their slots, the jobs that hold the slots, and the online state."""
    views = list_nodes(context, scope=principal.scope, after=page.after, limit=page.limit)
    shown, next_page_token = page.cut(views, lambda view: view.name)
    return reply(Page[NodeView](items=tuple(shown), next_page_token=next_page_token))


@router.get(
    "/{name}/metrics",
    dependencies=[may(Permission.NODES_READ)],
    response_model=NodeMetrics,
    summary="Metrics of a node",
)
def metrics(
    context: ServerContext,
    name: NodeName,
    hours: Annotated[int, Query(ge=1, le=336, description="Hours up to now.")] = 1,
    names: Annotated[
        str | None,
        Query(
            max_length=1000,
            pattern=r"^[a-z_]+(,[a-z_]+)*$",
            description="Series, separated by commas; all when absent.",
            examples=["gpu_power_watts,load"],
        ),
    ] = None,
) -> Response:
    """Return the newest sample of a node, and its series.

    A request for at most 6 hours gets a point per minute, and a longer request (at most 14 days) a
    point per 15 minutes. If this gives more than 20,000 points, each point covers a longer period.
    """
    wanted = names.split(",") if names is not None else ()
    return reply_rows(series.read_metrics(context, name, hours=hours, names=wanted))


@router.post("/{name}/drain", response_model=NodeView, summary="Drain a node")
def drain(
    context: ServerContext, principal: NodesWrite, name: NodeName, body: DrainBody
) -> Response:
    """Place nothing new on a node. Its attempts save and move to other nodes, or finish."""
    return reply(set_drain(context, name, body.running, actor=principal.actor))


@router.post("/{name}/undrain", response_model=NodeView, summary="End a drain")
def undrain(context: ServerContext, principal: NodesWrite, name: NodeName) -> Response:
    """Place new work on the node again."""
    return reply(set_drain(context, name, None, actor=principal.actor))


@router.post("/{name}/cordon", response_model=NodeView, summary="Place nothing new on a node")
def cordon(
    context: ServerContext, principal: NodesWrite, name: NodeName, body: CordonBody
) -> Response:
    """Place nothing new on a node; its attempts finish.

    The node's view shows the reason.
    """
    reasons = () if body.reason is None else (body.reason,)
    return reply(set_drain(context, name, "finish", actor=principal.actor, reasons=reasons))


@router.post("/{name}/uncordon", response_model=NodeView, summary="End a cordon or a drain")
def uncordon(context: ServerContext, principal: NodesWrite, name: NodeName) -> Response:
    """Place new work on the node again; its earlier failures and errors no longer count."""
    return reply(set_drain(context, name, None, actor=principal.actor))


@router.post("/{name}/labels", response_model=NodeView, summary="Change labels of a node")
def label(
    context: ServerContext,
    principal: NodesWrite,
    name: NodeName,
    body: Annotated[LabelChange, Depends(JsonBody(LabelChange))],
) -> Response:
    """Set labels, by which jobs select nodes. Attempts that run on the node stay there."""
    return reply(set_labels(context, name, body.labels, actor=principal.actor))
