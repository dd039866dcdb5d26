"""Views, request bodies and events of projects."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from trainyard.base.model_base import RecordModel, SpecModel, Text
from trainyard.protocol.event_kinds import EventData
from trainyard.spec.job import ProjectName

Weight = Annotated[float, Field(ge=0.001, le=1_000_000)]
MaxSlots = Annotated[int, Field(ge=0, le=10**7, json_schema_extra={"unit": "slots"})]
SlotHours = Annotated[float, Field(ge=0, le=10**9, json_schema_extra={"unit": "slot-hours"})]


class ProjectRole(StrEnum):
    """Roles in a project; each has the permissions of the roles before it."""

    VIEWER = "viewer"
    MEMBER = "member"
    MAINTAINER = "maintainer"


class ProjectSettings(SpecModel):
    """Settings of a project; the body of a change contains only the changed settings."""

    description: Annotated[Text, Field(max_length=1000)] = ""
    """Purpose of the project."""
    weight: Weight = 1.0
    """Weight of the project. The projects that use the cluster share the cluster's slots in the
    ratio of their weights."""
    max_slots: MaxSlots | None = None
    """Maximum number of slots that the project's jobs hold at the same time; unlimited when
    null."""
    slot_hours_per_month: SlotHours | None = None
    """Maximum number of slot-hours that the project's jobs use per calendar month (UTC); unlimited
    when null. A slot is one GPU, one MIG instance, or one CPU rank on a node without GPUs."""


class ProjectRequest(ProjectSettings):
    """Body of a request for a new project."""

    name: ProjectName
    """Name of the project; it never changes."""


class ProjectView(RecordModel):
    """A project, with the current use by its jobs."""

    name: str
    """Name of the project."""
    description: str
    """Purpose of the project."""
    weight: float
    """Weight of the project, relative to the weights of the other projects."""
    max_slots: int | None
    """Maximum number of slots that the project's jobs hold at the same time; unlimited when
    null."""
    slot_hours_per_month: float | None
    """Maximum number of slot-hours that the project's jobs use per calendar month (UTC); unlimited
    when null."""
    created_by: str
    """Person who created the project."""
    created_at: datetime
    """Time at which the project was created."""
    held_slots: int
    """Number of slots that the project's starting, running and stopping jobs hold."""
    waiting_jobs: int
    """Number of the project's jobs in the queue."""
    share: float
    """Held slots of the project divided by the held slots of all projects; 0 if no slots are
    held."""
    fair_share: float
    """Weight of the project divided by the total weight of all active projects, which have a job
    that waits or holds slots; 0 if the project is not active."""
    slot_hours_used: float
    """Slot-hours that the project's jobs have used in this calendar month (UTC)."""
    everyone: ProjectRole | None = None
    """Role of every active person in the project; null for no role."""
    role: ProjectRole | None = None
    """The caller's role in the project; null without one."""
    member_max_slots: int | None = None
    """Maximum number of slots that the jobs of each user hold in the project at the same time;
    unlimited when null. An own limit of a member replaces it."""
    member_max_running: int | None = None
    """Maximum number of jobs of each user that hold slots in the project at the same time;
    unlimited when null. An own limit of a member replaces it."""


class ProjectChanged(EventData):
    """A project was created, changed or deleted."""

    project: str
    """Name of the project."""
    before: ProjectSettings | None
    """Settings before the change; absent for a new project."""
    after: ProjectSettings | None
    """Settings after the change; absent for a deleted project."""
