"""Views, orders and events of node sources and of requests for nodes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import RecordModel, SpecModel, Text
from trainyard.protocol.event_kinds import EventData
from trainyard.protocol.node_sources.messages import (
    MAX_NODES,
    CheckResult,
    NeedsLogin,
    NodeShape,
    Purpose,
    SourceKind,
    SourceLimits,
)

RequestState = Literal["wanted", "pending", "running", "leaving", "ended"]
"""`wanted` until the engine has the job; `leaving` once its nodes are withdrawn or near their end;
`ended` when the engine proves that nothing of it is left."""


class SourceOrder(SpecModel):
    """Body of pause; every field is optional."""

    reason: Annotated[Text, Field(max_length=500)] | None = None
    """Reason, shown with the source."""


class NodesRequest(SpecModel):
    """Body of a request for nodes by a person."""

    nodes: Annotated[int, Field(ge=1, le=MAX_NODES)] = 1
    """Nodes."""


class SourceView(RecordModel):
    """A source of nodes."""

    name: str
    """Name."""
    kind: SourceKind
    """Kind of engine."""
    shape: NodeShape
    """Expected resources of each of its nodes."""
    limits: SourceLimits
    """Limits of requests to it."""
    request_seconds: float | None
    """Length of an allocation; absent if nodes stay until they are released."""
    idle_seconds: float
    """Time without an attempt after which nodes are released."""
    online: bool
    """Whether its provisioner answers."""
    listed_at: datetime | None
    """When the engine last listed its jobs."""
    error: str | None
    """Why the last call of the engine failed; absent if it succeeded."""
    needs_login: NeedsLogin | None
    """Set while the route to the engine needs a person."""
    paused: bool
    """Whether it receives no new requests."""
    paused_by: str | None
    """Who paused it."""
    pause_reason: str | None
    """Why."""
    pending_requests: int
    """Requests queued in the engine or being submitted."""
    nodes_asked: int
    """Nodes of these requests."""
    nodes_running: int
    """Nodes of running requests."""
    node_hours_this_month: float
    """Node-hours of the calendar month so far."""
    registered_at: datetime
    """When it first registered."""
    version: str
    """Version of Trainyard at the provisioner."""


class NodeRequestView(RecordModel):
    """A request for nodes."""

    id: str
    """Id; the engine's job is named after it."""
    source: str
    """Source."""
    purpose: Purpose
    """Purpose of its pilots."""
    state: RequestState
    """State."""
    nodes: int
    """Nodes."""
    seconds: float | None
    """Length of the allocation; unlimited when absent."""
    caused_by: str
    """The queued jobs that caused it, or the person who made it."""
    ref: str | None
    """The engine's id of the job."""
    engine_state: str
    """The engine's last answer; `unknown` proves nothing."""
    reason: str
    """Why it waits or ended, from the engine or from Trainyard."""
    starts_at: datetime | None
    """Expected or actual start, from the engine."""
    ends_at: datetime | None
    """Expected or actual end, from the engine."""
    joined: tuple[str, ...]
    """Names of its nodes that have registered."""
    results: tuple[CheckResult, ...] = ()
    """Findings of a check."""
    created_at: datetime
    """When it was made."""
    ended_at: datetime | None
    """When it ended."""


class NodesRequested(EventData):
    """Nodes were requested from a source."""

    request_id: str
    """Request."""
    source: str
    """Source."""
    nodes: int
    """Nodes."""


class NodesReleased(EventData):
    """Nodes were withdrawn from a source, or an allocation has ended."""

    request_id: str
    """Request."""
    source: str
    """Source."""
    nodes: int
    """Nodes."""
    ended: bool
    """Whether the engine proves that nothing of it is left."""


class SourceChanged(EventData):
    """A source was registered, paused or resumed, is away, or needs a login."""

    source: str
    """Source."""
    online: bool
    """Whether its provisioner answers."""
    paused: bool
    """Whether it receives no new requests."""
    needs_login: bool
    """Whether its route to the engine needs a person."""
