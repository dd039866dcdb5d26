"""Views of jobs, and what may be asked of one."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.models import RecordModel, SpecModel, Text
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.rest.attempts import AttemptView
from trainyard.protocol.resume_parts import CheckpointPart
from trainyard.protocol.states import AttemptCause, DesiredState, JobState
from trainyard.run.directory import Phase
from trainyard.run.records import RecordingRanks, Request, RequestAnswer, RequestKind
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.training.stream import Windows


class Progress(RecordModel):
    """How far a job's current attempt is."""

    phase: Phase | None = None
    """What the trainer is busy with."""
    step: int = 0
    """Completed optimizer steps."""
    steps: int
    """Steps after which the job has succeeded."""
    loss: float | None = None
    """Last loss; NaN and infinity as strings."""
    tokens_per_second: float | None = None
    """Last throughput over all ranks."""
    seconds_left: float | None = None
    """Estimate from the pace of the last steps."""
    heartbeat_at: datetime | None = None
    """When the trainer was last heard of."""


class JobSummary(RecordModel):
    """A row of the jobs table."""

    id: str
    """Id."""
    name: str
    """Name; need not be unique."""
    tags: tuple[str, ...]
    """Words to filter by."""
    state: JobState
    """Summarised state."""
    reason: str | None
    """Why it waits, or why it ended."""
    attempt: int
    """Number of the current attempt; 0 before the first."""
    world_size: int
    """Slots of the current attempt, or those asked for."""
    layout: str
    """Layout in words, such as `HSDP 2x2`."""
    priority: int
    """Priority in the queue."""
    progress: Progress
    """How far it is."""
    created_at: datetime
    """When it was submitted."""
    updated_at: datetime
    """When something last happened to it."""
    started_at: datetime | None
    """When its first attempt was placed."""
    ended_at: datetime | None
    """When it reached an end."""


class JobOrder(StrEnum):
    """In which order jobs are listed."""

    NEWEST = "newest"
    """By the time of submission, the newest first."""
    ACTIVE = "active"
    """Those that have not ended first; within both groups the newest first."""


class JobCounts(RecordModel):
    """How many jobs there are."""

    by_state: dict[JobState, int]
    """Jobs in each state; every state has its number."""


class PendingLaunch(RecordModel):
    """A launch that is asked for and not placed yet."""

    cause: AttemptCause
    """Why."""
    actor: str
    """Who asked."""
    overrides: Overrides = Overrides()
    """What it changes against the job's spec."""
    layout: Layout
    """Its layout."""
    checkpoint_id: str | None = None
    """Checkpoint to go on from; the newest of the lineage when absent."""
    skip: Windows = ()
    """Windows of the stream that it leaves out beside those that the job leaves out already."""
    allow_code_change: bool = False
    """Whether `model.code` may differ from what wrote the checkpoint."""
    parent_named: bool = False
    """Whether it repeats an attempt that has saved nothing and whose checkpoint a person named."""


class JobView(JobSummary):
    """One job, whole."""

    description: str
    """What it is for."""
    spec: JobSpec
    """The spec as submitted, secrets masked."""
    desired: DesiredState
    """What is wanted of its current attempt."""
    pending: PendingLaunch | None
    """Launch that is asked for and not placed yet."""
    forked_from: str | None
    """Checkpoint of another job from which this one was forked."""
    fork_parts: tuple[CheckpointPart, ...] | None
    """What it took over of that checkpoint."""
    current_attempt: AttemptView | None
    """The newest attempt."""
    retries_left: int
    """Failures that would still be followed by a retry."""
    verbs: tuple[Literal["stop", "cancel", "resume", "resize", "save", "delete"], ...]
    """What may be done now; the first is the next thing that most people want."""


class StopRequest(SpecModel):
    """Body of stop and cancel."""

    reason: Annotated[Text, Field(max_length=500)] = ""
    """Why; shown in the events."""


class CancelReply(RecordModel):
    """What a cancel loses."""

    job: JobView
    """The job after the call."""
    lost: str
    """Such as `340 steps since step-1200`."""


class JobRequest(SpecModel):
    """Body of requests on a running job."""

    kind: RequestKind
    """What is asked for."""
    steps: Annotated[int, Field(ge=1, le=100, json_schema_extra={"unit": "steps"})] = 3
    """Steps that a profile or the history of a memory snapshot holds."""
    ranks: RecordingRanks = "first"
    """Who records them: global rank 0, or every rank."""


class JobRequestView(RecordModel):
    """A request on a running job, and its answer."""

    id: str
    """Id."""
    request: Request
    """What is asked for."""
    answer: RequestAnswer | None
    """What became of it."""
    created_at: datetime
    """When it was asked."""
