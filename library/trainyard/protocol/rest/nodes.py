"""Views of the machines."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from trainyard.base.model_base import RecordModel, SpecModel
from trainyard.protocol.attempt import NodeAllocation
from trainyard.protocol.node_samples import NodeSample
from trainyard.protocol.rest.metrics_and_logs import SlowSlot
from trainyard.protocol.worker_messages import Hardware

Running = Literal["move", "finish"]


class DrainRequest(SpecModel):
    """Body of drain; every field is optional."""

    running: Running = "move"
    """Effect on the attempts there: `move` saves them at the next step boundary and resumes them
    on other nodes, `finish` lets them run to their end."""


class Drain(RecordModel):
    """A person's order to place nothing new on a node."""

    running: Running
    """Effect on the attempts there."""
    by: str
    """Who gave the order."""
    at: datetime
    """When."""


class NodeHolding(RecordModel):
    """Slots of a node that a job holds."""

    job_id: str
    """Job."""
    job_name: str
    """Its name."""
    allocation: NodeAllocation
    """The slots."""


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
    slow_slots: tuple[SlowSlot, ...] = ()
    """Slots whose ranks were slower than their peers in several jobs."""
    free_slots: int
    """Free slots."""
    allocations: tuple[NodeHolding, ...]
    """Jobs that hold the other slots."""
    roots: tuple[str, ...]
    """Storage roots that it sees."""
    version: str
    """Version of Trainyard on it."""
    registered_at: datetime
    """When it first registered."""
    heartbeat_at: datetime
    """Time of its last heartbeat."""
