"""Views of the machines."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from trainyard.base.models import RecordModel, SpecModel
from trainyard.protocol.attempt import NodeAllocation
from trainyard.protocol.worker_messages import Hardware

Running = Literal["move", "finish"]


class DrainRequest(SpecModel):
    """Body of drain: all of it may be left out."""

    running: Running = "move"
    """What becomes of the attempts there: `move` has them save and leave at the next step boundary
    and go on elsewhere, `finish` lets them run to their end."""


class Drain(RecordModel):
    """A person's word that nothing new is placed on a node."""

    running: Running
    """What becomes of the attempts there."""
    by: str
    """Who said it."""
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
    """Where other nodes reach it."""
    hardware: Hardware
    """What it is made of."""
    online: bool
    """Whether its worker's heartbeats arrive."""
    draining: bool
    """Whether nothing new is placed on it."""
    drain: Drain | None
    """Who drained it, when and how; absent when nobody did."""
    notice: str | None
    """Why it is about to go away by its own word: what runs there saves and moves."""
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
