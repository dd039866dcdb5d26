"""Chores: background work on checkpoints, as server, worker and trainer agree on it.

```
<data>/chores/<id>/<fence>/    fresh for each claim; can be read with cat
  task.json       the ChoreTask and the paths of the roots here
  progress.json   the ChoreProgress; written by the command, replaced again and again
  outcome.json    the ChoreOutcome; the command's last word
```
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from specs.attempt import ResumePoint
from specs.base import RecordModel

TASK, PROGRESS, OUTCOME = "task.json", "progress.json", "outcome.json"

MAX_TRIES = 3
"""Claims of a chore whose lease may expire before it has failed."""


class ChoreKind(StrEnum):
    """What is done; also the command of `python -m trainer`."""

    VERIFY = "verify"
    """Compare every file with its checksum, then load every tensor."""
    SCRUB = "scrub"
    """Compare every file with its checksum."""
    DELETE = "delete"
    """Remove checkpoints from storage, the marker first."""


class CheckpointFault(StrEnum):
    """Why a checkpoint is not verified."""

    NOT_COMMITTED = "not_committed"
    """The marker is missing."""
    MANIFEST_DAMAGED = "manifest_damaged"
    """The manifest is not the one that was committed, or none."""
    ANOTHER_CHECKPOINT = "another_checkpoint"
    """The folder holds another checkpoint than the catalog's."""
    FILE_MISSING = "file_missing"
    """A file is not there."""
    FILE_SIZE = "file_size"
    """A file is too short or too long."""
    FILE_DAMAGED = "file_damaged"
    """A file's checksum is not the manifest's."""
    METADATA_REFUSED = "metadata_refused"
    """The DCP metadata asks for what no checkpoint holds."""
    TENSOR_INCOMPLETE = "tensor_incomplete"
    """The pieces of a tensor do not make up all of it."""
    LOAD_FAILED = "load_failed"
    """A tensor could not be loaded."""


class Verification(RecordModel):
    """What the last look at a checkpoint found."""

    ok: bool
    """Whether it is whole."""
    at: datetime
    """When the look ended."""
    loaded_at: datetime | None = None
    """When all of its tensors were last loaded; absent where only checksums were compared."""
    loaded_on: int | None = None
    """Ranks on which they were loaded."""
    tensors: int | None = None
    """Tensors that were loaded."""
    fault: CheckpointFault | None = None
    """What is wrong, by name."""
    message: str | None = None
    """What is wrong, as a sentence."""


class ChoreTask(RecordModel):
    """All that a node needs to know to do a chore."""

    kind: ChoreKind
    """What to do."""
    job_id: str
    """Job whose checkpoints are meant."""
    root: str
    """Storage root."""
    paths: tuple[str, ...]
    """Folders of the checkpoints, relative to the root."""
    whole_job: bool = False
    """Whether what else the job's folder holds goes too."""
    checkpoint: ResumePoint | None = None
    """The checkpoint to look at, with the digest that its metadata must have."""


class ChoreOrder(RecordModel):
    """`task.json`: a chore as a node carries it out."""

    task: ChoreTask
    """What to do."""
    root_path: str
    """Path of the storage root here."""
    root_id: str | None = None
    """UUID that the root must hold; any when absent."""


class ChoreProgress(RecordModel):
    """How far a chore is."""

    doing: Annotated[str, Field(max_length=200)]
    """What it does now, in a few words."""
    done: Annotated[int, Field(ge=0, lt=2**62)]
    """Bytes seen to, or files that were deleted."""
    total: Annotated[int, Field(ge=0, lt=2**62)]
    """How many there are."""


class ChoreOutcome(RecordModel):
    """`outcome.json`: how a chore ended on its node."""

    outcome: Literal["succeeded", "failed"]
    """Whether the work was done; a damaged checkpoint that was looked at is work done."""
    message: Annotated[str, Field(max_length=4000)]
    """What was found or done, or why it could not be."""
    verification: Verification | None = None
    """What a look at a checkpoint found."""
    files: Annotated[int, Field(ge=0, lt=2**62)] = 0
    """Files that were deleted."""
