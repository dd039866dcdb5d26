"""The tables but those of metrics and logs, in SQLAlchemy Core. Queries are SQL without an ORM."""

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
    text,
)

from server.core.database.column_types import Json, Lazy, Record, UtcDateTime
from server.core.database.schema import ID, ROW_ID, choice, metadata, one_of
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
    Column("spec", Lazy(JobSpec), nullable=False),  # with neither `env` nor `project`
    Column("spec_digest", String(64), nullable=False),
    Column("env", Json),  # the spec's own, encrypted value by value
    Column("state", choice(JobState), nullable=False),
    Column("desired", choice(DesiredState, length=8), nullable=False),
    Column("reason", Text),  # why it waits or ended; null in a group, which has the reason
    Column("priority", Integer, nullable=False),
    Column("pending", Lazy(PendingLaunch)),
    Column("chosen", Lazy(PendingLaunch)),  # the last launch that a person ordered by a resume
    Column("queued_at", UtcDateTime),
    Column("not_before", UtcDateTime),
    Column("demand", String(64)),  # key of its group in the queue; null while it is in none
    Column("lasts_seconds", Float),  # expected duration of its next attempt, where it is known
    Column("lasts_on", String(8)),  # kind of slot on which it is
    Column("lasts_on_name", Text),  # hardware on which it is, by its name
    Column("pace_digest", String(64)),  # of the submitted spec; null in rows of before
    Column("max_runtime_seconds", Float),  # bound of its next attempt
    Column("leave_seconds", Float),  # that ranks of it have to leave, where the spec gives them
    Column("attempt", Integer, nullable=False, default=0),  # number of the newest attempt
    Column("retries_used", Integer, nullable=False, default=0),
    Column("world_size", Integer, nullable=False),
    Column("min_world_size", Integer),  # of an elastic job, as are all three
    Column("max_world_size", Integer),
    Column("spare_nodes", Integer, nullable=False, default=0, server_default="0"),  # wanted
    Column("spare_slots", Integer, nullable=False, default=0, server_default="0"),  # reserved
    Column("preemptible", Boolean, nullable=False, default=True, server_default="1"),
    Column("size_change", Record(SizeChange)),  # the last one that the scheduler decided
    Column("layout", String(100), nullable=False),  # in words
    Column("storage", String(64)),  # UUID of the storage root on which its last attempt ran
    Column("imported_from", String(16)),  # tool that recorded it; null where it runs here
    Column("forked_from", String(200), index=True),  # checkpoint of another job
    Column("fork_parts", Record(tuple[CheckpointPart, ...])),  # what is taken over of it
    Column("fork_step", Integer),  # completed steps with which the job starts
    Column("progress", Record(Progress), nullable=False),
    Column("created_by", String(100), nullable=False),
    Column("token_id", ID),  # that submitted it; null in rows of before
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    *(Column(name, UtcDateTime) for name in ("started_at", "ended_at")),
    one_of("state", JobState),
    one_of("desired", DesiredState),
    Index(None, "state", "id"),
    Index(None, "name", "id"),
    Index(None, "project", "id"),
    Index(  # all that a round of the scheduler looks at, so that it reads few rows of jobs
        *("ix_jobs_queue", "state", "demand", "priority", "queued_at", "id", "project"),
        *("world_size", "spare_slots"),
    ),
    Index("ix_jobs_search", "id", "state", "name", "tags"),  # all that a search looks at
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
    Column("device", String(8), nullable=False, server_default="cpu"),  # kind of its slots
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
    Column("ordered_at", UtcDateTime),  # when it was last ordered to end
    # Code of a job or a person ran in it: nothing of it is kept for other jobs. Never taken back.
    Column("tainted", Boolean, nullable=False, default=False, server_default="1"),
    Column("pace_digest", String(64)),  # what its pace follows from; null in rows of before
    Column("expected_end_at", UtcDateTime),  # as of its placement, where that was known
    Column("runs_until", UtcDateTime),  # when it saves and leaves, where its time is bounded
    # Backfilled on an estimate alone: jobs that waited then preempt it.
    Column("gives_way", Boolean, nullable=False, default=False, server_default="0"),
    Column("preempted", Text),  # why it is to save and leave although its job is to run on
    Column("provenance", Json),
    Column("continuity", Record(Continuity)),
    Column("save_failed", Record(SaveFailed)),
    Column("rank_times", Record(RankTimes)),  # of the last window
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
    Column("slots", Json, nullable=False),  # indices
    Column("state", choice(AttemptNodeState), nullable=False),
    Column("outcome", choice(AttemptOutcome)),
    Column("failure", Record(Failure)),
    Column("token_hash", String(64), unique=True),
    Column("worker", Record(WorkerIdentity)),  # that claimed it
    Column("identity", Record(Identity)),  # of its supervisor
    Column("sent_at", UtcDateTime),  # when the last launch message was sent
    Column("claimed_at", UtcDateTime),
    Column("last_report_at", UtcDateTime),
    Column("unreachable_since", UtcDateTime),
    Column("lost_at", UtcDateTime),  # since when its attempt does not wait for its end
    Column("spare_since", UtcDateTime),  # of a spare, which may be reserved after the placement
    Column("exit", Record(ExitRecord)),
    Column("acknowledged", Json, nullable=False, server_default="{}"),  # bytes of each spool file
    one_of("state", AttemptNodeState),
    Index(None, "node", "state"),
    # What holds slots, among all shares there ever were.
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
    Column("worker_labels", Json, nullable=False, server_default="{}"),  # from its settings
    Column("set_labels", Json, nullable=False, server_default="{}"),  # by people, which win
    Column("version", String(50), nullable=False),
    Column("protocol", Integer, nullable=False, server_default="2"),  # of its worker
    Column("worker", Record(WorkerIdentity)),  # that registered; the others get 409
    Column("drain", Record(Drain)),  # nothing new is placed while this is set
    Column("withheld", Json, nullable=False, server_default="{}"),  # slot -> why it is not offered
    Column("clock_skew_seconds", Float),  # its clock less the database's, when it was last compared
    Column("clock_is_wrong", Boolean, nullable=False, server_default="0"),  # all slots are withheld
    Column("network_checked_at", UtcDateTime),  # by ranks of an attempt with several nodes
    Column("trusted_since", UtcDateTime),  # end of the last drain: older faults count no more
    Column("inbox", String(8), nullable=False, server_default="broker"),  # whence its messages come
    Column("request_id", ID, index=True),  # of the allocation that it is in, if any
    Column("ends_at", UtcDateTime),  # end of that allocation, where one is known
    Column("notice", Text),  # nor while this is set: the machine is about to go away
    Column("sample", Record(NodeSample)),  # of the last heartbeat
    Column("registered_at", UtcDateTime, nullable=False, index=True),
    Column("heartbeat_at", UtcDateTime, nullable=False),
    Column("offline_since", UtcDateTime),
)

events = Table(
    "events",
    metadata,
    Column("id", ROW_ID, primary_key=True, autoincrement=True),  # in commit order
    Column("at", UtcDateTime, nullable=False),
    Column("kind", String(40), nullable=False),
    Column("job_id", ID),
    Column("attempt", Integer),
    Column("node", String(100)),
    Column("actor", String(100), nullable=False),
    Column("message", Text, nullable=False),
    Column("data", Json, nullable=False),
    Index(None, "job_id", "id"),
    sqlite_autoincrement=True,  # an id is never given again, also when the newest rows are deleted
)

notices = Table(
    "notices",
    metadata,
    Column("job_id", ID, primary_key=True),
    Column("kind", String(40), primary_key=True),
    Column(
        "part", String(200), primary_key=True
    ),  # a rank or an operation; empty for all of the job
    Column("seq", BigInteger, nullable=False),  # order of the changes, see `events/notices.py`
    Column("at", UtcDateTime, nullable=False),
    Column("attempt", Integer),
    Column("node", String(100)),
    Column("data", Json, nullable=False),
    Index(None, "seq"),
    Index(None, "at"),
)

# One row, for SQLite alone: `seq` goes on from here when the newest notice was deleted.
deleted_notices = Table(
    "deleted_notices",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("last_seq", BigInteger, nullable=False),  # the highest of a deleted notice
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
    Column("stall_seconds", Float),  # null until the training loop has taken note of the end
    Column("writers", Integer),
    Column("write_seconds", Float),
    Column("parent_id", String(200)),
    Column("metadata_digest", String(32), nullable=False),
    Column("manifest", Record(StoredManifest), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("verified", Boolean),  # null until it was checked
    Column("checked_at", UtcDateTime),
    Column("verification", Record(Verification)),
    Column("pinned_at", UtcDateTime),
    Column("pinned_by", String(100)),
    Column("deleting_since", UtcDateTime),  # nothing goes on from it any more
    Index(None, "job_id", "attempt", "step"),
)

# Outlives the rows that it was made of: the job may be deleted before its files are.
operations = Table(
    "operations",
    metadata,
    Column("id", ID, primary_key=True),
    Column("kind", choice(OperationKind), nullable=False),
    Column("state", choice(OperationState), nullable=False),
    Column("job_id", ID, nullable=False),
    Column("job_name", String(80), nullable=False),
    Column("checkpoint_id", String(200)),
    Column("actor", String(100), nullable=False),
    Column("reason", Text, nullable=False),
    Column("task", Lazy(OperationTask), nullable=False),
    Column("storage", String(64)),  # UUID of the storage root
    Column("node", String(100)),
    Column("fence", Integer, nullable=False, default=0),  # claims so far
    Column("failing", Record(FailedTries)),  # its last tries, of a kind that is repeated
    Column("not_before", UtcDateTime),  # the pause before the next one
    Column("sent_at", UtcDateTime),  # when the last message was sent
    Column("given_at", UtcDateTime),  # when the node was chosen
    Column("waiting", Text),  # why it has not begun, while it is queued
    Column("awaited_since", UtcDateTime),  # since when its job waits for it, though it could run
    Column("last_report_at", UtcDateTime),
    Column("progress", Record(OperationProgress)),
    Column("outcome", Record(OperationOutcome)),
    Column("created_at", UtcDateTime, nullable=False),
    *(Column(name, UtcDateTime) for name in ("started_at", "ended_at")),
    one_of("state", OperationState),
    Index(None, "state", "id"),
    Index(None, "job_id", "id"),
    Index(None, "checkpoint_id", "id"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", ID, primary_key=True),
    Column("name", String(100), nullable=False),
    Column("kind", String(8), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),  # SHA-256 of 256 random bits
    Column("node", String(100)),  # node to which it is bound
    Column("source", String(31)),  # source to which it is bound
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),
    Column("last_used_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),  # also set when a one-time token was used
)

sessions = Table(
    "sessions",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("token_id", ID, ForeignKey("tokens.id", ondelete="CASCADE"), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
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

# A window of a minute for each address, of all API servers.
failed_logins = Table(
    "failed_logins",
    metadata,
    Column("address", String(100), primary_key=True),  # of IPv6 the /64
    Column("begin_at", UtcDateTime, nullable=False),
    Column("failures", Integer, nullable=False),
)

# One row: while an API server beats, lease time counts (docs/lifecycle.md, 15).
liveness = Table(
    "liveness",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("beat_at", UtcDateTime, nullable=False),
    Column("up_since", UtcDateTime, nullable=False),
)

# One row: the scheduler that leads (docs/lifecycle.md, 3).
leaders = Table(
    "leaders",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("holder", String(255)),  # a process in words; null while the role is free
    Column("epoch", BigInteger, nullable=False),  # how often it was taken
    Column("expires_at", UtcDateTime),  # by the clock of the database
)
