"""Typed rows: frozen dataclasses that list the columns of a query and hold one result row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, get_type_hints

from pydantic import BaseModel
from sqlalchemy import ColumnElement, CompoundSelect, Connection, Select, Table, select

from server.core.database import tables
from server.core.database.column_types import StoredRecord
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.manifest import Manifest, SaveFailed
from trainyard.protocol.node_samples import NodeSample
from trainyard.protocol.operations import (
    FailedTries,
    OperationKind,
    OperationProgress,
    OperationTask,
    Verification,
)
from trainyard.protocol.past_runs.views import ImportTool
from trainyard.protocol.rest.attempts import Continuity
from trainyard.protocol.rest.jobs import PendingLaunch, Progress, SizeChange
from trainyard.protocol.rest.nodes import Drain
from trainyard.protocol.resume_parts import CheckpointPart
from trainyard.protocol.states import (
    AttemptCause,
    AttemptNodeState,
    AttemptOutcome,
    AttemptState,
    DesiredState,
    JobState,
    OperationState,
)
from trainyard.protocol.worker_messages import Hardware, Identity, WorkerIdentity
from trainyard.run.checkpoints.program_manifest import ProgramManifest
from trainyard.run.failures import Failure
from trainyard.spec.auto import DeviceKind
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.training.data_stream import Windows

Query = Select[*tuple[Any, ...]] | CompoundSelect[*tuple[Any, ...]]
Parameters = Mapping[str, Any] | None
"""Values for the bound parameters of a query."""


class TypedRow:
    """Base of result rows.

    A subclass is a frozen, slotted dataclass. Each field reads the column of its own name in
    `table`; `Annotated[type, column]` reads another column or an expression.
    """

    __slots__ = ()
    table: ClassVar[Table]

    @classmethod
    @cache
    def columns(cls) -> tuple[ColumnElement[Any], ...]:
        """Return the columns, in the order of the fields."""
        hints = get_type_hints(cls, include_extras=True)
        # Every subclass is a dataclass, as `fields` requires.
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        return tuple(_column(cls.table, name, hints[name]) for name in names)

    @classmethod
    @cache
    def select(cls) -> Select[*tuple[Any, ...]]:
        """Return a query of all columns of the class; the caller adds conditions."""
        return select(*cls.columns())

    @classmethod
    def one(cls, connection: Connection, query: Query, given: Parameters = None) -> Self:
        """Return the only row of a query; SQLAlchemy raises an error for no row or several rows."""
        return cls(*connection.execute(query, given).one())

    @classmethod
    def one_or_none(
        cls, connection: Connection, query: Query, given: Parameters = None
    ) -> Self | None:
        """Return the only row of a query, or None; SQLAlchemy raises an error for several rows."""
        row = connection.execute(query, given).one_or_none()
        return None if row is None else cls(*row)

    def values_for(self, view: type[BaseModel]) -> dict[str, Any]:
        """Return the row's values for the fields of `view` that the row has, too."""
        return {name: getattr(self, name) for name in view.model_fields if hasattr(self, name)}

    @classmethod
    def all(cls, connection: Connection, query: Query, given: Parameters = None) -> Sequence[Self]:
        """Return all rows of a query."""
        return [cls(*row) for row in connection.execute(query, given).all()]


def _column(table: Table, name: str, hint: Any) -> ColumnElement[Any]:
    for each in getattr(hint, "__metadata__", ()):
        if isinstance(each, ColumnElement):
            return each
    return table.c[name]


@dataclass(frozen=True, slots=True)
class JobHead(TypedRow):
    """A job without its spec."""

    table: ClassVar[Table] = tables.jobs
    id: str
    name: str
    project: str
    state: JobState
    storage: str | None


@dataclass(frozen=True, slots=True)
class LaunchedJob(JobHead):
    """A job with only the columns for a placement; a round reads hundreds of such rows."""

    stored_spec: Annotated[StoredRecord[JobSpec], tables.jobs.c.spec]
    env: dict[str, Any] | None
    owner_id: str
    stored_pending: Annotated[StoredRecord[PendingLaunch] | None, tables.jobs.c.pending]
    queued_at: datetime | None
    attempt: int
    spare_slots: int
    forked_from: str | None
    fork_step: int | None
    started_at: datetime | None
    pace_digest: str | None

    @property
    def spec(self) -> JobSpec:
        """The submitted spec, without `env` and project; raises `UnreadableError`."""
        return self.stored_spec.read(f"spec of job {self.id}")

    @property
    def pending(self) -> PendingLaunch | None:
        """The launch that the next placement of the job starts; raises `UnreadableError`."""
        stored = self.stored_pending
        return None if stored is None else stored.read(f"launch of job {self.id}")


@dataclass(frozen=True, slots=True)
class Job(LaunchedJob):
    """A job with the columns that most queries need."""

    tags: list[str]
    spec_digest: str
    desired: DesiredState
    reason: str | None
    priority: int
    stored_chosen: Annotated[StoredRecord[PendingLaunch] | None, tables.jobs.c.chosen]
    not_before: datetime | None
    demand: str | None
    retries_used: int
    world_size: int
    min_world_size: int | None
    max_world_size: int | None
    spare_nodes: int
    size_change: SizeChange | None
    layout: str
    imported_from: ImportTool | None
    fork_parts: tuple[CheckpointPart, ...] | None
    progress: Progress
    created_by: str
    token_id: str | None
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None

    @property
    def chosen(self) -> PendingLaunch | None:
        """The launch that a person ordered with the last resume; raises `UnreadableError`."""
        stored = self.stored_chosen
        return None if stored is None else stored.read(f"last order of job {self.id}")


@dataclass(frozen=True, slots=True)
class Attempt(TypedRow):
    """An attempt with the columns that most queries need."""

    table: ClassVar[Table] = tables.attempts
    id: str
    job_id: str
    number: int
    cause: AttemptCause
    actor: str
    state: AttemptState
    desired: DesiredState
    outcome: AttemptOutcome | None
    failure: Failure | None
    layout: Layout
    device: DeviceKind
    stored_overrides: Annotated[StoredRecord[Overrides], tables.attempts.c.overrides]
    micro_batch_size: int
    parent_checkpoint_id: str | None
    start_step: int
    parent_named: bool
    allow_code_change: bool
    skip: Windows
    last_step: int
    rendezvous_port: int
    check_network: bool
    preempted: str | None
    gives_way: bool
    runs_until: datetime | None
    ordered_at: datetime | None
    secrets: list[dict[str, Any]] | None
    owner_id: str | None
    account: str | None
    provenance: dict[str, object] | None
    continuity: Continuity | None
    save_failed: SaveFailed | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def is_over_time(self) -> bool:
        """Whether the attempt was ordered to leave because it reached the bound of its run time."""
        bound, ordered = self.runs_until, self.ordered_at
        return bool(self.preempted and bound and ordered and ordered >= bound)

    @property
    def overrides(self) -> Overrides:
        """The attempt's differences from the submitted spec; raises `UnreadableError`."""
        return self.stored_overrides.read(f"overrides of attempt {self.id}")


@dataclass(frozen=True, slots=True)
class AttemptNode(TypedRow):
    """One node's share of an attempt, without its exit record, which may be large."""

    table: ClassVar[Table] = tables.attempt_nodes
    attempt_id: str
    node: str
    node_rank: int
    slots: list[int]
    state: AttemptNodeState
    outcome: AttemptOutcome | None
    failure: Failure | None
    token_hash: str | None
    worker: WorkerIdentity | None
    identity: Identity | None
    sent_at: datetime | None
    claimed_at: datetime | None
    last_report_at: datetime | None
    unreachable_since: datetime | None
    lost_at: datetime | None
    spare_since: datetime | None
    reported_exit: Annotated[bool, tables.attempt_nodes.c.exit.is_not(None)]


@dataclass(frozen=True, slots=True)
class Node(TypedRow):
    """A node with the columns that most queries need."""

    table: ClassVar[Table] = tables.nodes
    name: str
    address: str
    hardware: Hardware
    slots: int
    roots: dict[str, str]
    withheld: dict[str, str]
    worker_labels: dict[str, str]
    set_labels: dict[str, str]
    version: str
    protocol: int
    worker: WorkerIdentity | None
    drain: Drain | None
    notice: str | None
    sample: NodeSample | None
    clock_skew_seconds: float | None
    clock_is_wrong: bool
    request_id: str | None
    ends_at: datetime | None
    registered_at: datetime
    heartbeat_at: datetime
    offline_since: datetime | None

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the node; labels set by people override labels of the worker."""
        return {**self.worker_labels, **self.set_labels}


@dataclass(frozen=True, slots=True)
class CheckpointHead(TypedRow):
    """A checkpoint, without its manifest."""

    table: ClassVar[Table] = tables.checkpoints
    id: str
    job_id: str
    attempt: int
    step: int
    root: str
    path: str
    metadata_digest: str
    verified: bool | None
    pinned_at: datetime | None
    pinned_by: str | None
    deleting_since: datetime | None


@dataclass(frozen=True, slots=True)
class Checkpoint(CheckpointHead):
    """A checkpoint, with its manifest."""

    manifest: Manifest | ProgramManifest
    verification: Verification | None


@dataclass(frozen=True, slots=True)
class OperationHead(TypedRow):
    """An operation without its task, for state changes and events."""

    table: ClassVar[Table] = tables.operations
    id: str
    kind: OperationKind
    state: OperationState
    job_id: str
    job_name: str
    project: str | None
    checkpoint_id: str | None
    node: str | None
    fence: int
    failing: FailedTries | None


@dataclass(frozen=True, slots=True)
class Operation(OperationHead):
    """An operation with its task."""

    actor: str
    account: str | None
    stored_task: Annotated[StoredRecord[OperationTask], tables.operations.c.task]
    storage: str | None
    progress: OperationProgress | None

    @property
    def task(self) -> OperationTask:
        """Task of the operation; raises `UnreadableError`."""
        return self.stored_task.read(f"task of operation {self.id}")


@dataclass(frozen=True, slots=True)
class Token(TypedRow):
    """A token without the hash of its secret; the secret is not stored at all."""

    table: ClassVar[Table] = tables.tokens
    id: str
    name: str
    kind: Literal["admin", "api", "join", "login", "node", "source"]
    node: str | None
    source: str | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    scopes: list[str] | None
    """Permissions of an API token, in the order of `Permission`; None without scopes."""
    user_id: str | None
    """User of the token or of its maker; None for tokens of machines."""
