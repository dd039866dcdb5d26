"""Views of jobs, and bodies of requests on jobs."""

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
    """Current phase of the trainer."""
    step: int = 0
    """Completed optimizer steps."""
    steps: int | None
    """Total number of steps of the job; null if a program does not give it."""
    steps_reported: bool = False
    """Whether `steps` is only an estimate by a running program, and therefore no limit."""
    answers: tuple[ProgramAnswer, ...] = ()
    """Orders and requests to which a program responds: `stop`, and kinds of requests."""
    loss: float | None = None
    """Last loss; NaN and infinity are strings."""
    tokens_per_second: float | None = None
    """Last throughput, over all ranks."""
    seconds_left: float | None = None
    """Estimated time until the end, from the pace of the last steps."""
    heartbeat_at: datetime | None = None
    """Time of the trainer's last heartbeat."""

    @property
    def last_legal_step(self) -> int | None:
        """Last step for which metrics are stored; None without a limit."""
        return None if self.steps_reported else self.steps


class SizeChange(EventData):
    """A change to the number of slots of an elastic job, made by the scheduler."""

    at: datetime
    """Time of the change."""
    before: int
    """Previous number of slots."""
    world_size: int
    """Number of slots from the next attempt on."""
    reason: str
    """Reason for the change."""


class JobSummary(RecordModel):
    """Summary of a job: a row in the table of jobs."""

    id: str
    """Id of the job."""
    name: str
    """Name of the job; several jobs may share it."""
    tags: tuple[str, ...]
    """Tags by which lists of jobs can be filtered."""
    project: str
    """Project of the job; the job's slots count towards the project's share and quotas."""
    owner: str | None = None
    """Name of the user who owns the job; null from an older server."""
    state: JobState
    """State of the job, summarised from its attempts."""
    reason: str | None
    """Reason why the job waits or has ended."""
    attempt: int
    """Number of the current attempt; 0 before the first attempt."""
    world_size: int
    """Number of slots of the current attempt; before the first attempt, the number in the spec."""
    min_world_size: int | None = None
    """Minimum number of slots of an elastic job; null for a job of a fixed size."""
    max_world_size: int | None = None
    """Maximum number of slots of an elastic job; null for a job of a fixed size."""
    layout: str
    """Layout as text, such as `HSDP 2x2`."""
    priority: int
    """Priority in the queue."""
    progress: Progress
    """Progress of the current attempt."""
    created_at: datetime
    """Time of submission."""
    updated_at: datetime
    """Time of the job's last event."""
    started_at: datetime | None
    """Time at which the first attempt was placed."""
    ended_at: datetime | None
    """Time at which the job reached a final state."""
    imported_from: ImportTool | None = None
    """Tool that recorded an imported job; null for other jobs."""


class JobOrder(StrEnum):
    """Order of a list of jobs."""

    NEWEST = "newest"
    """By time of submission, newest first."""
    ACTIVE = "active"
    """Running jobs first, then waiting jobs, then ended jobs. Waiting jobs are sorted by priority,
    highest first; running and ended jobs are sorted by submission, newest first."""


class JobCounts(RecordModel):
    """Numbers of jobs."""

    by_state: dict[JobState, int]
    """Number of jobs in each state; every state is present."""


class PendingLaunch(RecordModel):
    """A launch that was requested but is not placed yet."""

    cause: AttemptCause
    """Cause of the launch."""
    actor: str
    """Author of the launch."""
    overrides: Overrides = Overrides()
    """Differences of the launch from the job's spec."""
    layout: Layout
    """Layout of the launch."""
    checkpoint_id: str | None = None
    """Checkpoint to load; when absent, the newest checkpoint of the lineage."""
    skip: Windows = ()
    """Windows of the stream to skip in addition to the windows that the job already skips."""
    allow_code_change: bool = False
    """Whether `model.code` may differ from the code at the time of the checkpoint."""
    parent_named: bool = False
    """Whether the launch loads the same checkpoint as the previous attempt, because a person chose
    the checkpoint and that attempt saved nothing."""


class NextAction(RecordModel):
    """Suggested action on a failed job; usually the action includes a change that may prevent the
    same failure."""

    verb: Literal["resume", "fork", "submit"]
    """Kind of action; `submit` creates a new job from this job's spec."""
    text: str
    """Reason for the action, in one or two sentences."""
    aim: Literal["memory", "free"] | None = None
    """Aim of a resume: `memory` to need less memory per slot, `free` to fit into the free slots."""
    field: str | None = None
    """Spec field to change; the name of a section ends in a dot."""
    setting: str | None = None
    """Suggested setting of the spec field, such as `optimizer.lr=0.00015`."""
    checkpoint_id: str | None = None
    """Checkpoint from which the suggested fork starts."""
    step: int | None = None
    """Step of the checkpoint."""


class JobView(JobSummary):
    """A job with all of its fields."""

    description: str
    """Purpose of the job."""
    spec: JobSpec
    """Submitted spec, with masked secrets."""
    set_fields: tuple[str, ...]
    """Fields of `spec` that differ from their defaults, such as `training.steps`."""
    effective_spec: JobSpec
    """`spec` with the overrides of the pending launch. Without a pending launch: `spec` with the
    overrides of the newest attempt, and with `auto` resolved for its slots."""
    changes: tuple[Difference, ...]
    """Differences between `spec` and `effective_spec`."""
    desired: DesiredState
    """Desired state of the current attempt."""
    pending: PendingLaunch | None
    """Launch that is not placed yet."""
    size_change: SizeChange | None = None
    """Last change to the number of slots by the scheduler."""
    imported: ImportView | None = None
    """Progress of the import; null if the job is not imported."""
    facts: RunFacts | None = None
    """Configuration and summary from a program's script or another tool; null without them."""
    forked_from: str | None
    """Checkpoint of another job from which this job was forked."""
    fork_parts: tuple[CheckpointPart, ...] | None
    """Parts of the other job's checkpoint that this job loaded."""
    current_attempt: AttemptView | None
    """Newest attempt of the job."""
    active_seconds: float | None = None
    """Total duration of the ended attempts, each from its placement; null until the first attempt
    has ended."""
    next_action: NextAction | None = None
    """Suggested action on a failed job."""
    retries_left: int
    """Number of further failures that the server would answer with a retry."""
    verbs: tuple[Literal["stop", "cancel", "resume", "resize", "save", "delete"], ...]
    """Commands that are legal now; the most likely command is first."""
    priority_words: str
    """Name of the priority, such as `high`; without a name, its number."""


class QueueEntry(RecordModel):
    """A waiting job with its expected start.

    The entry of a job that the caller does not see has only a position and a number of slots.
    """

    job_id: str | None
    """Id of the job; null for a hidden job."""
    name: str
    """Name of the job; `another project's job` for a hidden job."""
    project: str | None
    """Project of the job; null for a hidden job."""
    position: int
    """Position of the job in the queue, from 1."""
    priority: int | None
    """Priority of the job; null for a hidden job."""
    priority_words: str
    """Name of the priority, such as `high`; without a name, its number; empty for a hidden job."""
    world_size: int
    """Number of slots that the job needs."""
    layout: str
    """Layout as text; empty for a hidden job."""
    queued_at: datetime | None
    """Time at which the job entered the queue; null for a hidden job."""
    reason: str | None
    """Reason why the job waits; null until the scheduler's first check of the job."""
    expected_start_at: datetime | None
    """Expected start, estimated from the pace of the running jobs; null if unknown."""
    unknown_because: str | None
    """Reason why the expected start is unknown; null if it is known."""
    backfilled_before: str | None = None
    """Name of the job ahead that keeps the nodes on which this job is expected to start. This job
    is expected to end before the job ahead can start."""
    lasts_seconds: float | None = None
    """Expected time from placement to end, estimated from earlier attempts of the job; for a new
    job, from attempts with the same training part. Null without such attempts."""


class QueuePlace(RecordModel):
    """Position of one job in the queue."""

    entry: QueueEntry | None
    """Entry of the job; null if the job does not wait."""


class WhatIf(RecordModel):
    """Forecast for a job with a given spec, as if the job were submitted now."""

    starts_now: bool = False
    """Whether the job would start immediately."""
    position: int
    """Position of the job in the queue, from 1."""
    reason: str | None = None
    """Reason why the job would wait; null if it would start immediately or the reason is
    unknown."""
    expected_start_at: datetime | None = None
    """Expected start of the job; null if unknown."""
    unknown_because: str | None = None
    """Reason why the expected start is unknown; null if it is known."""


class StopRequest(SpecModel):
    """Body of a request to stop or cancel a job."""

    reason: Annotated[Text, Field(max_length=500)] = ""
    """Reason for the stop or cancellation, for display in the events."""


class CancelReply(RecordModel):
    """Reply to a cancel."""

    job: JobView
    """Job after the call."""
    lost: str
    """Lost work as text, such as `340 steps since step-1200`."""


class PriorityRequest(SpecModel):
    """Body of a request to change a job's priority."""

    priority: Priority
    """New priority."""


class JobRequest(SpecModel):
    """Body of a request to the trainer of a running job."""

    kind: RequestKind
    """Kind of the request."""
    steps: Annotated[int, Field(ge=1, le=100, json_schema_extra={"unit": "steps"})] = 3
    """Number of steps in a profile, or in the history of a memory snapshot."""
    ranks: RecordingRanks = "first"
    """Ranks that record: only global rank 0, or all ranks."""


class JobRequestView(RecordModel):
    """A request to the trainer of a running job, with the response of the trainer."""

    id: str
    """Id of the request."""
    request: Request
    """Kind and parameters of the request."""
    answer: RequestAnswer | None
    """Response of the trainer; null until it arrives."""
    created_at: datetime
    """Time of the request."""


class PackView(RecordModel):
    """A pack: a gzipped tar archive, named by its digest."""

    digest: Annotated[str, Field(pattern=PACK_DIGEST)]
    """SHA-256 of the archive; also the value for `program.code.pack`."""
    size: int
    """Size of the archive, in bytes."""
