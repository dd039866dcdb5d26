"""Views of jobs, and requests on jobs."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import RecordModel, SpecModel, Text
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.event_kinds import EventData
from trainyard.protocol.past_runs.views import ImportTool, ImportView
from trainyard.protocol.rest.attempts import AttemptView
from trainyard.protocol.resume_parts import CheckpointPart
from trainyard.protocol.resume_rules import Difference
from trainyard.protocol.states import AttemptCause, DesiredState, JobState
from trainyard.run.directory import Phase
from trainyard.run.fact_types.fact_records import RunFacts
from trainyard.run.records import (
    ProgramAnswer,
    RecordingRanks,
    Request,
    RequestAnswer,
    RequestKind,
)
from trainyard.spec.code_pack import PACK_DIGEST
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.resources import Priority
from trainyard.training.data_stream import Windows


class Progress(RecordModel):
    """Progress of a job's current attempt."""

    phase: Phase | None = None
    """Current activity of the trainer."""
    step: int = 0
    """Completed optimizer steps."""
    steps: int | None
    """Steps after which the job has succeeded; null if a program does not give them."""
    steps_reported: bool = False
    """Whether `steps` is a running program's own estimate, which limits nothing."""
    answers: tuple[ProgramAnswer, ...] = ()
    """Orders and requests that a program supports: stop, and kinds of requests."""
    loss: float | None = None
    """Last loss; NaN and infinity as strings."""
    tokens_per_second: float | None = None
    """Last throughput over all ranks."""
    seconds_left: float | None = None
    """Estimated time to the end, from the pace of the last steps."""
    heartbeat_at: datetime | None = None
    """Time of the trainer's last sign of life."""

    @property
    def last_legal_step(self) -> int | None:
        """Last step for which metrics are stored; None without a limit."""
        return None if self.steps_reported else self.steps


class SizeChange(EventData):
    """A change of the number of slots of an elastic job, decided by the scheduler."""

    at: datetime
    """When it was decided."""
    before: int
    """Previous number of slots."""
    world_size: int
    """Number of slots from the next attempt on."""
    reason: str
    """Why."""


class JobSummary(RecordModel):
    """A row of the jobs table."""

    id: str
    """Id."""
    name: str
    """Name; need not be unique."""
    tags: tuple[str, ...]
    """Tags to filter by."""
    project: str
    """Project of the job, which its slots count towards."""
    state: JobState
    """Summarised state."""
    reason: str | None
    """Why it waits, or why it ended."""
    attempt: int
    """Number of the current attempt; 0 before the first."""
    world_size: int
    """Slots of the current attempt, or those requested."""
    min_world_size: int | None = None
    """Fewest slots of an elastic job; null for a job of a fixed size."""
    max_world_size: int | None = None
    """Most slots of an elastic job; null for a job of a fixed size."""
    layout: str
    """Layout in words, such as `HSDP 2x2`."""
    priority: int
    """Priority in the queue."""
    progress: Progress
    """Its progress."""
    created_at: datetime
    """When it was submitted."""
    updated_at: datetime
    """Time of its last event."""
    started_at: datetime | None
    """When its first attempt was placed."""
    ended_at: datetime | None
    """When it reached a final state."""
    imported_from: ImportTool | None = None
    """Tool that recorded an imported job; null for a job that runs here."""


class JobOrder(StrEnum):
    """Order of a list of jobs."""

    NEWEST = "newest"
    """By time of submission, newest first."""
    ACTIVE = "active"
    """Running jobs, then waiting jobs, then ended jobs. Waiting jobs are ordered by priority,
    highest first; the others newest first."""


class JobCounts(RecordModel):
    """Counts of jobs."""

    by_state: dict[JobState, int]
    """Number of jobs by state, for every state."""


class PendingLaunch(RecordModel):
    """A launch that was requested and is not placed yet."""

    cause: AttemptCause
    """Cause of the launch."""
    actor: str
    """Author of the request."""
    overrides: Overrides = Overrides()
    """Its differences from the job's spec."""
    layout: Layout
    """Its layout."""
    checkpoint_id: str | None = None
    """Checkpoint to resume from; the newest of the lineage when absent."""
    skip: Windows = ()
    """Windows of the stream to skip in addition to those that the job already skips."""
    allow_code_change: bool = False
    """Whether `model.code` may differ from the code that wrote the checkpoint."""
    parent_named: bool = False
    """Whether it repeats an attempt that saved nothing, from a checkpoint that a person named."""


class NextAction(RecordModel):
    """An action that may help a failed job, because it changes something."""

    verb: Literal["resume", "fork", "submit"]
    """The action; `submit` creates a new job with this job's spec."""
    text: str
    """Why, in one or two sentences."""
    aim: Literal["memory", "free"] | None = None
    """Aim of a resume: `memory` uses less memory on each slot, `free` runs on the free slots."""
    field: str | None = None
    """Field of the spec to change in a fork or a new job; a section ends in a dot."""
    setting: str | None = None
    """Suggested setting of that field, such as `optimizer.lr=0.00015`."""
    checkpoint_id: str | None = None
    """Checkpoint to fork."""
    step: int | None = None
    """Its step."""


class JobView(JobSummary):
    """One job with all fields."""

    description: str
    """Purpose of the job."""
    spec: JobSpec
    """The submitted spec, with masked secrets."""
    set_fields: tuple[str, ...]
    """Fields of `spec` that differ from their default, such as `training.steps`."""
    effective_spec: JobSpec
    """`spec` with the overrides of the pending launch. Without a pending launch: with the overrides
    of the newest attempt and the values of `auto` on its slots."""
    changes: tuple[Difference, ...]
    """Differences of `effective_spec` from `spec`."""
    desired: DesiredState
    """Desired state of its current attempt."""
    pending: PendingLaunch | None
    """Launch that is not placed yet."""
    size_change: SizeChange | None = None
    """The scheduler's last change of its number of slots."""
    imported: ImportView | None = None
    """The import of an imported job."""
    facts: RunFacts | None = None
    """Configuration and summary from a program's script or from another tool; null without any."""
    forked_from: str | None
    """Checkpoint of another job that this job was forked from."""
    fork_parts: tuple[CheckpointPart, ...] | None
    """Parts of that checkpoint that it loaded."""
    current_attempt: AttemptView | None
    """The newest attempt."""
    active_seconds: float | None = None
    """Total time of its ended attempts, each from its placement; null before the first has
    ended."""
    next_action: NextAction | None = None
    """Suggested action for a failed job."""
    retries_left: int
    """Number of further failures that would be retried."""
    verbs: tuple[Literal["stop", "cancel", "resume", "resize", "save", "delete"], ...]
    """Commands that are legal now; the first one is the most likely."""
    priority_words: str
    """Name of its priority, such as `high`, or its number if it has no name."""


class QueueEntry(RecordModel):
    """A waiting job, and its expected start."""

    job_id: str
    """Id of the job."""
    name: str
    """Its name."""
    project: str
    """Its project."""
    position: int
    """Position in the queue, from 1."""
    priority: int
    """Its priority."""
    priority_words: str
    """Name of its priority, such as `high`, or its number if it has no name."""
    world_size: int
    """Slots that it needs."""
    layout: str
    """Layout in words."""
    queued_at: datetime | None
    """When it entered the queue."""
    reason: str | None
    """Why it waits; null until the scheduler first checks it."""
    expected_start_at: datetime | None
    """Expected start, from the pace of the running jobs; null if unknown."""
    unknown_because: str | None
    """Why the expected start is unknown; null if it is known."""
    backfilled_before: str | None = None
    """Name of the job ahead that keeps the nodes of the expected start; this job ends in time."""
    lasts_seconds: float | None = None
    """Expected time from placement to end, from former attempts of the same training part or of the
    job itself; null without any."""


class QueuePlace(RecordModel):
    """The position of one job in the queue."""

    entry: QueueEntry | None
    """Its entry; null while the job does not wait."""


class WhatIf(RecordModel):
    """Prediction for a spec if it were submitted now."""

    starts_now: bool = False
    """Whether it would start immediately."""
    position: int
    """Its position in the queue, from 1."""
    reason: str | None = None
    """Why it would wait; null if it starts immediately or the reason is unknown."""
    expected_start_at: datetime | None = None
    """Expected start; null if unknown."""
    unknown_because: str | None = None
    """Why the expected start is unknown; null if it is known."""


class StopRequest(SpecModel):
    """Body of stop and cancel."""

    reason: Annotated[Text, Field(max_length=500)] = ""
    """Reason, shown in the events."""


class CancelReply(RecordModel):
    """Reply to cancel, with the lost work."""

    job: JobView
    """The job after the call."""
    lost: str
    """The lost work, such as `340 steps since step-1200`."""


class PriorityRequest(SpecModel):
    """Body of a change of priority."""

    priority: Priority
    """The new priority."""


class JobRequest(SpecModel):
    """Body of a request on a running job."""

    kind: RequestKind
    """Kind of the request."""
    steps: Annotated[int, Field(ge=1, le=100, json_schema_extra={"unit": "steps"})] = 3
    """Steps that a profile or the history of a memory snapshot covers."""
    ranks: RecordingRanks = "first"
    """Ranks that record: global rank 0, or every rank."""


class JobRequestView(RecordModel):
    """A request on a running job, and its answer."""

    id: str
    """Id."""
    request: Request
    """The request."""
    answer: RequestAnswer | None
    """The answer, once there is one."""
    created_at: datetime
    """When it was requested."""


class PackView(RecordModel):
    """A pack: a gzipped tar archive, named by its digest."""

    digest: Annotated[str, Field(pattern=PACK_DIGEST)]
    """SHA-256 of the archive, the value for `program.code.pack`."""
    size: int
    """Bytes of the archive."""
