"""Views, request bodies and events of node sources and of requests for nodes."""

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
"""State of a request: `wanted` until the engine has the job, `leaving` once the nodes are withdrawn
or near the end of their allocation, or the job has ended without proof; `ended` once the engine
proves that no process is left, no job was submitted, or a person ended the request."""


class SourceOrder(SpecModel):
    """Body of a request to pause a source; every field is optional."""

    reason: Annotated[Text, Field(max_length=500)] | None = None
    """Reason for the pause, which is shown with the source."""


class NodesRequest(SpecModel):
    """Body of a person's request for nodes."""

    nodes: Annotated[int, Field(ge=1, le=MAX_NODES)] = 1
    """Number of nodes."""


class SourceView(RecordModel):
    """A source of nodes."""

    name: str
    """Name of the source."""
    kind: SourceKind
    """Kind of engine."""
    shape: NodeShape
    """Expected resources of each node of the source."""
    limits: SourceLimits
    """Limits on the requests to the source."""
    request_seconds: float | None
    """Duration of an allocation; absent if nodes stay until they are released."""
    idle_seconds: float
    """Time without an attempt after which a node is released."""
    online: bool
    """Whether reports of the source's provisioner arrive."""
    listed_at: datetime | None
    """Time at which the engine last listed the source's jobs."""
    error: str | None
    """Reason why a call to the engine failed; absent after a later listing of all jobs."""
    needs_login: NeedsLogin | None
    """Required login; set while the connection to the engine needs a login by a person."""
    paused: bool
    """Whether the source is paused, so that it receives no new requests."""
    paused_by: str | None
    """Person who paused the source."""
    pause_reason: str | None
    """Reason for the pause."""
    pending_requests: int
    """Number of requests that are queued in the engine or being submitted."""
    nodes_asked: int
    """Number of nodes in the pending requests."""
    nodes_running: int
    """Number of nodes in running and leaving requests."""
    node_hours_this_month: float
    """Node-hours that the source used in this calendar month."""
    registered_at: datetime
    """Time of the source's first registration."""
    version: str
    """Version of Trainyard on the provisioner's machine."""


class NodeRequestView(RecordModel):
    """A request for nodes."""

    id: str
    """Id of the request; the engine's job is named after it."""
    source: str
    """Name of the source."""
    purpose: Purpose
    """Purpose of the request's pilots."""
    state: RequestState
    """State of the request."""
    nodes: int
    """Number of nodes."""
    seconds: float | None
    """Duration of the allocation; unlimited when absent."""
    caused_by: str
    """Queued jobs that caused the request, or the person who made it."""
    ref: str | None
    """The engine's id for the job."""
    engine_state: str
    """State of the job in the engine's last report; `unknown` proves nothing."""
    reason: str
    """Reason why the request waits or ended, from the engine or from Trainyard."""
    starts_at: datetime | None
    """Expected or actual start of the allocation, from the engine."""
    ends_at: datetime | None
    """Expected or actual end of the allocation, from the engine."""
    joined: tuple[str, ...]
    """Names of the request's nodes that have registered."""
    results: tuple[CheckResult, ...] = ()
    """Findings of a check."""
    created_at: datetime
    """Time at which the request was made."""
    ended_at: datetime | None
    """Time at which the request ended."""


class NodesRequested(EventData):
    """Nodes were requested from a source."""

    request_id: str
    """Id of the request."""
    source: str
    """Name of the source."""
    nodes: int
    """Number of nodes."""


class NodesReleased(EventData):
    """Nodes were withdrawn from a source, or an allocation has ended."""

    request_id: str
    """Id of the request."""
    source: str
    """Name of the source."""
    nodes: int
    """Number of nodes."""
    ended: bool
    """Whether the request has ended; if not, its nodes were withdrawn."""


class SourceChanged(EventData):
    """A source was registered, deleted, paused or resumed, became unreachable or reachable, needs a
    login or no longer, or lost a request."""

    source: str
    """Name of the source."""
    online: bool
    """Whether reports of the source's provisioner arrive."""
    paused: bool
    """Whether the source is paused, so that it receives no new requests."""
    needs_login: bool
    """Whether the connection to the engine needs a login by a person."""
