"""Resume: request, comparison and options."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainyard.base.model_base import PositiveSteps, Ranks, RecordModel, SpecModel
from trainyard.planner.results import AnyPlan, LayoutOption
from trainyard.planner.speed.rates import Calibration
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.rest.jobs import JobView


class ResumeRequest(SpecModel):
    """Body of resume; every field is optional."""

    checkpoint_id: Annotated[str, Field(max_length=200)] | None = None
    """Checkpoint to resume from; the newest of the current lineage when absent."""
    world_size: Ranks | None = None
    """Slots; unchanged when absent."""
    overrides: Overrides = Overrides()
    """Changed settings."""
    steps: PositiveSteps | None = None
    """New total number of steps."""
    allow_code_change: bool = False
    """Whether the files of `model.code` may have changed since the checkpoint was written."""
    dry_run: bool = False
    """Compute the comparison only; store nothing."""


class Change(RecordModel):
    """One line of a comparison."""

    name: str
    """Name of the compared value, such as `layout` or `data position`."""
    before: str
    """Value of the last attempt."""
    after: str
    """Value of the next attempt."""
    changed: bool
    """Whether they differ."""


class ResumePreview(RecordModel):
    """Preview of a resume: changed and unchanged values."""

    plan: AnyPlan
    """The plan of the next attempt."""
    checkpoint_id: str | None
    """Checkpoint to resume from; absent for a start from step 0."""
    step: int
    """Its step; the last reported step if the attempt saves first."""
    branch: bool
    """Whether newer checkpoints of the lineage are abandoned."""
    saves_first: bool
    """Whether the running attempt saves first, so that the job resumes from its last step."""
    changes: tuple[Change, ...]
    """Values before and after, changed ones first."""


class ResumeReply(RecordModel):
    """Answer to resume."""

    preview: ResumePreview
    """The comparison."""
    job: JobView
    """The job after the call; a dry run leaves it unchanged."""


class ResumeOptionView(RecordModel):
    """A world size that the cluster could offer."""

    world_size: int
    """Slots."""
    free_now: bool
    """Whether one of these layouts could start now, on nodes with room for its shares."""
    layouts: tuple[LayoutOption, ...]
    """Legal layouts; the layout that resume selects comes first."""
    more: Annotated[int, Field(ge=0)]
    """Number of further legal layouts that are not listed."""
    reason: str | None
    """Why no layout is legal."""


class ResumeOptions(RecordModel):
    """World sizes on which a job could resume."""

    checkpoint_id: str | None
    """Checkpoint that a resume would load."""
    step: int
    """Its step."""
    options: tuple[ResumeOptionView, ...]
    """Options by world size."""
    calibration: Calibration | None = None
    """Coefficients behind the predicted speeds, with their errors; absent for unknown hardware."""
