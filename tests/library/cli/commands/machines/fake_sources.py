"""A server with only sources of nodes, and its answers in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from trainyard.protocol.node_sources.messages import CheckResult, NodeShape, SourceLimits
from trainyard.protocol.node_sources.views import (
    NodeRequestView,
    NodesRequest,
    SourceOrder,
    SourceView,
)
from trainyard.protocol.rest.common import Page

Path = Mapping[str, str]
"""Parameters of the path, and of the query `open`."""
Endpoint = Callable[[Path, bytes], BaseModel | None]
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ID = "01m0000000000000000000000"
"""Prefix of every request's id; its number follows."""


def a_source(name: str = "slurm-a100", **changes: object) -> SourceView:
    made = SourceView(
        name=name, kind="slurm", shape=NodeShape(slots=8, device="cuda", labels={"gpu": "a100"}),
        limits=SourceLimits(node_hours_per_month=5000), request_seconds=14_400, idle_seconds=300,
        online=True, listed_at=NOW, error=None, needs_login=None, paused=False, paused_by=None,
        pause_reason=None, pending_requests=1, nodes_asked=2, nodes_running=4,
        node_hours_this_month=1234.56, registered_at=NOW, version="1.0",
    )  # fmt: skip
    return made.model_copy(update=changes)


def a_request(number: int, source: str = "slurm-a100", **changes: object) -> NodeRequestView:
    made = NodeRequestView(
        id=f"{ID}{number}", source=source, purpose="nodes", state="pending", nodes=2,
        seconds=14_400, caused_by="admin", ref="4711", engine_state="pending", reason="Priority",
        starts_at=NOW, ends_at=None, joined=(), created_at=NOW, ended_at=None,
    )  # fmt: skip
    return made.model_copy(update=changes)


class RefusedError(Exception):
    """Status and detail of a refusal."""


@dataclass
class FakeSources:
    """The state of the server, and the next report of a provisioner."""

    sources: dict[str, SourceView] = field(default_factory=dict)
    requests: list[NodeRequestView] = field(default_factory=list)
    explanation: str = "Resources"
    findings: tuple[CheckResult, ...] = ()
    check_reason: str = ""

    def app(self) -> Starlette:
        routes: dict[tuple[str, str], Endpoint] = {
            ("GET", ""): self._list,
            ("GET", "/{name}"): self._source,
            ("DELETE", "/{name}"): self._delete,
            ("POST", "/{name}/pause"): self._pause,
            ("POST", "/{name}/unpause"): self._unpause,
            ("POST", "/{name}/check"): self._check,
            ("GET", "/{name}/requests"): self._list_requests,
            ("POST", "/{name}/requests"): self._request_nodes,
            ("GET", "/{name}/requests/{id}"): self._show_request,
            ("POST", "/{name}/requests/{id}/cancel"): self._cancel,
            ("POST", "/{name}/requests/{id}/end"): self._end,
            ("POST", "/{name}/requests/{id}/explain"): self._explain,
        }
        return Starlette(
            routes=[
                Route(f"/api/v1/sources{path}", _answering(endpoint), methods=[method])
                for (method, path), endpoint in routes.items()
            ]
        )

    def _list(self, _: Path, __: bytes) -> BaseModel:
        return Page[SourceView](items=tuple(self.sources.values()))

    def _source(self, path: Path, _: bytes) -> SourceView:
        name = path["name"]
        if name not in self.sources:
            raise RefusedError(404, f"No source has the name {name}.")
        return self.sources[name]

    def _delete(self, path: Path, _: bytes) -> None:
        name = path["name"]
        if any(one.source == name and one.state != "ended" for one in self.requests):
            raise RefusedError(409, f"{name} has open requests.")
        del self.sources[name]

    def _pause(self, path: Path, body: bytes) -> SourceView:
        order = SourceOrder.model_validate_json(body)
        return self._set(path["name"], paused=True, paused_by="ada", pause_reason=order.reason)

    def _unpause(self, path: Path, _: bytes) -> SourceView:
        return self._set(path["name"], paused=False, paused_by=None, pause_reason=None)

    def _check(self, path: Path, _: bytes) -> NodeRequestView:
        return self._add(path["name"], nodes=1, purpose="check")

    def _list_requests(self, path: Path, _: bytes) -> BaseModel:
        shown = [one for one in self.requests if one.source == path["name"]]
        if path["open"]:
            shown = [one for one in shown if one.state != "ended"]
        return Page[NodeRequestView](items=tuple(shown))

    def _request_nodes(self, path: Path, body: bytes) -> NodeRequestView:
        return self._add(path["name"], nodes=NodesRequest.model_validate_json(body).nodes)

    def _show_request(self, path: Path, _: bytes) -> NodeRequestView:
        request = self._find(path)
        if request.purpose == "check":
            reason = self.check_reason
            return self._change(request, state="ended", results=self.findings, reason=reason)
        return request

    def _cancel(self, path: Path, _: bytes) -> NodeRequestView:
        return self._change(self._find(path), state="leaving")

    def _end(self, path: Path, _: bytes) -> NodeRequestView:
        return self._change(self._find(path), state="ended", ended_at=NOW)

    def _explain(self, path: Path, _: bytes) -> NodeRequestView:
        before = self._find(path)
        self._change(before, reason=self.explanation)
        return before

    def _set(self, name: str, **changes: object) -> SourceView:
        self.sources[name] = self.sources[name].model_copy(update=changes)
        return self.sources[name]

    def _add(self, name: str, **changes: object) -> NodeRequestView:
        fresh = {"state": "wanted", "ref": None, "reason": "", **changes}
        self.requests.insert(0, a_request(len(self.requests), name, **fresh))
        return self.requests[0]

    def _find(self, path: Path) -> NodeRequestView:
        wanted = (path["name"], path["id"])
        return next(one for one in self.requests if (one.source, one.id) == wanted)

    def _change(self, request: NodeRequestView, **changes: object) -> NodeRequestView:
        changed = request.model_copy(update=changes)
        self.requests[self.requests.index(request)] = changed
        return changed


def _answering(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        path = {**request.path_params, "open": request.query_params.get("open", "")}
        try:
            view = endpoint(path, await request.body())
        except RefusedError as refused:
            status, detail = refused.args
            problem = {"title": "Refused", "status": status, "detail": detail, "request_id": "r"}
            return JSONResponse(problem, status, media_type="application/problem+json")
        return (
            Response(status_code=204)
            if view is None
            else JSONResponse(view.model_dump(mode="json"))
        )

    return answer
