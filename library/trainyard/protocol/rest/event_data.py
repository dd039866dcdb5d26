"""Data of each kind of event; `trainyard.protocol.rest.events` maps kinds to these models."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import RecordModel
from trainyard.protocol.event_kinds import EventData
from trainyard.protocol.manifest import ManifestFile
from trainyard.protocol.operations import OperationKind, OperationProgress
from trainyard.protocol.past_runs.views import ImportTool
from trainyard.protocol.rest.attempts import Continuity
from trainyard.protocol.rest.jobs import Progress
from trainyard.protocol.resume_parts import CheckpointPart
from trainyard.protocol.states import AttemptCause, AttemptOutcome, JobState, OperationState
from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.directory import Phase
from trainyard.run.failures import Failure, FailureReason
from trainyard.spec.layout import Layout

# ---- jobs ---------------------------------------------------------------------------------------


class Submitted(EventData):
    """A job was stored."""

    world_size: int
    """Number of slots that the job requests."""
    layout: str
    """Layout as text."""
    forked_from: str | None = None
    """Checkpoint that the job was forked from."""
    parts: tuple[CheckpointPart, ...] = ()
    """Parts of the checkpoint that the job loads."""
    not_exact: tuple[str, ...] = ()
    """Effects of the omitted parts of the checkpoint; one for each part that is not in `parts`."""


class Imported(EventData):
    """A run that another tool recorded was stored as a job."""

    tool: ImportTool
    """Tool that recorded the run."""
    run_id: str
    """Name of the run in the tool."""
    points: int
    """Total number of points in all series."""


class Queued(EventData):
    """A job waits for slots again, for another launch."""

    cause: AttemptCause
    """Cause of the launch."""
    not_before: datetime | None
    """Earliest time of the launch."""
    reason: str | None
    """Failure or order that caused the launch."""


class Waiting(EventData):
    """The reason for which a job waits has changed."""

    reason: str
    """New reason."""


class ResumeRequested(EventData):
    """A person resumed or resized a job."""

    world_size: int
    """Number of slots of the new attempt."""
    layout: str
    """Layout as text."""
    checkpoint_id: str | None
    """Checkpoint that the attempt loads; absent for a start at step 0."""
    branch: bool
    """Whether the job abandons steps that it completed after the checkpoint."""


class PriorityChanged(EventData):
    """A person changed the priority of a job."""

    before: int
    """Previous priority."""
    priority: int
    """New priority."""


class JobEnded(EventData):
    """A job reached a final state."""

    state: JobState
    """Final state of the job."""
    reason: str | None
    """Reason for the final state."""


class JobDeleted(EventData):
    """A job and its data on the server were deleted."""


class Placed(EventData):
    """An attempt received its slots."""

    layout: str
    """Layout as text."""
    nodes: tuple[str, ...]
    """Names of the nodes, by node rank."""
    spares: tuple[str, ...] = ()
    """Names of the reserved spare nodes."""
    parent_checkpoint_id: str | None
    """Checkpoint that the attempt loads."""
    start_step: int
    """Step of the checkpoint; 0 without a checkpoint."""
    backfilled_before: str | None = None
    """Name of the waiting job that keeps these nodes; the attempt is expected to end before that
    job can start."""


class TrainerData(EventData):
    """Fields of every event that the trainer records."""

    step: int
    """Completed optimizer steps."""
    time: float
    """Unix time in seconds."""


class Claimed(EventData):
    """A node claimed its share of an attempt."""


class PhaseEntered(EventData):
    """The trainer entered a phase."""

    phase: Phase
    """New phase of the trainer."""
    step: int | None = None
    """Completed optimizer steps; absent if the supervisor reports the phase."""
    time: float | None = None
    """Unix time in seconds; absent if the supervisor reports the phase."""


class Running(EventData):
    """The first step of an attempt started."""


class WeightsLoaded(TrainerData):
    """The trainer read the job's initial weights."""

    place: str
    """Location of the weights, as `<root>:<relative path>`."""
    files: tuple[ManifestFile, ...]
    """Files of the weights, with checksums."""


class CodeDigests(RecordModel):
    """Digests of the code of a user's own model."""

    before: str
    """Digest of the code at the time of the checkpoint."""
    now: str
    """Digest of the code in this attempt."""


class Resumed(TrainerData):
    """The trainer loaded the attempt's parent checkpoint."""

    checkpoint_id: str
    """Id of the parent checkpoint."""
    from_layout: Layout | None = None
    """Layout that wrote the checkpoint."""
    layout: Layout | None = None
    """Layout of the attempt."""
    load_seconds: float | None = None
    """Duration of the load on rank 0, in seconds: reading, verifying and copying; absent in events
    of older versions."""
    parts: tuple[CheckpointPart, ...] = ()
    """Loaded parts of the checkpoint."""
    not_exact: tuple[str, ...] = ()
    """Effects of the omitted parts of the checkpoint; one for each part that is not in `parts`."""
    changed: tuple[str, ...] = ()
    """Fields that differ between the checkpoint's spec and the attempt's spec, with both values."""
    compared: tuple[str, ...] = ()
    """Compared fields: the whole `spec`; for a manifest of an older version, the fields that it
    contains."""
    code: CodeDigests | None = None
    """Digests of the code of a user's own model; absent unless both digests are known."""


class StopRequested(EventData):
    """The server ordered an attempt to save and leave."""

    reason: str
    """Reason for the order."""
    goes_on: bool = False
    """Whether the job will continue on other nodes."""


class StopAgreed(TrainerData):
    """All ranks agreed to save and leave."""


class CancelRequested(EventData):
    """The server ordered an attempt to leave immediately, without a save."""

    reason: str
    """Reason for the order."""
    lost: str | None = None
    """Lost work, as text."""


class RolledBack(EventData):
    """A guard rolled a job back to an earlier checkpoint."""

    checkpoint_id: str | None
    """Checkpoint of the rollback; absent for a start at step 0."""
    step: int
    """Step of the checkpoint."""
    window: Annotated[tuple[int, ...], Field(min_length=2, max_length=2)]
    """Window of skipped sequences: position of the first, and position after the last. For a
    program: the failed steps, of which none is skipped."""
    reason: FailureReason
    """Reason for the rollback, as found by the guard."""


class EndData(EventData):
    """Fields of every event about the end of an attempt or share."""

    outcome: AttemptOutcome
    """Outcome of the attempt or share."""
    failure: Failure | None
    """Reason of the failure, without the traceback, which is stored with the attempt."""


class NodeEnded(EndData):
    """One node's share of an attempt ended."""


class AttemptEnded(EndData):
    """An attempt ended."""


class Unreachable(EventData):
    """The lease of a node expired; the attempt ends only once its processes on the node are proved
    to have ended."""


class Reachable(EventData):
    """Reports of a silent node arrive again."""


class ContinuityChecked(Continuity, EventData):
    """The first step after a resume was compared with the records of the lineage."""


class RequestAnswered(EventData):
    """The trainer responded to a request."""

    request_id: str
    """Id of the request."""
    ok: bool
    """Whether the trainer did what was requested."""
    message: str
    """Result of the request, or reason of the failure."""


class MetricsStored(EventData):
    """Points of metrics were stored."""

    step: int
    """Highest step of the attempt after the report."""
    values: dict[str, float]
    """Values of the newest step, by name of the metric; NaN and infinity are strings."""
    progress: Progress
    """Progress of the job after the report."""


class MetricsDropped(EventData):
    """Points of metrics were dropped because they exceeded a limit; each limit causes only one
    event."""

    what: Literal["series", "steps"]
    """Quantity that exceeded its limit: number of series, or highest step."""
    limit: int
    """Value of the limit."""
    first: str | int
    """Name of the first dropped series, or first dropped step."""


class LogStored(EventData):
    """Output of a rank was stored."""

    rank: int
    """Global rank."""
    lines: int
    """Number of lines of output so far."""


class LineSkipped(EventData):
    """A line in a file of the run directory is unreadable and was skipped."""

    file: str
    """Name of the file in the run directory."""
    offset: int
    """Offset of the line's first byte."""
    error: str
    """Error in the line."""


class CheckpointCommitted(EventData):
    """A checkpoint was committed and entered the catalog."""

    checkpoint_id: str
    """Id of the checkpoint."""
    step: int
    """Completed optimizer steps."""
    size: int
    """Size of the checkpoint, in bytes."""
    kind: str
    """Reason for the save."""


class CheckpointDamaged(EventData):
    """An attempt could not load its checkpoint, because the checkpoint is damaged."""

    checkpoint_id: str
    """Id of the checkpoint."""
    fault: CheckpointFault
    """Kind of the damage."""


class CheckpointPinned(EventData):
    """A checkpoint was pinned or unpinned; retention keeps a pinned checkpoint."""

    checkpoint_id: str
    """Id of the checkpoint."""
    pinned: bool
    """Whether the checkpoint is pinned now."""


class OperationData(EventData):
    """Fields of every event about an operation."""

    operation_id: str
    """Id of the operation."""
    kind: OperationKind
    """Kind of the operation."""
    checkpoint_id: str | None
    """Id of the checkpoint; absent for `recover`, `build`, and the deletion of all checkpoints of a
    job."""


class OperationQueued(OperationData):
    """An operation waits for a node, for the first time or again."""

    reason: str
    """Reason for the operation, which may be empty; if it waits again, reason of the failure."""


class OperationWaiting(OperationData):
    """The reason for which an operation waits has changed."""

    waiting: str
    """New reason."""


class OperationStarted(OperationData):
    """A node claimed an operation."""

    fence: int
    """Fencing number of the claim; each try has a higher number."""


class OperationProgressed(OperationData):
    """An operation progressed."""

    progress: OperationProgress
    """Progress of the operation."""


class OperationEnded(OperationData):
    """An operation ended."""

    state: OperationState
    """Final state of the operation."""
    ok: bool | None = None
    """Whether a verification found the checkpoint undamaged; absent for operations of other
    kinds."""
