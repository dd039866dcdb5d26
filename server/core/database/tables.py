"""The main tables, in SQLAlchemy Core: jobs, attempts, nodes, events, checkpoints. No ORM."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

from server.core.database.column_types import Json, Lazy, Record, UtcDateTime
from server.core.database.schema import ID, ROW_ID, choice, metadata, one_of
from server.core.subject import ADMIN_USER_ID
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.manifest import SaveFailed, StoredManifest
from trainyard.protocol.node_samples import NodeSample
from trainyard.protocol.operations import (
    FailedTries,
    OperationKind,
    OperationOutcome,
    OperationProgress,
    OperationTask,
    Verification,
)
from trainyard.protocol.rest.attempts import Continuity
from trainyard.protocol.rest.jobs import PendingLaunch, Progress, SizeChange
from trainyard.protocol.rest.metrics_and_logs import RankTimes
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
from trainyard.run.failures import Failure
from trainyard.run.records import ExitRecord, Request, RequestAnswer
from trainyard.spec.job import DEFAULT_PROJECT, JobSpec
from trainyard.spec.layout import Layout
from trainyard.training.data_stream import Windows

jobs = Table(
    "jobs",
    metadata,
    Column("id", ID, primary_key=True),
    Column("name", String(80), nullable=False),
    Column("tags", Json, nullable=False),
    Column("project", String(80), nullable=False, server_default=DEFAULT_PROJECT),
    Column("spec", Lazy(JobSpec), nullable=False),  # spec of the job without `env` and `project`
    Column("spec_digest", String(64), nullable=False),
    Column("env", Json),  # `env` of the spec, each value encrypted
    Column("state", choice(JobState), nullable=False),
    Column("desired", choice(DesiredState, length=8), nullable=False),
    Column("reason", Text),  # why the job waits or ended; null if its group has the reason
    Column("priority", Integer, nullable=False),
    Column("pending", Lazy(PendingLaunch)),
    Column("chosen", Lazy(PendingLaunch)),  # launch of the last resume that a person ordered
    Column("queued_at", UtcDateTime),
    Column("not_before", UtcDateTime),
    Column("demand", String(64)),  # key of the job's group in the queue; null without a group
    Column("lasts_seconds", Float),  # expected duration of the job's next attempt, if known
    Column("lasts_on", String(8)),  # kind of slot for which `lasts_seconds` is known
    Column("lasts_on_name", Text),  # hardware for which `lasts_seconds` is known
    Column("pace_digest", String(64)),  # digest of the spec; null in rows of older versions
    Column("max_runtime_seconds", Float),  # bound of the job's next attempt
    Column("leave_seconds", Float),  # time that the spec gives the ranks to leave
    Column("attempt", Integer, nullable=False, default=0),  # number of the newest attempt
    Column("retries_used", Integer, nullable=False, default=0),
    Column("world_size", Integer, nullable=False),
    Column("min_world_size", Integer),  # size range of an elastic job; null for other jobs
    Column("max_world_size", Integer),
    Column("spare_nodes", Integer, nullable=False, default=0, server_default="0"),  # as requested
    Column("spare_slots", Integer, nullable=False, default=0, server_default="0"),  # reserved slots
    Column("preemptible", Boolean, nullable=False, default=True, server_default="1"),
    Column("size_change", Record(SizeChange)),  # last change of size by the scheduler
    Column("layout", String(100), nullable=False),  # layout as text
    Column("storage", String(64)),  # UUID of the storage root of the job's last attempt
    Column("imported_from", String(16)),  # tool that recorded an imported job; otherwise null
    Column("forked_from", String(200), index=True),  # checkpoint of the parent job, if a fork
    Column("fork_parts", Record(tuple[CheckpointPart, ...])),  # parts loaded from that checkpoint
    Column("fork_step", Integer),  # steps that were complete at the job's start
    Column("progress", Record(Progress), nullable=False),
    Column("created_by", String(100), nullable=False),
    Column("token_id", ID),  # token that submitted the job; null without one
    Column("owner_id", ID, nullable=False, server_default=ADMIN_USER_ID),  # user
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    *(Column(name, UtcDateTime) for name in ("started_at", "ended_at")),
    one_of("state", JobState),
    one_of("desired", DesiredState),
    Index(None, "state", "id"),
    Index(None, "name", "id"),
    Index(None, "project", "id"),
    Index(None, "project", "state", "id"),
    Index(None, "owner_id", "id"),
    Index(  # covers a round of the scheduler, so that it reads few rows of jobs
        *("ix_jobs_queue", "state", "demand", "priority", "queued_at", "id", "project"),
        *("world_size", "spare_slots"),
    ),
    # Covers a search for jobs.
    Index("ix_jobs_search", "id", "state", "project", "name", "tags"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", ID, primary_key=True),
    Column("job_id", ID, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("cause", choice(AttemptCause), nullable=False),
    Column("actor", String(100), nullable=False),
    Column("state", choice(AttemptState), nullable=False),
    Column("desired", choice(DesiredState, length=8), nullable=False),
    Column("outcome", choice(AttemptOutcome)),
    Column("failure", Record(Failure)),
    Column("layout", Record(Layout), nullable=False),
    Column("device", String(8), nullable=False, server_default="cpu"),  # kind of slot
    Column("overrides", Lazy(Overrides), nullable=False),
    Column("micro_batch_size", Integer, nullable=False),
    Column("parent_checkpoint_id", String(200)),
    Column("start_step", Integer, nullable=False, default=0),
    Column("parent_named", Boolean, nullable=False, default=False, server_default="0"),
    Column("allow_code_change", Boolean, nullable=False, default=False, server_default="0"),
    Column("skip", Record(Windows), nullable=False, default=(), server_default="[]"),  # windows
    Column("last_step", Integer, nullable=False, default=0),
    Column("rendezvous_port", Integer, nullable=False),
    Column("check_network", Boolean, nullable=False, default=False, server_default="0"),
    Column("ordered_at", UtcDateTime),  # time of the last order to end the attempt
    # Code of a job or a person ran in the attempt, so other jobs reuse nothing from it.
    Column("tainted", Boolean, nullable=False, default=False, server_default="1"),
    Column("pace_digest", String(64)),  # digest of all that sets the pace; null in older rows
    Column("expected_end_at", UtcDateTime),  # estimate at the placement; null if impossible
    Column("runs_until", UtcDateTime),  # time at which it must save and leave; null without a bound
    # Backfilled on an estimate alone, so jobs that waited at that time preempt the attempt.
    Column("gives_way", Boolean, nullable=False, default=False, server_default="0"),
    Column("preempted", Text),  # why the attempt must leave although its job continues
    Column("secrets", Json),  # versions that all its nodes get (`DeliveredSecret`, with ids)
    *(Column("owner_id", ID), Column("account", String(32))),  # of the job when placed
    Column("provenance", Json),
    Column("continuity", Record(Continuity)),
    Column("save_failed", Record(SaveFailed)),
    Column("rank_times", Record(RankTimes)),  # rank times in the last window
    Column("created_at", UtcDateTime, nullable=False),
    *(Column(name, UtcDateTime) for name in ("started_at", "ended_at")),
    UniqueConstraint("job_id", "number"),
    one_of("state", AttemptState),
    one_of("desired", DesiredState),
    Index(None, "ended_at"),
    Index(None, "state"),
    Index("ix_attempts_pace", "pace_digest", "ended_at"),
)

_UNENDED = text("state != 'ended'")
attempt_nodes = Table(
    "attempt_nodes",
    metadata,
    Column("attempt_id", ID, ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True),
    Column("node", String(100), ForeignKey("nodes.name"), primary_key=True),
    Column("node_rank", Integer, nullable=False),
    Column("slots", Json, nullable=False),  # indices of the slots
    Column("state", choice(AttemptNodeState), nullable=False),
    Column("outcome", choice(AttemptOutcome)),
    Column("failure", Record(Failure)),
    Column("token_hash", String(64), unique=True),
    Column("worker", Record(WorkerIdentity)),  # worker that claimed the share
    Column("identity", Record(Identity)),  # identity of the share's supervisor
    Column("sent_at", UtcDateTime),  # time of the last launch message
    Column("claimed_at", UtcDateTime),
    Column("last_report_at", UtcDateTime),
    Column("unreachable_since", UtcDateTime),
    Column("lost_at", UtcDateTime),  # time at which the share became a lost share
    Column("spare_since", UtcDateTime),  # time of reservation as a spare, maybe after the placement
    Column("exit", Record(ExitRecord)),
    Column("acknowledged", Json, nullable=False, server_default="{}"),  # bytes of each spool file
    one_of("state", AttemptNodeState),
    Index(None, "node", "state"),
    # Index of the shares that hold slots, a small part of all stored shares.
    Index("ix_attempt_nodes_holding", "node", sqlite_where=_UNENDED, postgresql_where=_UNENDED),
)

requests = Table(
    "requests",
    metadata,
    Column("id", ID, primary_key=True),
    Column(
        "attempt_id", ID, ForeignKey("attempts.id", ondelete="CASCADE"), nullable=False, index=True
    ),
    Column("request", Record(Request), nullable=False),
    Column("answer", Record(RequestAnswer)),
    Column("created_at", UtcDateTime, nullable=False),
)

nodes = Table(
    "nodes",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("address", String(255), nullable=False),
    Column("hardware", Record(Hardware), nullable=False),
    Column("device", String(8), nullable=False),
    Column("slots", Integer, nullable=False),
    Column("partitions", Json, nullable=False, server_default="[]"),  # slots that are MIG instances
    Column("roots", Json, nullable=False),  # name -> UUID
    Column("worker_labels", Json, nullable=False, server_default="{}"),  # from the worker settings
    Column("set_labels", Json, nullable=False, server_default="{}"),  # from people; they override
    Column("version", String(50), nullable=False),
    Column("protocol", Integer, nullable=False, server_default="2"),  # protocol of the worker
    Column("worker", Record(WorkerIdentity)),  # worker that registered last; others get 409
    Column("drain", Record(Drain)),  # set while no new work is placed because of a drain
    Column("withheld", Json, nullable=False, server_default="{}"),  # withheld slot -> reason
    Column("clock_skew_seconds", Float),  # node's clock minus the database's
    Column("clock_is_wrong", Boolean, nullable=False, server_default="0"),  # withholds all slots
    Column("network_checked_at", UtcDateTime),  # time of the last check by ranks of an attempt
    Column("trusted_since", UtcDateTime),  # end of the last drain; older faults do not count
    Column("inbox", String(8), nullable=False, server_default="broker"),  # source of its messages
    Column("request_id", ID, index=True),  # request for nodes of the node; null if none
    Column("ends_at", UtcDateTime),  # end of the node's allocation; null if unknown
    Column("notice", Text),  # why the machine will end; no new work is placed while set
    Column("sample", Record(NodeSample)),  # sample of the last heartbeat
    Column("registered_at", UtcDateTime, nullable=False, index=True),
    Column("heartbeat_at", UtcDateTime, nullable=False),
    Column("offline_since", UtcDateTime),
    Column("accounts", Json),  # account -> user id, or why unusable; null unless it uses accounts
)

events = Table(
    "events",
    metadata,
    Column("id", ROW_ID, primary_key=True, autoincrement=True),  # ids are in commit order
    Column("at", UtcDateTime, nullable=False),
    Column("kind", String(40), nullable=False),
    Column("job_id", ID),
    Column("attempt", Integer),
    Column("node", String(100)),
    Column("actor", String(100), nullable=False),
    Column("user_name", String(64)),  # user of the actor; null for machines and parts of the system
    Column("message", Text, nullable=False),
    Column("data", Json, nullable=False),
    Column("project", String(80)),  # project of the event, or of its job; null for all others
    Index(None, "job_id", "id"),
    sqlite_autoincrement=True,  # an id is never reused, even if the newest rows are deleted
)

notices = Table(
    "notices",
    metadata,
    Column("job_id", ID, primary_key=True),
    Column("kind", String(40), primary_key=True),
    Column("part", String(200), primary_key=True),  # a rank or an operation; empty: the whole job
    Column("seq", BigInteger, nullable=False),  # order of the changes, see `events/notices.py`
    Column("at", UtcDateTime, nullable=False),
    Column("attempt", Integer),
    Column("node", String(100)),
    Column("data", Json, nullable=False),
    Index(None, "seq"),
    Index(None, "at"),
)

# One row, only for SQLite: `seq` continues from here after the newest notice was deleted.
deleted_notices = Table(
    "deleted_notices",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("last_seq", BigInteger, nullable=False),  # highest `seq` of a deleted notice
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("id", String(200), primary_key=True),
    Column("job_id", ID, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column(
        "attempt_id", ID, ForeignKey("attempts.id", ondelete="CASCADE"), nullable=False, index=True
    ),
    Column("attempt", Integer, nullable=False),
    Column("step", Integer, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("root", String(32), nullable=False),
    Column("path", String(500), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("files", Integer, nullable=False),
    Column("layout", String(100), nullable=False),
    Column("dtype", String(16)),
    Column("save_seconds", Float, nullable=False),
    Column("stall_seconds", Float),  # null until the training loop settled the save
    Column("writers", Integer),
    Column("write_seconds", Float),
    Column("parent_id", String(200)),
    Column("metadata_digest", String(32), nullable=False),
    Column("manifest", Record(StoredManifest), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("verified", Boolean),  # null until the checkpoint was checked
    Column("checked_at", UtcDateTime),
    Column("verification", Record(Verification)),
    Column("pinned_at", UtcDateTime),
    Column("pinned_by", String(100)),
    Column("deleting_since", UtcDateTime),  # time from which no attempt resumes from the checkpoint
    Index(None, "job_id", "attempt", "step"),
)

# An operation outlives its job, because the job's rows may be deleted before the job's files.
operations = Table(
    "operations",
    metadata,
    Column("id", ID, primary_key=True),
    Column("kind", choice(OperationKind), nullable=False),
    Column("state", choice(OperationState), nullable=False),
    Column("job_id", ID, nullable=False),
    Column("job_name", String(80), nullable=False),
    Column("project", String(80)),  # of the job; null for a job that an older version deleted
    Column("checkpoint_id", String(200)),
    Column("actor", String(100), nullable=False),
    *(Column("owner_id", ID), Column("account", String(32))),  # of the job; account on `node`
    Column("reason", Text, nullable=False),
    Column("task", Lazy(OperationTask), nullable=False),
    Column("storage", String(64)),  # UUID of the storage root of the operation
    Column("node", String(100)),
    Column("fence", Integer, nullable=False, default=0),  # number of claims so far
    Column("failing", Record(FailedTries)),  # consecutive failures of a repeated operation
    Column("not_before", UtcDateTime),  # end of the pause before the next try
    Column("sent_at", UtcDateTime),  # time of the last message to the node
    Column("given_at", UtcDateTime),  # time at which the node was chosen
    Column("waiting", Text),  # reason why the operation is still queued
    Column("awaited_since", UtcDateTime),  # time since which the job waits and a node can run it
    Column("last_report_at", UtcDateTime),
    Column("progress", Record(OperationProgress)),
    Column("outcome", Record(OperationOutcome)),
    Column("created_at", UtcDateTime, nullable=False),
    *(Column(name, UtcDateTime) for name in ("started_at", "ended_at")),
    one_of("state", OperationState),
    Index(None, "state", "id"),
    Index(None, "job_id", "id"),
    Index(None, "checkpoint_id", "id"),
    Index(None, "project", "id"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", ID, primary_key=True),
    Column("name", String(100), nullable=False),
    Column("kind", String(8), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),  # SHA-256 of 256 random bits
    Column("node", String(100)),  # node to which the token is bound
    Column("source", String(31)),  # source to which the token is bound
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),
    Column("last_used_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),  # also set when a one-time token is used
    Column("scopes", Json),  # permissions of an API token; NULL without scopes
    Column("user_id", ID),  # user of the token or of its maker; NULL for machines
    Column("maker_token_id", ID, index=True),  # token that made this one; NULL after a password
    # Made after a login through the issuer; it ends when the issuer ends the person's access.
    Column("by_issuer", Boolean, nullable=False, server_default=false()),
    # Set while the issuer confirms the person no more; the token then does not count.
    Column("suspended_at", UtcDateTime),
    Index(None, "user_id", "id"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("actor", String(100), primary_key=True),
    Column("key", String(200), primary_key=True),
    Column("request_digest", String(64), nullable=False),
    Column("job_id", ID, nullable=False),
    Column("created_at", UtcDateTime, nullable=False, index=True),
)

# One row. The time of leases counts only while an API server beats (docs/lifecycle.md, 15).
liveness = Table(
    "liveness",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("beat_at", UtcDateTime, nullable=False),
    Column("up_since", UtcDateTime, nullable=False),
)

# One row: the scheduler that leads (docs/lifecycle-placing.md, 3).
leaders = Table(
    "leaders",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("holder", String(255)),  # name of a process; null while no scheduler leads
    Column("epoch", BigInteger, nullable=False),  # number of takeovers so far
    Column("expires_at", UtcDateTime),  # end of the lead, by the database's clock
)
