"""Views of projects, requests on them, and the event of a change."""

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
    """Settings of a project; of a change, those that are given, while the others stay."""

    description: Annotated[Text, Field(max_length=1000)] = ""
    """What the project is for."""
    weight: Weight = 1.0
    """Its share of the slots relative to the weights of the other projects that use the cluster."""
    max_slots: MaxSlots | None = None
    """Slots that its jobs hold at most at the same time; unlimited when null."""
    slot_hours_per_month: SlotHours | None = None
    """Slot-hours that its jobs use at most in a calendar month (UTC); unlimited when null. A slot
    is one GPU, one MIG instance, or one CPU rank on a node without GPUs."""


class ProjectRequest(ProjectSettings):
    """Body of a new project."""

    name: ProjectName
    """Name; it never changes."""


class ProjectView(RecordModel):
    """A project with what its jobs hold and use."""

    name: str
    """Name."""
    description: str
    """What it is for."""
    weight: float
    """Its share of the slots relative to the weights of the other projects."""
    max_slots: int | None
    """Slots that its jobs hold at most; unlimited when null."""
    slot_hours_per_month: float | None
    """Slot-hours that its jobs use at most in a calendar month (UTC); unlimited when null."""
    created_by: str
    """Who created it."""
    created_at: datetime
    """When."""
    held_slots: int
    """Slots of its jobs that start, run or stop."""
    waiting_jobs: int
    """Its jobs in the queue."""
    share: float
    """Part of the slots held by all projects that it holds; 0 when none is held."""
    fair_share: float
    """Its weight divided by the weights of all projects with a job that waits or holds slots; 0
    when it has no such job."""
    slot_hours_used: float
    """Slot-hours that its jobs have used in this calendar month (UTC)."""


class ProjectChanged(EventData):
    """A project was created, changed or deleted."""

    project: str
    """Its name."""
    before: ProjectSettings | None
    """Settings until then; absent where it was created."""
    after: ProjectSettings | None
    """Settings from then on; absent where it was deleted."""
