"""Views, requests and events of projects."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from trainyard.base.model_base import RecordModel, SpecModel, Text
from trainyard.protocol.event_kinds import EventData
from trainyard.spec.job import ProjectName

Weight = Annotated[float, Field(ge=0.001, le=1_000_000)]
MaxSlots = Annotated[int, Field(ge=0, le=10**7, json_schema_extra={"unit": "slots"})]
SlotHours = Annotated[float, Field(ge=0, le=10**9, json_schema_extra={"unit": "slot-hours"})]


class ProjectSettings(SpecModel):
    """Settings of a project; a change contains only the changed ones."""

    description: Annotated[Text, Field(max_length=1000)] = ""
    """What the project is for."""
    weight: Weight = 1.0
    """Its share of the slots relative to the weights of the other projects that use the cluster."""
    max_slots: MaxSlots | None = None
    """Most slots that its jobs hold at the same time; unlimited when null."""
    slot_hours_per_month: SlotHours | None = None
    """Most slot-hours that its jobs use in a calendar month (UTC); unlimited when null. A slot is
    one GPU, one MIG instance, or one CPU rank on a node without GPUs."""


class ProjectRequest(ProjectSettings):
    """Body of a new project."""

    name: ProjectName
    """Name; it never changes."""


class ProjectView(RecordModel):
    """A project, with current use by its jobs."""

    name: str
    """Name."""
    description: str
    """What it is for."""
    weight: float
    """Its share of the slots relative to the weights of the other projects."""
    max_slots: int | None
    """Most slots that its jobs hold; unlimited when null."""
    slot_hours_per_month: float | None
    """Most slot-hours that its jobs use in a calendar month (UTC); unlimited when null."""
    created_by: str
    """Who created it."""
    created_at: datetime
    """When."""
    held_slots: int
    """Slots of its starting, running and stopping jobs."""
    waiting_jobs: int
    """Number of its jobs in the queue."""
    share: float
    """Its held slots divided by the held slots of all projects; 0 if no slots are held."""
    fair_share: float
    """Its weight divided by the weights of all projects with a job that waits or holds slots; 0 if
    it has no such job."""
    slot_hours_used: float
    """Slot-hours that its jobs have used in this calendar month (UTC)."""


class ProjectChanged(EventData):
    """A project was created, changed or deleted."""

    project: str
    """Its name."""
    before: ProjectSettings | None
    """Previous settings; absent if it was created."""
    after: ProjectSettings | None
    """New settings; absent if it was deleted."""
