"""Views of the machines."""

from __future__ import annotations

from datetime import datetime

from specs.attempt import NodeAllocation
from specs.base import RecordModel
from specs.reports import Hardware


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
    """Where other nodes reach it."""
    hardware: Hardware
    """What it is made of."""
    online: bool
    """Whether its worker's heartbeats arrive."""
    draining: bool
    """Whether nothing new is placed on it."""
    free_slots: int
    """Slots that nobody holds."""
    allocations: tuple[NodeHolding, ...]
    """Who holds the others."""
    roots: tuple[str, ...]
    """Storage roots that it sees."""
    version: str
    """Version of Trainyard on it."""
    registered_at: datetime
    """When it first registered."""
    heartbeat_at: datetime
    """When it was last heard of."""
