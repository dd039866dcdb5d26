"""Checkpoints: views, operations, and forks (new jobs from a checkpoint)."""

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
    ExportResult,
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
    """Name of the job."""
    parts: tuple[CheckpointPart, ...]
    """Parts of the checkpoint that the job loaded."""


class AutoExportView(RecordModel):
    """The automatic export of a checkpoint (`checkpoint.export`)."""

    operation_id: str
    """Id of the operation."""
    state: OperationState
    """State of the operation. A failed or cancelled export is not repeated."""
    result: ExportResult | None
    """Format, place and size of the export; absent unless it succeeded."""
    message: str | None
    """Reason of the last failure; absent without a failure."""
    ended_at: datetime | None
    """Time at which the export ended; absent before its end."""


class CheckpointView(RecordModel):
    """A committed checkpoint."""

    id: str
    """Id of the checkpoint; it contains job, attempt and step."""
    job_id: str
    """Id of the job."""
    attempt: int
    """Number of the attempt that wrote the checkpoint."""
    step: int
    """Completed optimizer steps."""
    kind: str
    """Reason for the save."""
    place: str
    """Folder of the checkpoint, as `<root>:<relative path>`."""
    size: int
    """Total size of all files, in bytes."""
    files: int
    """Number of files."""
    layout: str
    """Layout that wrote the checkpoint; for a program, its number of processes."""
    dtype: str | None
    """Dtype of the stored weights; absent if a program wrote the checkpoint."""
    save_seconds: float
    """Time from the end of the step to the last byte of the data files."""
    stall_seconds: float | None
    """Time for which training waited for the save. Absent until the training loop has noticed the
    end of the save; it stays absent if the run ends earlier."""
    writers: int | None
    """Number of ranks that wrote tensors; absent if the manifest does not list them."""
    write_seconds: float | None
    """Write time of the slowest writer. The storage bandwidth is `size` divided by this time."""
    parent: str | None
    """Id of the parent checkpoint of the attempt that wrote the checkpoint."""
    on_lineage: bool
    """Whether the current attempt wrote the checkpoint or descends from it."""
    created_at: datetime
    """Time at which the checkpoint was committed."""
    verification: Verification | None
    """Result of the last verification or scrub; absent before the first one."""
    pinned_at: datetime | None
    """Time at which the checkpoint was pinned, so that retention keeps it; absent if it is not
    pinned."""
    pinned_by: str | None
    """Person who pinned the checkpoint."""
    deleting: bool
    """Whether a deletion was requested; if so, no job can start from the checkpoint."""
    not_deleted: FailedTries | None
    """Failed tries to delete the files; absent before the first failure."""
    auto_export: AutoExportView | None = None
    """Automatic export of the checkpoint; absent if none was queued."""


class CheckpointDetails(CheckpointView):
    """A committed checkpoint with its manifest."""

    manifest: StoredManifest
    """Manifest of the checkpoint."""
    descendants: tuple[DescendantView, ...]
    """At most a hundred jobs that were forked from the checkpoint, oldest first."""


class ForkRequest(SpecModel):
    """Body of a request for a fork; every field is optional."""

    name: JobName | None = None
    """Name of the new job; when absent, the name of the checkpoint's job, followed by `-fork`."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Changes to the spec of the checkpoint's job, by section, as a JSON merge patch; null removes
    a field."""
    parts: Parts | None = None
    """Parts of the checkpoint to load. When absent: all parts, except the position in the data if
    the new job has other data."""
    dry_run: bool = False
    """Whether to only compute the preview, and store nothing."""


class ForkPreview(RecordModel):
    """Preview of a fork."""

    plan: Plan
    """Plan of the new job."""
    name: str
    """Name of the new job."""
    checkpoint_id: str
    """Id of the checkpoint that the new job loads."""
    step: int
    """Step of the checkpoint."""
    start_step: int
    """Step at which the new job starts."""
    parts: tuple[CheckpointPart, ...]
    """Parts of the checkpoint that the new job loads."""
    guarantees: tuple[Guarantee, ...]
    """Whether each aspect of training continues exactly, with an explanation."""


class ForkReply(RecordModel):
    """Reply to a fork."""

    preview: ForkPreview | None
    """Preview of the new job; absent in a repeated request if it can no longer be computed, such as
    after the deletion of the checkpoint."""
    job: JobView | None
    """New job; absent after a dry run."""


class ExportRequest(SpecModel):
    """Body of a request for an export; every field is optional."""

    dtype: WeightsType | None = None
    """Dtype of the written weights; when absent, the stored dtype."""
    root: RootName | None = None
    """Storage root of the export; when absent, the checkpoint's storage root."""
    name: ExportName | None = None
    """Name of the target folder, in `exports` below the storage root; when absent, the checkpoint's
    id and the dtype."""
    shard_gib: ShardGib = SHARD_GIB
    """Maximum total size of the tensors in one file; a larger tensor gets a file of its own."""


class SampleRequest(SpecModel):
    """Body of a request to generate text; every field is optional."""

    prompt: Prompt = ""
    """Text that the model continues."""
    max_tokens: DrawnTokens = 200
    """Maximum number of tokens to generate; fewer if the model ends the text."""
    temperature: Temperature = 0.7
    """Sampling temperature, which divides the logits; 0 always selects the likeliest token."""
    seed: Seed = 0
    """Seed for sampling; the same seed gives the same text."""


class OperationView(RecordModel):
    """An operation: background work on a node."""

    id: str
    """Id of the operation."""
    kind: OperationKind
    """Kind of the operation."""
    state: OperationState
    """State of the operation."""
    job_id: str
    """Id of the job that wrote the checkpoints; it may have been deleted."""
    job_name: str
    """Name of the job."""
    checkpoint_id: str | None
    """Id of the checkpoint; absent for `recover`, `build`, and the deletion of all checkpoints of a
    job."""
    actor: str
    """Author of the operation: the name of a token, `retention`, `scrubbing`, `exporting`,
    `recovery` or `server`."""
    reason: str
    """Reason for the operation."""
    waiting: str | None
    """Reason why the operation has not started; absent after its start, and before the scheduler's
    first check."""
    node: str | None
    """Name of the node that holds the operation or held it last; absent before the first claim."""
    tries: int
    """Number of claims so far."""
    failing: FailedTries | None
    """Failures of a deletion, scrub or recovery, which is repeated until it succeeds or is
    cancelled, or of an automatic export; absent before the first failure, and after the operation's
    end."""
    progress: OperationProgress | None
    """Progress of the operation."""
    outcome: OperationOutcome | None
    """Result of the operation on its node."""
    created_at: datetime
    """Time at which the operation was requested."""
    started_at: datetime | None
    """Time at which a node last claimed the operation."""
    ended_at: datetime | None
    """Time at which the operation ended."""


class JobDeletedView(RecordModel):
    """Reply to the deletion of a job and its checkpoints."""

    operations: list[OperationView]
    """Operations that remove the checkpoints from storage."""
