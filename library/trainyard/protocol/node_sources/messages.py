"""Messages between the server, the provisioners of nodes, and the pilots on nodes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from trainyard.base.ids import ID_PATTERN
from trainyard.base.labels import Labels
from trainyard.base.model_base import RecordModel, Text
from trainyard.base.names import NAME
from trainyard.spec.storage_uri import ROOT_PATTERN

SourceKind = Literal["slurm", "kubernetes", "ssh"]
EngineState = Literal["unknown", "pending", "running", "completing", "ended"]
"""State of a job in the engine. `unknown` proves nothing: the call to the engine failed, the engine
has forgotten the job, or the engine keeps no records of ended jobs."""
Purpose = Literal["nodes", "check"]
"""Purpose of a request. Pilots for `nodes` serve as nodes; the single pilot for `check` checks the
source and then ends."""

SOURCE_LABEL = "source"
"""Key of a label that each node of a source has; the value is the name of the source."""
MAX_NODES = 256
"""Maximum number of nodes in one request."""
MAX_JOBS = 10_000
"""Maximum number of jobs in one report, and maximum number of ids in its `earlier`."""
MAX_CANCELS = 1000
"""Maximum number of jobs to cancel in the reply to a report; the next reply has the rest."""
USEFUL_SECONDS = 300.0
"""Minimum useful time on a node, from placement until the attempt must leave the allocation. Start
and save alone take minutes."""
SOURCE_NAME = r"^[a-z][a-z0-9-]{0,30}$"
SourceName = Annotated[str, Field(pattern=SOURCE_NAME, examples=["slurm-a100"])]
"""Name of a source, and prefix of the names of its nodes."""
RequestId = Annotated[str, Field(pattern=ID_PATTERN)]
"""Id of a request for nodes, stored before the engine is called. The engine's job is named
`trainyard-<id>`, so that the provisioner can find the job after a repeated or unanswered call."""
SecretHash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Reason = Annotated[Text, Field(max_length=2000)]
UnixTime = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LONGEST_SECONDS = 1e8
"""Maximum of a duration in the settings: three years. A date plus this duration is always valid."""
MAX_NODE_HOURS = 1e9
"""Largest legal limit on node-hours per month, enough for more than 100,000 nodes."""


def _printable(text: str) -> str:
    for place, character in enumerate(text):
        if not character.isprintable():
            raise ValueError(f"unprintable character {character!r} at position {place}")
    return text


Word = Annotated[str, AfterValidator(_printable)]
"""Name from an engine, without line breaks, because terminals and pages show it on one line."""


def job_name(request_id: str) -> str:
    """Return the engine's name for a request's job."""
    return f"trainyard-{request_id}"


def pilot_name(source: str, request_id: str, index: int) -> str:
    """Return the node name of the pilot with this index in a request."""
    return f"{source}-{request_id}-{index}"


class NodeShape(RecordModel):
    """Expected resources of each node of a source."""

    slots: Annotated[int, Field(ge=1, le=1024)]
    """Number of slots."""
    device: Literal["cpu", "cuda"]
    """Kind of the node's slots."""
    labels: Labels = Field(default_factory=dict)
    """Labels of each node, in addition to `source=<name>`."""
    roots: Annotated[
        tuple[Annotated[str, Field(pattern=ROOT_PATTERN.pattern)], ...], Field(max_length=64)
    ] = ("checkpoints",)
    """Storage roots that each node sees. When a node registers, the server detects roots that lead
    to other storage there than on most nodes."""


class SourceLimits(RecordModel):
    """Limits on the requests to a source."""

    pending: Annotated[int, Field(ge=1, le=1000)] = 4
    """Maximum number of requests that wait in the engine at the same time."""
    nodes: Annotated[int, Field(ge=1, le=100_000)] = 16
    """Maximum number of nodes that are requested or allocated at the same time."""
    nodes_per_request: Annotated[int, Field(ge=1, le=MAX_NODES)] = 8
    """Maximum number of nodes in one request."""
    node_hours_per_month: Annotated[float, Field(ge=0, le=MAX_NODE_HOURS)] | None = None
    """Maximum number of node-hours per calendar month (UTC); unlimited when absent. A running
    request counts with all its hours up to its end."""


class SourceRegistration(RecordModel):
    """Registration of a source by its provisioner, at its start and after each change."""

    protocol: int
    """Version of the protocol (`PROTOCOL`) of the sender."""
    name: SourceName
    """Name of the source; its source token is valid for this name only."""
    kind: SourceKind
    """Kind of engine."""
    shape: NodeShape
    """Expected resources of each node of the source."""
    limits: SourceLimits
    """Limits on the requests to the source."""
    request_seconds: Annotated[float, Field(ge=60, le=LONGEST_SECONDS)] | None
    """Duration of an allocation; when absent, nodes stay until they are released."""
    idle_seconds: Annotated[float, Field(ge=0, le=LONGEST_SECONDS)]
    """Time without an attempt after which a node is released."""
    leave_seconds: Annotated[float, Field(ge=30, le=LONGEST_SECONDS)]
    """Attempts save and leave a node this long before the end of its allocation."""
    check_addresses: bool
    """Whether a pilot must join from an address that the engine reports for the pilot; disable this
    check behind NAT."""
    version: Word
    """Version of Trainyard on the provisioner's machine."""


class SourceRegistrationReply(RecordModel):
    """Reply to the registration of a source."""

    source_token: str | None
    """New token of the source; only sent in the reply to a registration with a join token."""


class SourceMessage(RecordModel):
    """Celery message to a provisioner, with ids only. The message gives no right to act; only a
    claim does."""

    source: SourceName
    """Name of the source."""
    call: Literal["submit", "cancel", "list", "status", "explain"]
    """Requested call to the engine. `list` concerns all requests of the source; the other calls
    concern one request."""
    request_id: RequestId | None = None
    """Id of the request; absent for `list`."""


class RequestClaim(RecordModel):
    """Claim of a request, which the provisioner sends before its call to the engine. The server
    grants a repeated claim again."""

    protocol: int
    """Version of the protocol (`PROTOCOL`) of the sender."""
    source: SourceName
    """Source of the request."""
    secret_hashes: Annotated[tuple[SecretHash, ...], Field(max_length=MAX_NODES)]
    """SHA-256 of the join secret of each pilot, by index. The server ignores surplus hashes,
    because the provisioner learns the request's number of nodes only from the reply. The
    provisioner draws the secrets, keeps them in a file of mode 0600 and passes them to the pilots.
    The server receives a secret only when its pilot joins."""


class RequestOrder(RecordModel):
    """Reply to a claim: the job that the provisioner must submit to the engine or cancel."""

    request_id: RequestId
    """Id of the request."""
    purpose: Purpose
    """Purpose of the request's pilots."""
    nodes: Annotated[int, Field(ge=1, le=MAX_NODES)]
    """Number of nodes, with one pilot each."""
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
    """Duration of the allocation; unlimited when absent."""
    wanted: bool
    """Whether the nodes are still wanted. If they are not, the provisioner submits no job, and
    cancels a job that it has already submitted."""
    urls: Annotated[tuple[str, ...], Field(max_length=8)] = ()
    """URLs of the server for pilots; a setting of the provisioner takes precedence."""


class EngineNode(RecordModel):
    """A node of an engine's job, as reported by the engine."""

    index: Annotated[int, Field(ge=0, lt=MAX_NODES)]
    """Index of the node's pilot."""
    instance: Annotated[Word, Field(min_length=1, max_length=200)]
    """The engine's name for this run of the pilot. A requeue or a new pod gets another name."""
    host: Annotated[Word, Field(max_length=255)] = ""
    """The engine's name for the machine."""
    addresses: Annotated[
        tuple[Annotated[Word, Field(max_length=64)], ...], Field(max_length=16)
    ] = ()
    """Addresses of the machine or pod; empty if the engine does not report any."""
    gone: bool = False
    """Whether the engine reports that this instance has no process left. Such a report proves the
    end of the instance, even while other instances of the job run. The absence of the instance from
    a report proves nothing."""


class EngineJob(RecordModel):
    """A job in the engine, as reported by the engine."""

    request_id: RequestId
    """Id of the request, from the name of the job."""
    ref: Annotated[Word, Field(min_length=1, max_length=200)]
    """The engine's id for the job."""
    state: EngineState
    """State of the job in the engine."""
    gone: bool = False
    """Whether the engine reports that the job has no process left. Such a report proves the end of
    the job's processes. Never set for `unknown`."""
    reason: Reason = ""
    """Reason why the job waits or has ended, as text from the engine."""
    starts_at: UnixTime | None = None
    """Expected or actual start of the job."""
    ends_at: UnixTime | None = None
    """Expected or actual end of the job; it may change when the engine's limits change."""
    nodes: Annotated[tuple[EngineNode, ...], Field(max_length=MAX_NODES)] = ()
    """Nodes of the job that have started. An index may occur several times: for the running
    instance, and for earlier instances, which have `gone` if the engine proves their end."""


class NeedsLogin(RecordModel):
    """The connection to the engine needs a login by a person."""

    reason: Reason
    """Reason for the login."""
    command: Annotated[Text, Field(max_length=500)]
    """Command that renews the login; a person runs it on the provisioner's machine."""


class SourceReport(RecordModel):
    """Result of a provisioner's call to the engine."""

    protocol: int
    """Version of the protocol (`PROTOCOL`) of the sender."""
    source: SourceName
    """Source of the sender."""
    jobs: Annotated[tuple[EngineJob, ...], Field(max_length=MAX_JOBS)] = ()
    """Jobs that the engine reported."""
    earlier: Annotated[tuple[RequestId, ...], Field(max_length=MAX_JOBS)] = ()
    """Ids of requests with a job in an earlier part of this report. A long report is split into
    parts; only the last part may have `complete`."""
    complete: bool = False
    """Whether `jobs` and `earlier` contain all jobs of the source. If they do, a submitted job that
    is missing from the report becomes `unknown`, never gone."""
    asked: RequestId | None = None
    """Id of the request that the call concerned; absent for a call about the whole source."""
    explanation: Reason | None = None
    """Result of the call `explain`."""
    error: Reason | None = None
    """Reason why the call failed; the report then proves nothing about jobs that it lacks."""
    refused: bool = False
    """Whether the engine finally refused the request (an invalid option, a limit of an account), so
    that a repeat is useless."""
    needs_login: NeedsLogin | None = None
    """Required login; set while the connection to the engine needs a login by a person."""


class SourceReportReply(RecordModel):
    """Reply to a source's report."""

    cancel: Annotated[tuple[RequestId, ...], Field(max_length=MAX_CANCELS)] = ()
    """Ids of requests whose jobs the provisioner must cancel: withdrawn requests, and reported jobs
    without an open request."""


class PilotIdentity(RecordModel):
    """Identity of one run of a pilot; a join secret is valid for one run at a time."""

    request_id: RequestId
    """Id of the pilot's request."""
    index: Annotated[int, Field(ge=0, lt=MAX_NODES)]
    """Index of the pilot in the request."""
    instance: Annotated[Word, Field(min_length=1, max_length=200)]
    """The engine's name for this run, as in `EngineNode.instance`."""


class CheckResult(RecordModel):
    """One finding of the check of a source."""

    name: Annotated[str, Field(pattern=NAME, max_length=40)]
    """Subject of the finding: `route`, `tls`, `python`, `roots`, `ports`, `clock`, `save`, ..."""
    passed: bool
    """Whether the finding satisfies a pilot's needs."""
    detail: Reason
    """State that the check found, and state that a pilot requires."""


class CheckReport(RecordModel):
    """Findings of a check's pilot, sent once and authenticated by the pilot's join secret."""

    protocol: int
    """Version of the protocol (`PROTOCOL`) of the sender."""
    pilot: PilotIdentity
    """Identity of the pilot that sends the report."""
    results: Annotated[tuple[CheckResult, ...], Field(min_length=1, max_length=50)]
    """Findings of the check."""


class MessagesRequest(RecordModel):
    """Long poll of a worker that does not receive its messages from the broker."""

    protocol: int
    """Version of the protocol (`PROTOCOL`) of the sender."""
    node: Annotated[str, Field(pattern=NAME, max_length=100)]
    """Name of the worker's node."""
    wait_seconds: Annotated[float, Field(ge=0, le=30)] = 25.0
    """Maximum time for which the server waits for a message before it replies."""
    known: Annotated[tuple[str, ...], Field(max_length=1024)] = ()
    """Ids of launches and operations that the worker is starting; the server does not resend
    them."""


class MessagesReply(RecordModel):
    """Ids for a worker to claim. As with the broker, an id gives no right to act; only a claim
    does."""

    attempts: tuple[str, ...] = ()
    """Ids of attempts whose share on the node is not claimed yet."""
    operations: tuple[str, ...] = ()
    """Ids of operations that are assigned to the node and not claimed yet."""
