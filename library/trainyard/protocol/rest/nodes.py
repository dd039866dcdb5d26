"""Views, orders and events of nodes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.labels import ChangedLabels, Labels
from trainyard.base.model_base import RecordModel, SpecModel, Text
from trainyard.protocol.attempt import NodeAllocation
from trainyard.protocol.event_kinds import EventData
from trainyard.protocol.node_samples import NodeSample
from trainyard.protocol.rest.metrics_and_logs import SlowSlot
from trainyard.protocol.worker_messages import Hardware

Running = Literal["move", "finish"]


class DrainRequest(SpecModel):
    """Body of drain; every field is optional."""

    running: Running = "move"
    """Effect on its attempts: `move` saves them at the next step boundary and resumes them on other
    nodes, `finish` lets them run to their end."""


class LabelChange(SpecModel):
    """Body of a change of labels."""

    labels: ChangedLabels
    """Values by key. They override the worker's settings, also after it registers again. Null
    removes such a value; then the worker's own applies again."""


class CordonRequest(SpecModel):
    """Body of cordon; every field is optional."""

    reason: Annotated[Text, Field(max_length=500)] | None = None
    """Reason, shown with the node."""


class Drain(RecordModel):
    """An order to place nothing new on a node, by a person or by the server."""

    running: Running
    """Effect on its attempts."""
    by: str
    """Who gave the order."""
    at: datetime
    """When."""
    reasons: tuple[str, ...] = ()
    """Reasons; if the server gave the order, why the node is unreliable."""


class NodeHolding(RecordModel):
    """Slots of a node that a job holds."""

    job_id: str
    """Job."""
    job_name: str
    """Its name."""
    allocation: NodeAllocation
    """The slots."""


class WithheldSlot(RecordModel):
    """A slot that no job gets until the cause is gone."""

    slot: int
    """Index of the slot."""
    reason: str
    """Why: a process of another program holds its memory, or the device does not answer."""


class NodePoint(RecordModel):
    """A time interval of one series."""

    time: datetime
    """Start of the interval, by the server's clock."""
    min: float
    """Lowest value."""
    mean: float
    """Mean of the samples."""
    max: float
    """Highest value."""


class NodeCurve(RecordModel):
    """One series of a node."""

    name: str
    """Name, with the unit at its end, as in `gpu_power_watts`."""
    part: str | None
    """UUID of the device, or name of the disk."""
    slot: int | None
    """Slot of the device; absent for a GPU that is divided into instances."""
    points: tuple[NodePoint, ...]
    """Points by time; intervals without a sample are omitted."""


class NodeMetrics(RecordModel):
    """State of a node, now and over the last hours."""

    name: str
    """Name of the node."""
    sampled_at: datetime | None
    """Time of the sample, by the server's clock; absent without one."""
    sample: NodeSample | None
    """The newest sample; absent while its worker sends none."""
    seconds: int
    """Length of the interval of a point."""
    curves: tuple[NodeCurve, ...]
    """Its series by name."""


class NodeView(RecordModel):
    """A machine with a worker."""

    name: str
    """Name."""
    address: str
    """Address for other nodes."""
    hardware: Hardware
    """Its hardware."""
    online: bool
    """Whether its worker's heartbeats arrive."""
    draining: bool
    """Whether nothing new is placed on it."""
    drain: Drain | None
    """Who drained it, when and how; absent if it is not drained."""
    problems: tuple[str, ...]
    """Problems of its devices and file systems, from its last heartbeat."""
    notice: str | None
    """Announced reason for its shutdown; its attempts save and move."""
    request_id: str | None = None
    """Request that allocated it, if it comes from a source; the label `source` names the source."""
    ends_at: datetime | None = None
    """End of that allocation, if known; its attempts leave before."""
    slow_slots: tuple[SlowSlot, ...] = ()
    """Slots with ranks that were slower than their peers in several jobs."""
    free_slots: int
    """Number of free slots, without withheld ones."""
    withheld: tuple[WithheldSlot, ...]
    """Slots that no job gets, by index."""
    allocations: tuple[NodeHolding, ...]
    """Jobs that hold the other slots."""
    roots: tuple[str, ...]
    """Storage roots that it sees."""
    labels: Labels
    """Its labels: those that people set override those of the worker's settings."""
    version: str
    """Version of Trainyard on it."""
    registered_at: datetime
    """When it first registered."""
    heartbeat_at: datetime
    """Time of its last heartbeat."""
    clock_skew_seconds: float | None = None
    """Its clock minus the database's, by the last measurement; absent before the first."""


class NodeRegistered(EventData):
    """A node registered, or came back with other hardware or storage."""

    slots: int
    """Slots that it offers."""
    device: Literal["cpu", "cuda"]
    """Kind of device."""
    other_storage: tuple[str, ...] = ()
    """Roots that are another storage on this node than on most nodes."""


class NodeOnline(EventData):
    """Heartbeats of a node arrive again."""


class NodeOffline(EventData):
    """Heartbeats of a node are overdue."""


class NodeLabeled(EventData):
    """A person changed the labels of a node."""

    changed: dict[str, str | None]
    """The new values by key; null if the value of the worker's settings applies again."""


class NodeDrained(EventData):
    """A node accepts no new work, or accepts it again."""

    draining: bool
    """Whether it accepts no new work."""
    running: Running | None = None
    """Effect on its attempts; absent for a notice."""
    reasons: tuple[str, ...] = ()
    """Why."""
    notice: str | None = None
    """Announced reason for the machine's shutdown, if any."""
