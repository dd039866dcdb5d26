"""Views, request bodies and events of nodes."""

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
    """Body of a request to drain a node; every field is optional."""

    running: Running = "move"
    """Effect on the node's attempts: `move` saves them at the next step boundary and resumes them
    on other nodes; `finish` lets them run to their end."""


class LabelChange(SpecModel):
    """Body of a request to change the labels of a node."""

    labels: ChangedLabels
    """New values, by key. They override the labels in the worker's settings, even after the worker
    registers again. Null removes an override, so that the worker's own value applies again."""


class CordonRequest(SpecModel):
    """Body of a request to cordon a node; every field is optional."""

    reason: Annotated[Text, Field(max_length=500)] | None = None
    """Reason for the cordon, which is shown with the node."""


class Drain(RecordModel):
    """Order by a person or by the server to place nothing new on a node."""

    running: Running
    """Effect on the node's attempts."""
    by: str
    """Author of the order."""
    at: datetime
    """Time of the order."""
    reasons: tuple[str, ...] = ()
    """Reasons for the order; for an order by the server, the signs that the node is unreliable."""


class NodeHolding(RecordModel):
    """Slots of a node that one job holds."""

    job_id: str | None
    """Id of the job; null for a job that the caller does not see."""
    job_name: str
    """Name of the job; `another project's job` for a job that the caller does not see."""
    allocation: NodeAllocation
    """Slots that the job holds."""


class WithheldSlot(RecordModel):
    """A slot that no job receives until the cause is gone."""

    slot: int
    """Index of the slot."""
    reason: str
    """Cause: a process of another program holds the memory, or the device does not respond."""


class NodePoint(RecordModel):
    """Samples of one series in one time interval."""

    time: datetime
    """Start of the interval, by the clock of the server."""
    min: float
    """Lowest sample."""
    mean: float
    """Mean of the samples."""
    max: float
    """Highest sample."""


class NodeCurve(RecordModel):
    """One series of samples from a node."""

    name: str
    """Name of the series; it ends in the unit, if there is one, as in `gpu_power_watts`."""
    part: str | None
    """UUID of the device or name of the disk, if the series belongs to one."""
    slot: int | None
    """Slot of the device; absent for a GPU that is divided into MIG instances."""
    points: tuple[NodePoint, ...]
    """Intervals, sorted by time; intervals without samples are omitted."""


class NodeMetrics(RecordModel):
    """State of a node, now and over the requested time, at most the last 14 days."""

    name: str
    """Name of the node."""
    sampled_at: datetime | None
    """Time of the newest sample, by the clock of the server; absent without a sample."""
    sample: NodeSample | None
    """Newest sample; absent while the worker sends no samples."""
    seconds: int
    """Length of an interval, in seconds."""
    curves: tuple[NodeCurve, ...]
    """Series of the node, sorted by name."""


class NodeView(RecordModel):
    """A node: a machine with a worker."""

    name: str
    """Name of the node."""
    address: str
    """Address at which other nodes reach the node."""
    hardware: Hardware
    """Hardware of the node."""
    online: bool
    """Whether heartbeats of the worker arrive."""
    draining: bool
    """Whether the node is drained or cordoned, or has announced its shutdown, so that nothing new
    is placed on it."""
    drain: Drain | None
    """Author, time and kind of the drain; absent if the node is not drained."""
    problems: tuple[str, ...]
    """Problems of the worker, the clock, devices and file systems."""
    notice: str | None
    """Announced reason for a shutdown of the node. Attempts on the node save and move to other
    nodes."""
    request_id: str | None = None
    """Request that allocated the node; absent if the node comes from no source. The name of the
    source is in the label `source`."""
    ends_at: datetime | None = None
    """End of the node's allocation, if known; attempts leave the node before then."""
    slow_slots: tuple[SlowSlot, ...] = ()
    """Slots on which ranks of several jobs were slower than their peers."""
    free_slots: int
    """Number of free slots; withheld slots are not free."""
    withheld: tuple[WithheldSlot, ...]
    """Slots, by index, that no job receives until the cause is gone."""
    allocations: tuple[NodeHolding, ...]
    """Jobs that hold slots of the node."""
    roots: tuple[str, ...]
    """Names of the storage roots that the node sees."""
    labels: Labels
    """Labels of the node. Labels that people set override labels from the worker's settings."""
    version: str
    """Version of Trainyard on the node."""
    registered_at: datetime
    """Time of the node's first registration."""
    heartbeat_at: datetime
    """Time of the last heartbeat."""
    clock_skew_seconds: float | None = None
    """Time of the node's clock minus time of the database's clock, at the last measurement; absent
    before the first measurement."""


class NodeRegistered(EventData):
    """A node registered for the first time, or with other hardware or storage."""

    slots: int
    """Number of slots that the node offers."""
    device: Literal["cpu", "cuda"]
    """Kind of the node's slots."""
    other_storage: tuple[str, ...] = ()
    """Storage roots that lead to other storage on this node than on most nodes."""


class NodeOnline(EventData):
    """Heartbeats of a node arrive again."""


class NodeOffline(EventData):
    """Heartbeats of a node are overdue."""


class NodeLabeled(EventData):
    """A person changed the labels of a node."""

    changed: dict[str, str | None]
    """New values, by key; null if the value from the worker's settings applies again."""


class NodeDrained(EventData):
    """A node was drained, or accepts new work again, or announced its shutdown."""

    draining: bool
    """True at the start of a drain or of an announced shutdown, false at its end."""
    running: Running | None = None
    """Effect on the node's attempts; absent for an announced shutdown and at the end of a drain."""
    reasons: tuple[str, ...] = ()
    """Reasons for the drain."""
    notice: str | None = None
    """Announced reason for a shutdown of the machine; absent without one."""
