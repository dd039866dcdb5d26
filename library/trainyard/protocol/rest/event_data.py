"""Data of each kind of event; `trainyard.protocol.rest.events` maps each kind to its model."""

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
    """Slots that it requests."""
    layout: str
    """Layout in words."""
    forked_from: str | None = None
    """Checkpoint that it was forked from."""
    parts: tuple[CheckpointPart, ...] = ()
    """Parts of that checkpoint that it loads."""
    not_exact: tuple[str, ...] = ()
    """Effects of the parts that are not loaded."""


class Imported(EventData):
    """A run that another tool recorded was stored as a job."""

    tool: ImportTool
    """The tool."""
    run_id: str
    """Name of the run in that tool."""
    points: int
    """Number of points in all series."""


class Queued(EventData):
    """A launch waits for slots again."""

    cause: AttemptCause
    """Cause of the launch."""
    not_before: datetime | None
    """Earliest time of the launch."""
    reason: str | None
    """The failure or order that caused it."""


class Waiting(EventData):
    """The reason why a job waits changed."""

    reason: str
    """The reason."""


class ResumeRequested(EventData):
    """A person resumed or resized a job."""

    world_size: int
    """Slots of the new attempt."""
    layout: str
    """Layout in words."""
    checkpoint_id: str | None
    """Checkpoint that it loads; absent for a start at step 0."""
    branch: bool
    """Whether steps after that checkpoint are abandoned."""


class PriorityChanged(EventData):
    """A person changed the priority of a job."""

    before: int
    """Previous priority."""
    priority: int
    """New priority."""


class JobEnded(EventData):
    """A job reached a final state."""

    state: JobState
    """The final state."""
    reason: str | None
    """Why."""


class JobDeleted(EventData):
    """A job and its data on the server were deleted."""


class Placed(EventData):
    """An attempt got its slots."""

    layout: str
    """Layout in words."""
    nodes: tuple[str, ...]
    """Nodes, in order of their rank."""
    spares: tuple[str, ...] = ()
    """Reserved spare nodes."""
    parent_checkpoint_id: str | None
    """Checkpoint that it loads."""
    start_step: int
    """Step of that checkpoint; 0 without one."""
    backfilled_before: str | None = None
    """Name of the waiting job that keeps these nodes; this attempt ends in time for it."""


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
    """The phase."""
    step: int | None = None
    """Completed optimizer steps; absent if the supervisor reports the phase."""
    time: float | None = None
    """Unix time in seconds; absent if the supervisor reports the phase."""


class Running(EventData):
    """The first step of an attempt started."""


class WeightsLoaded(TrainerData):
    """The trainer read the job's initial weights."""

    place: str
    """Their location, as `<root>:<relative path>`."""
    files: tuple[ManifestFile, ...]
    """The files, with their checksums."""


class CodeDigests(RecordModel):
    """Digests of an own model's code."""

    before: str
    """Digest of the code that wrote the checkpoint."""
    now: str
    """Digest of the code of this attempt."""


class Resumed(TrainerData):
    """The trainer loaded the attempt's parent checkpoint."""

    checkpoint_id: str
    """The checkpoint."""
    from_layout: Layout | None = None
    """Layout that wrote it."""
    layout: Layout | None = None
    """Layout of the attempt."""
    parts: tuple[CheckpointPart, ...] = ()
    """Loaded parts of the checkpoint."""
    not_exact: tuple[str, ...] = ()
    """Effects of the parts that are not loaded."""
    changed: tuple[str, ...] = ()
    """Fields of the spec that differ, with both values."""
    compared: tuple[str, ...] = ()
    """Extent of the comparison: the whole `spec`, or the content of an older manifest."""
    code: CodeDigests | None = None
    """Present for an own model if both digests are known."""


class StopRequested(EventData):
    """An attempt is ordered to save and leave."""

    reason: str
    """Why."""
    goes_on: bool = False
    """Whether the job continues on other nodes."""


class StopAgreed(TrainerData):
    """All ranks agreed to save and leave."""


class CancelRequested(EventData):
    """An attempt is ordered to leave immediately."""

    reason: str
    """Why."""
    lost: str | None = None
    """The lost work."""


class RolledBack(EventData):
    """A guard rolled a job back to an earlier checkpoint."""

    checkpoint_id: str | None
    """The checkpoint; absent for a start at step 0."""
    step: int
    """Step of the checkpoint."""
    window: Annotated[tuple[int, ...], Field(min_length=2, max_length=2)]
    """Skipped sequences: the first one, and the first one after them."""
    reason: FailureReason
    """The guard's finding."""


class EndData(EventData):
    """Fields of every event of an end."""

    outcome: AttemptOutcome
    """How."""
    failure: Failure | None
    """Why it failed, without the traceback, which the attempt has."""


class NodeEnded(EndData):
    """One node's share of an attempt ended."""


class AttemptEnded(EndData):
    """An attempt ended."""


class Unreachable(EventData):
    """A lease expired; the attempt ends only after proof that its processes have exited."""


class Reachable(EventData):
    """A silent node reports again."""


class ContinuityChecked(Continuity, EventData):
    """The first step after a resume was compared with the lineage."""


class RequestAnswered(EventData):
    """The trainer answered a request."""

    request_id: str
    """The request."""
    ok: bool
    """Whether it was done."""
    message: str
    """What was done, or why not."""


class MetricsStored(EventData):
    """Points were stored."""

    step: int
    """Highest step of the report."""
    values: dict[str, float]
    """Points of the newest step by metric name; NaN and infinity as strings."""
    progress: Progress
    """Progress of the job after the report."""


class MetricsDropped(EventData):
    """Points of an attempt were dropped; one event for each limit."""

    what: Literal["series", "steps"]
    """The quantity that exceeds its limit."""
    limit: int
    """The limit."""
    first: str | int
    """First dropped series or step."""


class LogStored(EventData):
    """Output of a rank was stored."""

    rank: int
    """Global rank."""
    lines: int
    """Lines of its output so far."""


class LineSkipped(EventData):
    """A line of a run's file is unreadable and was skipped."""

    file: str
    """File of the run directory."""
    offset: int
    """First byte of the line."""
    error: str
    """The error in the line."""


class CheckpointCommitted(EventData):
    """A checkpoint entered the catalog."""

    checkpoint_id: str
    """Its id."""
    step: int
    """Completed optimizer steps."""
    size: int
    """Bytes."""
    kind: str
    """Why it was saved."""


class CheckpointDamaged(EventData):
    """An attempt could not load its checkpoint, because it is damaged."""

    checkpoint_id: str
    """Its id."""
    fault: CheckpointFault
    """The evidence."""


class CheckpointPinned(EventData):
    """A checkpoint was pinned, which exempts it from retention, or unpinned."""

    checkpoint_id: str
    """Its id."""
    pinned: bool
    """Whether it is pinned now."""


class OperationData(EventData):
    """Fields of every event of an operation."""

    operation_id: str
    """The operation."""
    kind: OperationKind
    """Kind of the operation."""
    checkpoint_id: str | None
    """The checkpoint; absent for an operation on all checkpoints of a job."""


class OperationQueued(OperationData):
    """An operation waits for a node, for the first time or again."""

    reason: str
    """Why."""


class OperationWaiting(OperationData):
    """The reason why an operation waits changed."""

    waiting: str
    """The reason."""


class OperationStarted(OperationData):
    """A node claimed an operation."""

    fence: int
    """Number of this try."""


class OperationProgressed(OperationData):
    """An operation advanced."""

    progress: OperationProgress
    """Its progress."""


class OperationEnded(OperationData):
    """An operation ended."""

    state: OperationState
    """How."""
    ok: bool | None = None
    """Result of a verification: whether the checkpoint is undamaged."""
