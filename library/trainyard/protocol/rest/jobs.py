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
    """Steps after which the job has succeeded; null where a program does not give them."""
    steps_reported: bool = False
    """Whether a program reports `steps` while it runs, as an estimate that limits nothing."""
    answers: tuple[ProgramAnswer, ...] = ()
    """What a program carries out: an order to stop, and requests by their kind."""
    loss: float | None = None
    """Last loss; NaN and infinity as strings."""
    tokens_per_second: float | None = None
    """Last throughput over all ranks."""
    seconds_left: float | None = None
    """Estimate from the pace of the last steps."""
    heartbeat_at: datetime | None = None
    """Time of the trainer's last sign of life."""

    @property
    def last_legal_step(self) -> int | None:
        """The step after which no metrics are stored."""
        return None if self.steps_reported else self.steps


class SizeChange(EventData):
    """A change of the number of slots of an elastic job, decided by the scheduler."""

    at: datetime
    """When it was decided."""
    before: int
    """Slots until then."""
    world_size: int
    """Slots from the next attempt on."""
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
    """Project that its slots count towards."""
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
    """Tool that recorded it, of a job that was imported; null for one that runs here."""


class JobOrder(StrEnum):
    """In which order jobs are listed."""

    NEWEST = "newest"
    """By the time of submission, the newest first."""
    ACTIVE = "active"
    """Those that run, then those that wait, then those that have ended. Those that wait are in the
    order of their priority, the first one first; of the others the newest comes first."""


class JobCounts(RecordModel):
    """Counts of jobs."""

    by_state: dict[JobState, int]
    """Jobs in each state; every state has its number."""


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
    """Windows of the stream that it skips in addition to those that the job skips already."""
    allow_code_change: bool = False
    """Whether `model.code` may differ from the code that wrote the checkpoint."""
    parent_named: bool = False
    """Whether it repeats an attempt that has saved nothing and whose checkpoint a person named."""


class NextAction(RecordModel):
    """What helps a job that failed: an action under which something is different."""

    verb: Literal["resume", "fork", "submit"]
    """The action; `submit` begins a new job with this one's spec."""
    text: str
    """Why, in one or two sentences."""
    aim: Literal["memory", "free"] | None = None
    """What a resume changes: it takes less memory a slot, or the slots that are free."""
    field: str | None = None
    """Field of the spec to change in a fork or a new job; ends in a dot where it is a section."""
    setting: str | None = None
    """A setting of that field to begin with, such as `optimizer.lr=0.00015`."""
    checkpoint_id: str | None = None
    """Checkpoint to fork."""
    step: int | None = None
    """Its step."""


class JobView(JobSummary):
    """One job with all fields."""

    description: str
    """Purpose of the job."""
    spec: JobSpec
    """The spec as submitted, secrets masked."""
    set_fields: tuple[str, ...]
    """Fields of `spec` that do not have their default, such as `training.steps`."""
    effective_spec: JobSpec
    """`spec` with the overrides of the pending launch, else with those of the newest attempt and
    the values of `auto` on its slots."""
    changes: tuple[Difference, ...]
    """Fields in which `effective_spec` differs from `spec`."""
    desired: DesiredState
    """Desired state of its current attempt."""
    pending: PendingLaunch | None
    """Launch that was requested and is not placed yet."""
    size_change: SizeChange | None = None
    """The last change of its number of slots that the scheduler decided."""
    imported: ImportView | None = None
    """What was imported, of a job that another tool recorded."""
    facts: RunFacts | None = None
    """Configuration and summary that the script of a program reported, or that another tool
    recorded; null where there are none."""
    forked_from: str | None
    """Checkpoint of another job from which this one was forked."""
    fork_parts: tuple[CheckpointPart, ...] | None
    """Parts of that checkpoint that it loaded."""
    current_attempt: AttemptView | None
    """The newest attempt."""
    active_seconds: float | None = None
    """Time that its ended attempts took from their placement on, without the pauses between them;
    null before the first has ended."""
    next_action: NextAction | None = None
    """What helps after the failure of a job that has failed."""
    retries_left: int
    """Number of further failures that a retry would follow."""
    verbs: tuple[Literal["stop", "cancel", "resume", "resize", "save", "delete"], ...]
    """Commands that are legal now; the first is the most likely next one."""
    priority_words: str
    """Name of its priority, such as `high`; the number of one without a name."""


class QueueEntry(RecordModel):
    """A job that waits, and when it is expected to start."""

    job_id: str
    """Id of the job."""
    name: str
    """Its name."""
    project: str
    """Its project."""
    position: int
    """Place in the queue, from 1."""
    priority: int
    """Its priority."""
    priority_words: str
    """Name of its priority, such as `high`; the number of one without a name."""
    world_size: int
    """Slots that it needs."""
    layout: str
    """Layout in words."""
    queued_at: datetime | None
    """Since when it waits."""
    reason: str | None
    """Why it waits; null until the scheduler has looked at it."""
    expected_start_at: datetime | None
    """Expected start, from the paces of the jobs that run; null when it is not known."""
    unknown_because: str | None
    """Why no start is expected; null where one is."""
    backfilled_before: str | None = None
    """Name of the job ahead on whose nodes it is expected to start, because it ends in time."""
    lasts_seconds: float | None = None
    """Expected time from its placement to its end, as former attempts of the same training part
    show it, or its own; null where none does."""


class QueuePlace(RecordModel):
    """The place of one job in the queue."""

    entry: QueueEntry | None
    """Its entry; null while the job does not wait."""


class WhatIf(RecordModel):
    """What would follow, were a spec submitted now."""

    starts_now: bool = False
    """Whether it would start at once."""
    position: int
    """Place in the queue that it would have, from 1."""
    reason: str | None = None
    """Why it would wait; null where it starts at once, or where that is not known."""
    expected_start_at: datetime | None = None
    """Expected start; null when it is not known."""
    unknown_because: str | None = None
    """Why no start is expected; null where one is."""


class StopRequest(SpecModel):
    """Body of stop and cancel."""

    reason: Annotated[Text, Field(max_length=500)] = ""
    """Why; shown in the events."""


class CancelReply(RecordModel):
    """Reply to cancel, with the work that it loses."""

    job: JobView
    """The job after the call."""
    lost: str
    """Such as `340 steps since step-1200`."""


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
    """Who records them: global rank 0, or every rank."""


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
    """A pack: a gzipped tar archive, named by its content."""

    digest: Annotated[str, Field(pattern=PACK_DIGEST)]
    """SHA-256 of the archive, as `program.code.pack` names it."""
    size: int
    """Bytes of the archive."""
