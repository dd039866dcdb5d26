"""Fork, a new job from another job's checkpoint: request, preview and reply."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from trainyard.base.model_base import RecordModel, SpecModel
from trainyard.planner.results import Plan
from trainyard.protocol.fork_rules import Guarantee
from trainyard.protocol.rest.jobs import JobView
from trainyard.protocol.resume_parts import CheckpointPart, Parts
from trainyard.spec.job import JobName


class ForkRequest(SpecModel):
    """Body of fork; every field is optional."""

    name: JobName | None = None
    """Name of the new job; that of the other one and `-fork` when absent."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Changes to the other job's spec, by section; null removes a field (a JSON merge patch)."""
    parts: Parts | None = None
    """Parts of the checkpoint to load. When absent: all parts, without the position in the data
    if the new job has other data."""
    dry_run: bool = False
    """Compute the preview only; store nothing."""


class ForkPreview(RecordModel):
    """Preview of a fork."""

    plan: Plan
    """The plan of the new job."""
    name: str
    """Its name."""
    checkpoint_id: str
    """Checkpoint that it starts from."""
    step: int
    """Step of that checkpoint."""
    start_step: int
    """Completed steps with which the new job starts."""
    parts: tuple[CheckpointPart, ...]
    """Parts that it loads."""
    guarantees: tuple[Guarantee, ...]
    """Which aspects continue exactly and which do not, each in a sentence."""


class ForkReply(RecordModel):
    """Answer to fork."""

    preview: ForkPreview | None
    """Preview of the new job; absent for a repeated request whose checkpoint was deleted since."""
    job: JobView | None
    """The new job; absent after a dry run."""


class DescendantView(RecordModel):
    """A job that was forked from a checkpoint."""

    job_id: str
    """Id of the job."""
    name: str
    """Its name."""
    parts: tuple[CheckpointPart, ...]
    """Parts that it loaded."""
