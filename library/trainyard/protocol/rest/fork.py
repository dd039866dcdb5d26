"""A new job from another job's checkpoint: what is asked for, and what still holds."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from trainyard.base.models import RecordModel, SpecModel
from trainyard.planner.results import Plan
from trainyard.protocol.fork_rules import Guarantee
from trainyard.protocol.rest.jobs import JobView
from trainyard.protocol.resume_parts import CheckpointPart, Parts
from trainyard.spec.job import JobName


class ForkRequest(SpecModel):
    """Body of fork: all of it may be left out."""

    name: JobName | None = None
    """Name of the new job; that of the other one and `-fork` when absent."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Fields of the other job's spec that the new one has otherwise, by section; null takes one
    out (a JSON merge patch)."""
    parts: Parts | None = None
    """What is taken over of the checkpoint; when absent all, but for the position in the data where
    the new job's data are others."""
    dry_run: bool = False
    """Only work out; store nothing."""


class ForkPreview(RecordModel):
    """What a fork would be."""

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
    """What it takes over."""
    guarantees: tuple[Guarantee, ...]
    """What is exact and what is not, each in a sentence."""


class ForkReply(RecordModel):
    """Answer to fork."""

    preview: ForkPreview | None
    """What the new job is; absent where a request is repeated whose checkpoint has gone since."""
    job: JobView | None
    """The new job; absent after a dry run."""


class DescendantView(RecordModel):
    """A job that was forked from a checkpoint."""

    job_id: str
    """Id of the job."""
    name: str
    """Its name."""
    parts: tuple[CheckpointPart, ...]
    """What it took over."""
