"""Checkpoints: views, the operations on them, and forks, new jobs from them."""

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
    """Layout that wrote it; of a program, the number of its processes."""
    dtype: str | None
    """Type of the stored weights; absent where a program saved it."""
    save_seconds: float
    """From the end of the step to the last byte of the data files."""
    stall_seconds: float | None
    """Time for which training waited for the save; absent until the training loop has observed
    its end, and for ever if the run ended before that."""
    writers: int | None
    """Ranks that wrote tensors; absent where the manifest does not name them."""
    write_seconds: float | None
    """Time of the slowest of them; `size` over it is the bandwidth of the storage."""
    parent: str | None
    """Checkpoint from which its attempt resumed."""
    on_lineage: bool
    """Whether the current attempt descends from it."""
    created_at: datetime
    """When it was committed."""
    verification: Verification | None
    """Result of its last check; absent before the first one."""
    pinned_at: datetime | None
    """Time since when it is pinned, which exempts it from retention; absent when it is not."""
    pinned_by: str | None
    """Who pinned it."""
    deleting: bool
    """Whether its deletion is requested; nothing may start from it then."""
    not_deleted: FailedTries | None
    """Why its files are still there although its deletion was tried; absent before a failure."""


class CheckpointDetails(CheckpointView):
    """A committed checkpoint with its manifest."""

    manifest: StoredManifest
    """Its manifest."""
    descendants: tuple[DescendantView, ...]
    """Jobs that were forked from it, the oldest first; at most a hundred."""


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


class ExportRequest(SpecModel):
    """Body of export; every field is optional."""

    dtype: WeightsType | None = None
    """Type of the written weights; that of the stored ones when absent."""
    root: RootName | None = None
    """Storage root of the target; the checkpoint's own when absent."""
    name: ExportName | None = None
    """Its folder, in `exports` beneath the root; the checkpoint's id and the type when absent."""
    shard_gib: ShardGib = SHARD_GIB
    """Largest size of the tensors in one file; a larger tensor has a file of its own."""


class SampleRequest(SpecModel):
    """Body of sample; every field is optional."""

    prompt: Prompt = ""
    """The prompt."""
    max_tokens: DrawnTokens = 200
    """Largest number of tokens to generate; fewer where the model ends the text."""
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
    """Checkpoint; absent for all of a job."""
    actor: str
    """Who requested it: a token's name, `retention` or `scrubbing`."""
    reason: str
    """Why."""
    waiting: str | None
    """Why it has not begun; absent once it has, and before the scheduler's first look at it."""
    node: str | None
    """Node that holds it, or held it last."""
    tries: int
    """Claims so far."""
    failing: FailedTries | None
    """Failures of a deletion, a scrub or a recovery, which is repeated until it succeeds or is
    cancelled; absent before the first one and after the end."""
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
    """Operation that removes them from storage."""
