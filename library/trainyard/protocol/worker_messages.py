"""Messages between workers, supervisors and the server."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.labels import Labels
from trainyard.base.model_base import RecordModel, Text
from trainyard.base.names import NAME
from trainyard.protocol.attempt import AttemptSpec
from trainyard.protocol.node_samples import (
    MAX_ACCELERATORS,
    Accelerator,
    NodeSample,
    UnusableDevices,
)
from trainyard.protocol.node_sources.messages import PilotIdentity
from trainyard.protocol.operations import OperationOutcome, OperationProgress, OperationTask
from trainyard.protocol.shell_sessions.messages import ShellOrder
from trainyard.protocol.states import DesiredState
from trainyard.protocol.user_accounts.views import UnixAccount
from trainyard.run.fact_types.fact_records import RunFacts
from trainyard.run.records import ExitRecord, Heartbeat, Request, RequestAnswer
from trainyard.spec.job import JobSpec

PROTOCOL = 5
"""Version of the messages between workers and the server."""
OLDEST_PROTOCOL = 4
"""Oldest version of workers that the server accepts: the version before `PROTOCOL` if a release
contained that version, otherwise `PROTOCOL`."""
SECRETS_PROTOCOL = 5
"""First version of workers that take secrets."""
OLDEST_REPORTS = 3
"""Oldest version of reports that the server accepts from supervisors. The supervisor of a running
attempt outlives an upgrade of server and worker. Only other messages changed since this version."""

MAX_REPORT_BYTES = 4 * 1024 * 1024
"""Maximum size of a report's body, in bytes."""

MAX_CHUNK_BYTES = 4 * 1024 * 1024
"""Maximum decompressed size of one chunk, in bytes. All chunks of a report together may be four
times as large."""
MAX_ASKED = 500
"""Maximum number of jobs in one `EndedJobsRequest`."""

NodeName = Annotated[str, Field(pattern=NAME, max_length=100, examples=["gpu-01"])]
EVENT_FILES = "event_files"
"""Name of the file into which a supervisor writes the metrics from a program's event files."""
ARTIFACTS = "artifacts"
"""Name of the file with `ArtifactLine`s, which each node's supervisor writes."""
SPOOL_FILE_PATTERN = rf"^(metrics|events|{EVENT_FILES}|{ARTIFACTS}|(metrics|log):\d{{1,9}})$"


Isolation = Literal["user", "namespace", "owner", "none"]
MAX_ACCOUNTS = 1000
"""Maximum number of Unix accounts that a node looks up for the server."""
UNLESS_NULL = Field(exclude_if=lambda value: value is None)
"""Omits a null field, because workers and servers of version 1.0 refuse unknown fields."""
AccountAnswer = Annotated[int, Field(strict=True, ge=1)] | Annotated[Text, Field(max_length=200)]
"""User id of a Unix account on a node, or why it is unusable there, such as `has no account`."""


class Hardware(RecordModel):
    """Hardware of a node."""

    device: Literal["cpu", "cuda"]
    """Kind of the node's slots."""
    slots: Annotated[int, Field(ge=1, le=1024)]
    """Number of slots that the node offers."""
    device_name: str
    """Name of the GPU or CPU."""
    device_memory_bytes: Annotated[int, Field(ge=0)]
    """Memory of the smallest slot: of a GPU or a MIG instance; on CPUs, the host's memory divided
    by the number of slots."""
    cores: Annotated[int, Field(ge=1)]
    """Number of CPU cores that the worker may use."""
    memory_bytes: Annotated[int, Field(ge=0)]
    """Memory of the host, or the worker's cgroup limit if it is lower."""
    isolation: Isolation = "none"
    """Isolation of a node's files from ranks. `user`: each attempt runs as a Unix user of its own.
    `namespace`: as `user`, but with the users of a user namespace. `owner`: each attempt runs under
    the Unix account of the job's owner. `none`: a job's code can read the node's token."""
    accelerators: Annotated[tuple[Accelerator, ...], Field(max_length=MAX_ACCELERATORS)] = ()
    """Device of each slot, in the order of the slots. Empty on a node with CPU slots, or if the
    worker does not list devices."""
    driver: Annotated[Text, Field(max_length=100)] | None = None
    """Version of the driver for the accelerators."""


class WorkerIdentity(RecordModel):
    """Identity of a worker: its data folder and the boot of its kernel.

    No two running workers have the same identity, because a running worker locks its folder.
    """

    folder: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Id of the data folder; a copy of the folder gets another id."""
    boot_id: Annotated[str, Field(pattern=r"^[0-9a-f-]{8,64}$")]
    """Boot id of the kernel."""


class Registration(RecordModel):
    """Registration of a node: at first with a join token, later with the node's own token."""

    protocol: int
    """Version of the protocol (`PROTOCOL`) of the sender."""
    node: NodeName
    """Name of the node; its node token is valid for this name only."""
    address: Annotated[str, Field(min_length=1, max_length=255)]
    """Host name or address at which other nodes of an attempt reach the node."""
    hardware: Hardware
    """Hardware of the node."""
    roots: dict[str, str]
    """UUID of each storage root that the node sees, by name of the root."""
    worker: WorkerIdentity
    """Identity of the worker that sends the registration."""
    version: str
    """Version of Trainyard on the node."""
    labels: Labels = Field(default_factory=dict)
    """Labels from the worker's settings."""
    inbox: Literal["broker", "server"] = "broker"
    """Way in which messages reach the worker: from a queue at the broker, or by long polls to the
    server."""
    pilot: PilotIdentity | None = None
    """Identity of the pilot; absent if the worker is no pilot in an allocation of a source."""


class RegistrationReply(RecordModel):
    """Reply to a registration."""

    node_token: str | None
    """Token of the node; absent if the node registered with its own token."""
    heartbeat_seconds: float
    """Interval at which the worker sends heartbeats."""
    slots: tuple[str, ...] = ()
    """UUID of each slot's device, in the order of the slots; empty if this is the order in the
    registration. Slots keep their numbers while attempts hold slots of the node."""


class Identity(RecordModel):
    """Identity of a supervisor process, which no other process ever shares."""

    boot_id: str
    """Boot id of the kernel."""
    pid_namespace: str
    """Inode of the PID namespace."""
    pid: int
    """Process id."""
    start_time: int
    """Start time in clock ticks after boot."""


class ClockReading(RecordModel):
    """Comparison of a node's clock and the database's clock during one heartbeat."""

    skew_seconds: Annotated[float, Field(allow_inf_nan=False)]
    """Time of the node's clock minus time of the database's clock, in the middle of the round
    trip."""
    error_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Half of the round-trip time, which is the maximum error of `skew_seconds`."""


class NodeHeartbeat(RecordModel):
    """Heartbeat of a worker, with the supervisors on its node."""

    protocol: int
    """Version of the protocol (`PROTOCOL`) of the sender."""
    node: NodeName
    """Name of the node."""
    supervised: tuple[str, ...] = ()
    """Ids of attempts with a live supervisor on this node."""
    worker: WorkerIdentity
    """Identity of the worker that sends the heartbeat."""
    gone: tuple[str, ...] = ()
    """Ids of attempts that this node claimed, but that left neither a process nor a last report in
    the worker's data folder. The server decides whether this proves that the attempts ended on this
    node (docs/lifecycle-failures.md, 48)."""
    notice: Annotated[Text, Field(min_length=1, max_length=200)] | None = None
    """Announced reason for a shutdown of the machine; absent without one."""
    sample: NodeSample | None = None
    """State of the node; absent if the worker takes no samples."""
    clock: ClockReading | None = None
    """Comparison of the clocks during the last heartbeat that received a reply; absent before the
    first reply."""
    ends_at: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """End of the node's allocation, as Unix time; absent if unknown."""
    accounts: Annotated[
        Annotated[dict[UnixAccount, AccountAnswer], Field(max_length=MAX_ACCOUNTS)] | None,
        UNLESS_NULL,
    ] = None
    """Answers about the Unix accounts in the last reply, by name; null unless the node's isolation
    is `owner`."""


class NodeHeartbeatReply(RecordModel):
    """Reply to a worker's heartbeat."""

    expected: tuple[str, ...]
    """Ids of live attempts that this node has claimed, as stored by the server. The worker checks
    which of these attempts have ended."""
    time: float
    """Unix time of the database's clock at this reply; all servers share this clock."""
    accounts: Annotated[tuple[str, ...] | None, UNLESS_NULL] = None
    """Unix accounts to look up; the next heartbeat has the answers. Null unless the node's
    isolation is `owner`."""


class EndedJobsRequest(RecordModel):
    """Jobs with a run directory on a node; the reply contains the jobs that have ended."""

    protocol: int
    """Version of the protocol (`PROTOCOL`) of the sender."""
    node: NodeName
    """Name of the node."""
    jobs: Annotated[tuple[Annotated[str, Field(max_length=100)], ...], Field(max_length=MAX_ASKED)]
    """Ids of jobs."""


class EndedJobsReply(RecordModel):
    """Jobs that no longer need their run directories on the node."""

    ended: tuple[str, ...]
    """Ids of the jobs that have ended or are unknown."""


class Claim(RecordModel):
    """Claim of an operation, or of a node's share of an attempt; granted to one sender only."""

    protocol: int
    """Version of the protocol (`PROTOCOL`) of the sender."""
    node: NodeName
    """Name of the node."""
    worker: WorkerIdentity
    """Identity of the worker that sends the claim."""
    secret: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{43}$")] | None = None
    """256 random bits in base64, new for each launch; the token for reports is derived from these
    bits. If the reply to a claim is lost, the worker repeats the claim with the same secret, and
    the server grants the claim again. Absent in a claim of an operation."""


class ClaimReply(RecordModel):
    """All parameters that a supervisor needs to launch its share."""

    spec: JobSpec
    """Spec of the job, with references in place of secrets."""
    # An older worker does not know the field.
    secrets: Annotated[dict[str, str], Field(exclude_if=lambda secrets: not secrets)] = Field(
        default_factory=dict, repr=False
    )
    """Values of the secrets to which the spec refers, by variable."""
    attempt: AttemptSpec
    """Attempt, without the paths of storage roots, because these paths differ between nodes."""
    attempt_token: str
    """Token for reports on this attempt from this node."""
    node_rank: int
    """Position of the node in the attempt."""
    rendezvous: str
    """`host:port` of the rendezvous; a loopback address if the attempt has a single node."""
    addresses: tuple[str, ...] = ()
    """Address of each node of the attempt, by node rank; empty if the attempt has a single node."""
    lease_seconds: float
    """Time without a report after which the node counts as unreachable."""
    report_seconds: float
    """Maximum time between two reports."""
    account: Annotated[str | None, UNLESS_NULL] = None
    """Unix account of the job's owner; null without one, and unless the isolation is `owner`."""


class Chunk(RecordModel):
    """Bytes of one file in the run directory; the server stores each byte once, by its offset.

    The server ignores bytes that it already has. After a gap the server stores nothing, and its
    reply contains the offset at which the sender must continue. The server rejects a whole report
    (422) if a chunk is damaged or has a partial or unreadable line. There are two exceptions, in
    which the server skips and acknowledges an unreadable line, and records an event: in all files
    except logs if the line is *alone* in its chunk, and always in `metrics:<n>` and `artifacts`.
    Therefore, after a 422, the sender sends such files with one line per chunk until it has passed
    the fault.
    """

    file: Annotated[str, Field(pattern=SPOOL_FILE_PATTERN)]
    """Name of the file: `metrics`, `events`, `metrics:<process of a program>`, `event_files`
    (metrics from event files), `artifacts` (artifacts that processes of the node logged), or
    `log:<global rank>`."""
    start: Annotated[int, Field(ge=0)]
    """Offset of the first byte."""
    end: Annotated[int, Field(ge=0)]
    """Offset after the last byte; in all files except logs, the last byte ends a line."""
    content: str
    """Bytes of the file, compressed with zlib and encoded in base64."""


class Report(RecordModel):
    """Report of a supervisor, with everything that is new since its last acknowledged report."""

    protocol: int
    """Version of the protocol (`PROTOCOL`) of the sender."""
    node: NodeName
    """Name of the supervisor's node."""
    identity: Identity
    """Identity of the supervisor process."""
    heartbeat: Heartbeat | None = None
    """Last heartbeat of the trainer."""
    rank_pids: dict[int, int] = Field(default_factory=dict)
    """Process ids of the ranks on this node, by global rank, once known."""
    provenance: dict[str, object] | None = None
    """Content of `provenance.json`; sent once."""
    facts: RunFacts | None = None
    """Content of a program's `facts.json`, if it has changed."""
    chunks: Annotated[tuple[Chunk, ...], Field(max_length=256)] = ()
    """New bytes of files in the run directory."""
    answers: dict[str, RequestAnswer] = Field(default_factory=dict)
    """Responses of the trainer to requests, by id of the request."""
    unusable: UnusableDevices = Field(default_factory=dict)
    """Devices of the share that were unusable at the launch."""
    exit: ExitRecord | None = None
    """End of the share; only in the last report, which the supervisor sends after all processes
    have ended, and after all bytes were acknowledged or dropped."""


class PendingRequest(RecordModel):
    """A request without a response of the trainer."""

    id: str
    """Id of the request."""
    request: Request
    """Kind and parameters of the request."""


class ReportReply(RecordModel):
    """Reply to a report: desired state, open requests and stored offsets."""

    acknowledged: dict[str, int]
    """End offset of the stored bytes of each file in the report. After the end or loss of the
    share, all bytes except those of logs are dropped, and still count here."""
    desired: DesiredState
    """Desired state of the attempt; every reply contains it until the attempt ends."""
    requests: tuple[PendingRequest, ...] = ()
    """Requests without a response of the trainer."""
    shells: tuple[ShellOrder, ...] = ()
    """Commands of people that the supervisor has not started yet."""


class LaunchMessage(RecordModel):
    """Celery message for a launch, with ids only. The message gives no right to act; only a claim
    does."""

    attempt_id: str
    """Id of the attempt."""
    node: NodeName
    """Node that must claim its share of the attempt."""


class OperationMessage(RecordModel):
    """Celery message for an operation, with ids only. The message gives no right to act; only a
    claim does."""

    operation_id: str
    """Id of the operation."""
    node: NodeName
    """Node that must claim the operation."""


class OperationClaimReply(RecordModel):
    """All parameters that a node needs to execute an operation."""

    task: OperationTask
    """Input of the operation."""
    storage: str | None
    """Required UUID of the storage root; when absent, any UUID is accepted."""
    fence: int
    """Fencing number of this claim; the server refuses reports with another number."""
    report_seconds: float
    """Maximum time between two reports."""
    account: Annotated[str | None, UNLESS_NULL] = None
    """Unix account of the job's owner; null without one, and unless the isolation is `owner`."""


class OperationReport(RecordModel):
    """Report of an operation's supervisor; it also renews the lease of the operation."""

    protocol: int
    """Version of the protocol (`PROTOCOL`) of the sender."""
    node: NodeName
    """Name of the supervisor's node."""
    fence: Annotated[int, Field(ge=1, lt=2**31)]
    """Fencing number of the supervisor's claim."""
    progress: OperationProgress | None = None
    """Progress of the operation."""
    outcome: OperationOutcome | None = None
    """Result of the operation; only in the last report."""


class OperationReportReply(RecordModel):
    """Reply to an operation's report."""

    ended: bool
    """Whether the operation has ended according to the server."""
