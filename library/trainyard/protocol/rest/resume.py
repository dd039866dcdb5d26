"""What a resume takes, compares and offers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainyard.base.models import PositiveSteps, Ranks, RecordModel, SpecModel
from trainyard.planner.results import LayoutOption, Plan
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.rest.jobs import JobView


class ResumeRequest(SpecModel):
    """Body of resume: all of it may be left out."""

    checkpoint_id: Annotated[str, Field(max_length=200)] | None = None
    """Checkpoint to go on from; the newest of the current lineage when absent."""
    world_size: Ranks | None = None
    """Slots; as before when absent."""
    overrides: Overrides = Overrides()
    """Settings that may change."""
    steps: PositiveSteps | None = None
    """Another number of steps in all."""
    allow_code_change: bool = False
    """Whether the files of `model.code` may differ from those that wrote the checkpoint."""
    dry_run: bool = False
    """Only compare; store nothing."""


class Change(RecordModel):
    """One line of a comparison."""

    name: str
    """What is compared, such as `layout` or `data position`."""
    before: str
    """Value of the last attempt."""
    after: str
    """Value of the next one."""
    changed: bool
    """Whether they differ."""


class ResumePreview(RecordModel):
    """What a resume would change, and what it would not."""

    plan: Plan
    """The plan of the next attempt."""
    checkpoint_id: str | None
    """Checkpoint to go on from; absent for a start from step 0."""
    step: int
    """Its step; that of the last report where the attempt saves first."""
    branch: bool
    """Whether newer checkpoints of the lineage are left behind."""
    saves_first: bool
    """Whether the attempt that runs saves first, so that the job goes on from its last step."""
    changes: tuple[Change, ...]
    """Before and after, those that change first."""


class ResumeReply(RecordModel):
    """Answer to resume."""

    preview: ResumePreview
    """What changes."""
    job: JobView
    """The job after the call (unchanged by a dry run)."""


class ResumeOptionView(RecordModel):
    """One world size that the cluster could give."""

    world_size: int
    """Slots."""
    free_now: bool
    """Whether so many are free at this moment."""
    layouts: tuple[LayoutOption, ...]
    """Legal layouts, the one that resume would take first."""
    more: Annotated[int, Field(ge=0)]
    """Further legal layouts, which are not listed."""
    reason: str | None
    """Why none is legal."""


class ResumeOptions(RecordModel):
    """World sizes on which a job could go on."""

    checkpoint_id: str | None
    """Checkpoint that a resume would take."""
    step: int
    """Its step."""
    options: tuple[ResumeOptionView, ...]
    """By world size."""
