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
from trainyard.run.fact_types.fact_records import RunFacts
from trainyard.run.records import ExitRecord, Heartbeat, Request, RequestAnswer
from trainyard.spec.job import JobSpec

PROTOCOL = 3
"""Version of the messages between workers and the server."""
OLDEST_PROTOCOL = 3
"""Oldest version that the server serves: the one before `PROTOCOL`, once a release had it."""

MAX_REPORT_BYTES = 4 * 1024 * 1024
"""Largest report body that the server reads."""

MAX_CHUNK_BYTES = 4 * 1024 * 1024
"""Limit of one chunk in decompressed bytes; all chunks of a report may have four times as many."""
MAX_ASKED = 500
"""Most jobs in one `EndedJobsRequest`."""

NodeName = Annotated[str, Field(pattern=NAME, max_length=100, examples=["gpu-01"])]
EVENT_FILES = "event_files"
"""Metrics that a supervisor reads from a program's event files."""
ARTIFACTS = "artifacts"
"""`ArtifactLine`s of the supervisor of each node."""
SPOOL_FILE_PATTERN = rf"^(metrics|events|{EVENT_FILES}|{ARTIFACTS}|(metrics|log):\d{{1,9}})$"


Isolation = Literal["user", "namespace", "none"]


class Hardware(RecordModel):
    """Hardware of a node."""

    device: Literal["cpu", "cuda"]
    """Kind of its slots."""
    slots: Annotated[int, Field(ge=1, le=1024)]
    """Slots that it offers."""
    device_name: str
    """Name of the GPU or CPU."""
    device_memory_bytes: Annotated[int, Field(ge=0)]
    """Memory of one slot: of one GPU, or of the host divided by its slots."""
    cores: Annotated[int, Field(ge=1)]
    """CPU cores."""
    memory_bytes: Annotated[int, Field(ge=0)]
    """Memory of the host."""
    isolation: Isolation = "none"
    """Isolation of ranks from the node's own files. `user`: a Unix user for each attempt.
    `namespace`: the same with users of a user namespace. `none`: code of a job can read the node's
    token."""
    accelerators: Annotated[tuple[Accelerator, ...], Field(max_length=MAX_ACCELERATORS)] = ()
    """The device of each slot, in the order of the slots; empty on a node with CPU slots, and from
    a worker that does not list devices."""
    driver: Annotated[Text, Field(max_length=100)] | None = None
    """Version of the accelerators' driver."""


class WorkerIdentity(RecordModel):
    """Identity of the worker that serves a node: its data folder and the boot of its kernel.

    No two running workers share it: a running worker holds the lock of its folder.
    """

    folder: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Id of the data folder; a copy of the folder has another id."""
    boot_id: Annotated[str, Field(pattern=r"^[0-9a-f-]{8,64}$")]
    """Boot id of the kernel."""


class Registration(RecordModel):
    """Registration of a node, with a join token the first time and its own token afterwards."""

    protocol: int
    """`PROTOCOL` of the sender."""
    node: NodeName
    """Its name; a node token is bound to it."""
    address: Annotated[str, Field(min_length=1, max_length=255)]
    """Host name or address at which the other nodes of an attempt reach it."""
    hardware: Hardware
    """Its hardware."""
    roots: dict[str, str]
    """UUID of each storage root that it sees, by name."""
    worker: WorkerIdentity
    """The sender."""
    version: str
    """Version of Trainyard on the node."""
    labels: Labels = Field(default_factory=dict)
    """Labels from the worker's settings."""
    inbox: Literal["broker", "server"] = "broker"
    """Source of its messages: its queue at the broker, or long polls of the server."""
    pilot: PilotIdentity | None = None
    """Identity of the pilot if the worker is one; absent outside an allocation of a source."""


class RegistrationReply(RecordModel):
    """The answer to a registration."""

    node_token: str | None
    """Token of the node, sent once when it joins; absent if it registered with its own token."""
    heartbeat_seconds: float
    """Period in which the worker sends heartbeats."""
    slots: tuple[str, ...] = ()
    """UUID of the device of each slot, if the server's order differs from the registration's:
    while attempts hold slots of this node, slots keep their numbers."""


class Identity(RecordModel):
    """Identity of a supervisor process: no other process ever has the same."""

    boot_id: str
    """Boot id of the kernel."""
    pid_namespace: str
    """Inode of the PID namespace."""
    pid: int
    """Process id."""
    start_time: int
    """Start time in clock ticks after boot."""


class ClockReading(RecordModel):
    """Comparison of a node's clock with the database's clock, from one heartbeat."""

    skew_seconds: Annotated[float, Field(allow_inf_nan=False)]
    """The node's clock minus the database's, in the middle of the round trip."""
    error_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Half of the round trip: the largest error of `skew_seconds`."""


class NodeHeartbeat(RecordModel):
    """Heartbeat of a worker, with the supervisors that it watches."""

    protocol: int
    """`PROTOCOL` of the sender."""
    node: NodeName
    """Its name."""
    supervised: tuple[str, ...] = ()
    """Ids of attempts with a live supervisor on this node."""
    worker: WorkerIdentity
    """The sender."""
    gone: tuple[str, ...] = ()
    """Ids of attempts that this node claimed and that have neither a process in the sender's data
    folder nor a last report. The server decides whether this proves their end
    (docs/lifecycle-failures.md, 48)."""
    notice: Annotated[Text, Field(min_length=1, max_length=200)] | None = None
    """Reason for the machine's announced shutdown; absent without one."""
    sample: NodeSample | None = None
    """State of the node; absent if the worker takes no samples."""
    clock: ClockReading | None = None
    """The node's clock at the last answered heartbeat; absent before the first answer."""
    ends_at: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """End of the node's allocation, Unix time; absent if unknown."""


class NodeHeartbeatReply(RecordModel):
    """The answer to a worker's heartbeat."""

    expected: tuple[str, ...]
    """Ids of live attempts that this node has claimed according to the server; the worker checks
    which of them have ended."""
    time: float
    """The database's clock, which all servers share, at this answer, Unix time."""


class EndedJobsRequest(RecordModel):
    """Jobs with run directories on a node."""

    protocol: int
    """`PROTOCOL` of the sender."""
    node: NodeName
    """Its name."""
    jobs: Annotated[tuple[Annotated[str, Field(max_length=100)], ...], Field(max_length=MAX_ASKED)]
    """Ids of jobs."""


class EndedJobsReply(RecordModel):
    """Jobs that no longer need their run directories."""

    ended: tuple[str, ...]
    """Ids of the jobs that have ended or are unknown."""


class Claim(RecordModel):
    """Claim of a node's share of an attempt: compare-and-set, once."""

    protocol: int
    """`PROTOCOL` of the sender."""
    node: NodeName
    """Its name."""
    worker: WorkerIdentity
    """The sender."""
    secret: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{43}$")] | None = None
    """256 random bits in base64, new for each launch; the token for reports is derived from them.
    A claim that is repeated after a lost answer has the same secret, and is granted again. Absent
    in claims of operations."""


class ClaimReply(RecordModel):
    """All parameters that a supervisor needs to launch its share."""

    spec: JobSpec
    """The job's spec."""
    attempt: AttemptSpec
    """The attempt, without roots: each node has its own."""
    attempt_token: str
    """Token for the reports of this attempt on this node."""
    node_rank: int
    """Position of the node in the attempt."""
    rendezvous: str
    """`host:port` of the rendezvous; a loopback address on a single node."""
    addresses: tuple[str, ...] = ()
    """Address of each node of the attempt, by node rank; empty for a single node."""
    lease_seconds: float
    """Silence after which the node counts as unreachable."""
    report_seconds: float
    """Longest pause between two reports."""


class Chunk(RecordModel):
    """Bytes of one file of the run directory; the server stores them once, by their offsets.

    The server drops bytes that it already has. After a gap it stores nothing, and its reply names
    the offset at which to continue. It rejects a whole report (422) with a damaged chunk, a
    partial line or an unreadable line. Except in logs, an unreadable line that is *alone* in its
    chunk is skipped and acknowledged, with an event. So after a 422 a sender sends these files
    line by line until it is past the fault, and no line blocks it for ever.
    """

    file: Annotated[str, Field(pattern=SPOOL_FILE_PATTERN)]
    """`metrics`, `events`, `metrics:<process of a program>`, `event_files` (metrics from them),
    `artifacts` (artifacts that a node's processes logged), or `log:<global rank>`."""
    start: Annotated[int, Field(ge=0)]
    """Offset of the first byte."""
    end: Annotated[int, Field(ge=0)]
    """Offset after the last byte; all files except logs end with a whole line."""
    content: str
    """The bytes, zlib-compressed and in base64."""


class Report(RecordModel):
    """Report of a supervisor: everything new since its last acknowledged report."""

    protocol: int
    """`PROTOCOL` of the sender."""
    node: NodeName
    """Its node."""
    identity: Identity
    """Its process."""
    heartbeat: Heartbeat | None = None
    """Last heartbeat of the trainer."""
    rank_pids: dict[int, int] = Field(default_factory=dict)
    """Process id of each global rank on this node, once known."""
    provenance: dict[str, object] | None = None
    """`provenance.json`, once."""
    facts: RunFacts | None = None
    """`facts.json` of a program if it has changed."""
    chunks: Annotated[tuple[Chunk, ...], Field(max_length=256)] = ()
    """New bytes of the run directory's files."""
    answers: dict[str, RequestAnswer] = Field(default_factory=dict)
    """Answers to requests, by request id."""
    unusable: UnusableDevices = Field(default_factory=dict)
    """Devices of the share that were unusable at its launch."""
    exit: ExitRecord | None = None
    """The last report: everything has ended, and every byte was acknowledged or dropped."""


class PendingRequest(RecordModel):
    """A request that the trainer has not answered yet."""

    id: str
    """Id of the request."""
    request: Request
    """Kind of the request."""


class ReportReply(RecordModel):
    """Reply to a report: desired state, requests and stored offsets."""

    acknowledged: dict[str, int]
    """Stored bytes (end offset) of each file in the report."""
    desired: DesiredState
    """Desired state of the attempt; repeated in every reply until it ends."""
    requests: tuple[PendingRequest, ...] = ()
    """Requests without an answer."""
    shells: tuple[ShellOrder, ...] = ()
    """Shell commands of people that the supervisor has not started."""


class LaunchMessage(RecordModel):
    """The Celery message of a launch: ids only. It grants nothing; only a claim does."""

    attempt_id: str
    """Id of the attempt."""
    node: NodeName
    """Node that must claim it."""


class OperationMessage(RecordModel):
    """The Celery message of an operation: ids only. It grants nothing: only a claim does."""

    operation_id: str
    """Id of the operation."""
    node: NodeName
    """Node that must claim it."""


class OperationClaimReply(RecordModel):
    """All parameters that a node needs to execute an operation."""

    task: OperationTask
    """What to do."""
    storage: str | None
    """UUID of the storage root; any when absent."""
    fence: int
    """Fencing number of this claim; reports with a lower one are ignored."""
    report_seconds: float
    """Longest pause between two reports."""


class OperationReport(RecordModel):
    """Report of an operation's supervisor; it renews the lease."""

    protocol: int
    """`PROTOCOL` of the sender."""
    node: NodeName
    """Its node."""
    fence: Annotated[int, Field(ge=1, lt=2**31)]
    """Number of its claim."""
    progress: OperationProgress | None = None
    """Progress of the operation."""
    outcome: OperationOutcome | None = None
    """The last report: how it ended."""


class OperationReportReply(RecordModel):
    """The answer to an operation's report."""

    ended: bool
    """Whether the server has stored the end."""
