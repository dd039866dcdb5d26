"""Views of operations: background work on checkpoints."""

from __future__ import annotations

from datetime import datetime

from trainyard.base.model_base import RecordModel, Seed, SpecModel
from trainyard.protocol.operations import (
    SHARD_GIB,
    DrawnTokens,
    ExportName,
    OperationKind,
    OperationOutcome,
    OperationProgress,
    Prompt,
    ShardGib,
    Temperature,
    WeightsType,
)
from trainyard.protocol.states import OperationState
from trainyard.spec.storage_uri import RootName


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
