"""Views of the machines, orders to them, and the events about them."""

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
    """Effect on the attempts there: `move` saves them at the next step boundary and resumes them
    on other nodes, `finish` lets them run to their end."""


class LabelChange(SpecModel):
    """Body of a change of labels."""

    labels: ChangedLabels
    """Values by key. They win over those of the worker's settings, also after it registers anew;
    null withdraws a value that was set in this way, and the worker's own applies again."""


class CordonRequest(SpecModel):
    """Body of cordon; every field is optional."""

    reason: Annotated[Text, Field(max_length=500)] | None = None
    """Why, for those who look at the node."""


class Drain(RecordModel):
    """An order to place nothing new on a node, by a person or by the server."""

    running: Running
    """Effect on the attempts there."""
    by: str
    """Who gave the order."""
    at: datetime
    """When."""
    reasons: tuple[str, ...] = ()
    """Why; where the server gave the order, what made the node unreliable."""


class NodeHolding(RecordModel):
    """Slots of a node that a job holds."""

    job_id: str
    """Job."""
    job_name: str
    """Its name."""
    allocation: NodeAllocation
    """The slots."""


class WithheldSlot(RecordModel):
    """A slot that no job gets, until its cause is gone."""

    slot: int
    """Index of the slot."""
    reason: str
    """Why: a process of another program holds its memory, or the device does not answer."""


class NodePoint(RecordModel):
    """A stretch of time of one series."""

    time: datetime
    """Its beginning, by the server's clock."""
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
    """Slot that the device is; absent for a GPU whose instances are the slots."""
    points: tuple[NodePoint, ...]
    """Points by time; a stretch without a sample has none."""


class NodeMetrics(RecordModel):
    """How a node fares, now and over the last hours."""

    name: str
    """Name of the node."""
    sampled_at: datetime | None
    """Time of the sample, by the server's clock; absent without one."""
    sample: NodeSample | None
    """The newest sample; absent while its worker sends none."""
    seconds: int
    """Length of the stretch that a point stands for."""
    curves: tuple[NodeCurve, ...]
    """Its series by name."""


class NodeView(RecordModel):
    """A machine with a worker."""

    name: str
    """Name."""
    address: str
    """Address at which other nodes reach it."""
    hardware: Hardware
    """Its hardware."""
    online: bool
    """Whether its worker's heartbeats arrive."""
    draining: bool
    """Whether nothing new is placed on it."""
    drain: Drain | None
    """Who drained it, when and how; absent when it is not drained."""
    problems: tuple[str, ...]
    """What is wrong with its devices and file systems, by its last heartbeat."""
    notice: str | None
    """Reason that the node gave for its shutdown; attempts there save and move."""
    request_id: str | None = None
    """Request for nodes of a source whose allocation it is in, if any; the label `source` names the
    source."""
    ends_at: datetime | None = None
    """End of that allocation, where one is known; its attempts leave before."""
    slow_slots: tuple[SlowSlot, ...] = ()
    """Slots whose ranks were slower than their peers in several jobs."""
    free_slots: int
    """Free slots, without those that are withheld."""
    withheld: tuple[WithheldSlot, ...]
    """Slots that no job gets, by their index."""
    allocations: tuple[NodeHolding, ...]
    """Jobs that hold the other slots."""
    roots: tuple[str, ...]
    """Storage roots that it sees."""
    labels: Labels
    """Its labels: those of its worker's settings, and those that people set, which win."""
    version: str
    """Version of Trainyard on it."""
    registered_at: datetime
    """When it first registered."""
    heartbeat_at: datetime
    """Time of its last heartbeat."""
    clock_skew_seconds: float | None = None
    """Its clock less the database's, by the last measurement; absent before one."""


class NodeRegistered(EventData):
    """A node registered, or came back with other hardware or storage."""

    slots: int
    """Slots that it offers."""
    device: Literal["cpu", "cuda"]
    """Kind of device."""
    other_storage: tuple[str, ...] = ()
    """Roots under which it sees another storage than most nodes."""


class NodeOnline(EventData):
    """Heartbeats of a node arrive again."""


class NodeOffline(EventData):
    """Heartbeats of a node are overdue."""


class NodeLabeled(EventData):
    """A person changed the labels of a node."""

    changed: dict[str, str | None]
    """The new values by key; null where the value of the worker's settings applies again."""


class NodeDrained(EventData):
    """A node accepts no new work, or accepts it again."""

    draining: bool
    """Whether it accepts none."""
    running: Running | None = None
    """Effect on its attempts; absent for a notice."""
    reasons: tuple[str, ...] = ()
    """Why."""
    notice: str | None = None
    """Reason that the machine gave for its shutdown, where it announced one."""
