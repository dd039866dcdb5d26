"""Views of the machines."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from trainyard.base.model_base import RecordModel, SpecModel
from trainyard.protocol.attempt import NodeAllocation
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
    notice: str | None
    """Reason that the node gave for its shutdown; attempts there save and move."""
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
