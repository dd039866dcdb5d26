"""Resume of a job: request, preview and options."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainyard.base.model_base import PositiveSteps, Ranks, RecordModel, SpecModel
from trainyard.planner.results import AnyPlan, LayoutOption
from trainyard.planner.speed.rates import Calibration
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.rest.jobs import JobView


class ResumeRequest(SpecModel):
    """Body of a request to resume a job; every field is optional."""

    checkpoint_id: Annotated[str, Field(max_length=200)] | None = None
    """Checkpoint to load; when absent, the newest checkpoint of the current lineage."""
    world_size: Ranks | None = None
    """Number of slots; when absent, it stays the same."""
    overrides: Overrides = Overrides()
    """Changes to the settings."""
    steps: PositiveSteps | None = None
    """Changed total number of steps."""
    allow_code_change: bool = False
    """Whether the files of `model.code` may have changed since the checkpoint was written."""
    dry_run: bool = False
    """Whether to only compute the preview, and store nothing."""


class Change(RecordModel):
    """One line of a comparison of the last attempt with the next attempt."""

    name: str
    """Name of the compared value, such as `layout` or `data position`."""
    before: str
    """Value in the last attempt."""
    after: str
    """Value in the next attempt."""
    changed: bool
    """Whether the two values differ."""


class ResumePreview(RecordModel):
    """Preview of a resume, with changed and unchanged values."""

    plan: AnyPlan
    """Plan of the next attempt."""
    checkpoint_id: str | None
    """Present parent checkpoint; absent for a start at step 0. The next attempt loads this
    checkpoint, or the save of the running attempt if `saves_first` is true."""
    step: int
    """Step at which the next attempt starts: the step of the checkpoint or, if the running attempt
    saves first, the last reported step."""
    branch: bool
    """Whether the job abandons newer checkpoints of the lineage."""
    saves_first: bool
    """Whether the running attempt saves first, so that the next attempt starts at the last step."""
    changes: tuple[Change, ...]
    """Values before and after the resume, changed values first."""


class ResumeReply(RecordModel):
    """Reply to a resume."""

    preview: ResumePreview
    """Preview of the resume."""
    job: JobView
    """Job after the call; a dry run does not change the job."""


class ResumeOptionView(RecordModel):
    """A world size, with the layouts on which the job could resume, if the nodes are free."""

    world_size: int
    """Number of slots."""
    free_now: bool
    """Whether nodes have enough free slots to start one of the layouts now."""
    layouts: tuple[LayoutOption, ...]
    """Legal layouts; the first is the layout that a resume selects."""
    more: Annotated[int, Field(ge=0)]
    """Number of legal layouts that are not listed."""
    reason: str | None
    """Reason why no layout is legal; null if a layout is legal."""


class ResumeOptions(RecordModel):
    """World sizes on which a job could resume."""

    checkpoint_id: str | None
    """Checkpoint that a resume would load."""
    step: int
    """Step of the checkpoint."""
    options: tuple[ResumeOptionView, ...]
    """Options, by world size."""
    calibration: Calibration | None = None
    """Coefficients from which the speeds are predicted, with the errors of such predictions; absent
    for programs, for models outside of the families, and for unknown hardware without measured
    runs."""
