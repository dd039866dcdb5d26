"""Checkpoints: views, operations, and forks, which are new jobs from a checkpoint."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from trainyard.base.model_base import RecordModel, Seed, SpecModel
from trainyard.planner.results import Plan
from trainyard.protocol.fork_rules import Guarantee
from trainyard.protocol.manifest import StoredManifest
from trainyard.protocol.operations import (
    SHARD_GIB,
    DrawnTokens,
    ExportName,
    FailedTries,
    OperationKind,
    OperationOutcome,
    OperationProgress,
    Prompt,
    ShardGib,
    Temperature,
    Verification,
    WeightsType,
)
from trainyard.protocol.rest.jobs import JobView
from trainyard.protocol.resume_parts import CheckpointPart, Parts
from trainyard.protocol.states import OperationState
from trainyard.spec.job import JobName
from trainyard.spec.storage_uri import RootName


class DescendantView(RecordModel):
    """A job that was forked from a checkpoint."""

    job_id: str
    """Id of the job."""
    name: str
    """Its name."""
    parts: tuple[CheckpointPart, ...]
    """Parts that it loaded."""


class CheckpointView(RecordModel):
    """A committed checkpoint."""

    id: str
    """Id: job, attempt and step."""
    job_id: str
    """Job."""
    attempt: int
    """Attempt that wrote it."""
    step: int
    """Completed optimizer steps."""
    kind: str
    """Why it was saved."""
    place: str
    """`<root>:<relative path>`."""
    size: int
    """Bytes."""
    files: int
    """Files."""
    layout: str
    """Layout that wrote it; for a program, the number of its processes."""
    dtype: str | None
    """Type of the stored weights; absent if a program saved it."""
    save_seconds: float
    """Time from the end of the step to the last byte of the data files."""
    stall_seconds: float | None
    """Time for which training waited for the save; absent until the training loop has seen its end,
    and for good if the run ends before that."""
    writers: int | None
    """Number of ranks that wrote tensors; absent if the manifest does not name them."""
    write_seconds: float | None
    """Time of the slowest writer; the bandwidth of the storage is `size` divided by this time."""
    parent: str | None
    """Parent checkpoint of its attempt."""
    on_lineage: bool
    """Whether the current attempt descends from it."""
    created_at: datetime
    """When it was committed."""
    verification: Verification | None
    """Result of its last check; absent before the first one."""
    pinned_at: datetime | None
    """When it was pinned, which exempts it from retention; absent if it is not pinned."""
    pinned_by: str | None
    """Who pinned it."""
    deleting: bool
    """Whether its deletion is requested; then nothing may start from it."""
    not_deleted: FailedTries | None
    """Failed tries to delete its files; absent before the first failure."""


class CheckpointDetails(CheckpointView):
    """A committed checkpoint with its manifest."""

    manifest: StoredManifest
    """Its manifest."""
    descendants: tuple[DescendantView, ...]
    """Jobs that were forked from it, oldest first; at most a hundred."""


class ForkRequest(SpecModel):
    """Body of fork; every field is optional."""

    name: JobName | None = None
    """Name of the new job; the other job's name with `-fork` when absent."""
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
    """Completed steps of the new job at its start."""
    parts: tuple[CheckpointPart, ...]
    """Parts that it loads."""
    guarantees: tuple[Guarantee, ...]
    """Whether each aspect continues exactly, with a sentence."""


class ForkReply(RecordModel):
    """Answer to fork."""

    preview: ForkPreview | None
    """Preview of the new job; absent in a repeated request if the checkpoint was deleted since."""
    job: JobView | None
    """The new job; absent after a dry run."""


class ExportRequest(SpecModel):
    """Body of export; every field is optional."""

    dtype: WeightsType | None = None
    """Type of the written weights; the stored type when absent."""
    root: RootName | None = None
    """Storage root of the target; the checkpoint's own when absent."""
    name: ExportName | None = None
    """Its folder, in `exports` below the root; the checkpoint's id and the type when absent."""
    shard_gib: ShardGib = SHARD_GIB
    """Largest total size of the tensors in one file; a larger tensor has its own file."""


class SampleRequest(SpecModel):
    """Body of sample; every field is optional."""

    prompt: Prompt = ""
    """The prompt."""
    max_tokens: DrawnTokens = 200
    """Largest number of tokens to generate; fewer if the model ends the text."""
    temperature: Temperature = 0.7
    """Divides the logits; 0 selects the likeliest token each time."""
    seed: Seed = 0
    """Seed of the sampling; the same seed gives the same text."""


class OperationView(RecordModel):
    """Background work on a node."""

    id: str
    """Id."""
    kind: OperationKind
    """Kind of the operation."""
    state: OperationState
    """State."""
    job_id: str
    """Job of the checkpoints; it may be deleted by now."""
    job_name: str
    """Its name."""
    checkpoint_id: str | None
    """Checkpoint; absent for an operation on all checkpoints of a job."""
    actor: str
    """Who requested it: a token's name, `retention` or `scrubbing`."""
    reason: str
    """Why."""
    waiting: str | None
    """Why it has not started; absent once it has, and before the scheduler first checks it."""
    node: str | None
    """Node that holds it, or held it last; absent before the first claim."""
    tries: int
    """Claims so far."""
    failing: FailedTries | None
    """Failures of a deletion, a scrub or a recovery, which repeats until it succeeds or is
    cancelled; absent before the first failure and after the end."""
    progress: OperationProgress | None
    """Progress."""
    outcome: OperationOutcome | None
    """How it ended on its node."""
    created_at: datetime
    """When it was requested."""
    started_at: datetime | None
    """When a node last claimed it."""
    ended_at: datetime | None
    """When it ended."""


class JobDeletedView(RecordModel):
    """The answer to the deletion of a job with its checkpoints."""

    operations: list[OperationView]
    """Operations that remove them from storage."""
