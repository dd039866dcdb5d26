"""Messages between the server, the provisioners of nodes, and their pilots."""

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
"""State of an engine's job. `unknown` proves nothing: the engine fails, has forgotten the job, or
lacks accounting."""
Purpose = Literal["nodes", "check"]
"""Purpose of a request: its pilots serve as nodes, or a single pilot checks the source and ends."""

SOURCE_LABEL = "source"
"""Label of each node of a source; its value is the source's name."""
MAX_NODES = 256
"""Most nodes of one request."""
MAX_JOBS = 10_000
"""Most jobs in one report, and most jobs in its earlier parts."""
MAX_CANCELS = 1000
"""Most jobs in the reply to a report; the next reply has the rest."""
USEFUL_SECONDS = 300.0
"""Shortest useful time on a node, from placement until its allocation's end forces a leave: start
and save take minutes."""
SOURCE_NAME = r"^[a-z][a-z0-9-]{0,30}$"
SourceName = Annotated[str, Field(pattern=SOURCE_NAME, examples=["slurm-a100"])]
"""Name of a source, which is the prefix of its nodes' names."""
RequestId = Annotated[str, Field(pattern=ID_PATTERN)]
"""Id of a request for nodes. It is stored before the call of the engine, and names the engine's job
(`trainyard-<id>`), so that the job is found after a repeated or a lost call."""
SecretHash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Reason = Annotated[Text, Field(max_length=2000)]
UnixTime = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LONGEST_SECONDS = 1e8
"""Longest time in a setting: three years. A date plus this time is always a valid date."""
MAX_NODE_HOURS = 1e9
"""Highest limit of node-hours per month: more than 100,000 nodes can use."""


def _printable(text: str) -> str:
    for place, character in enumerate(text):
        if not character.isprintable():
            raise ValueError(f"unprintable character {character!r} at position {place}")
    return text


Word = Annotated[str, AfterValidator(_printable)]
"""Name from an engine, on one line, because terminals and pages show it."""


def job_name(request_id: str) -> str:
    """Return the name of a request's job in the engine."""
    return f"trainyard-{request_id}"


def pilot_name(source: str, request_id: str, index: int) -> str:
    """Return the node name of pilot `index` of a request."""
    return f"{source}-{request_id}-{index}"


class NodeShape(RecordModel):
    """Expected resources of each node of a source."""

    slots: Annotated[int, Field(ge=1, le=1024)]
    """Slots."""
    device: Literal["cpu", "cuda"]
    """Kind of its slots."""
    labels: Labels = Field(default_factory=dict)
    """Labels of its nodes; each also has `source=<name>`."""
    roots: Annotated[
        tuple[Annotated[str, Field(pattern=ROOT_PATTERN.pattern)], ...], Field(max_length=64)
    ] = ("checkpoints",)
    """Storage roots that its nodes see. The registration detects a node that sees another storage
    under a name, as for any node."""


class SourceLimits(RecordModel):
    """Limits of requests to a source."""

    pending: Annotated[int, Field(ge=1, le=1000)] = 4
    """Most requests that wait in the engine at the same time."""
    nodes: Annotated[int, Field(ge=1, le=100_000)] = 16
    """Most nodes that are requested or allocated at the same time."""
    nodes_per_request: Annotated[int, Field(ge=1, le=MAX_NODES)] = 8
    """Most nodes of one request."""
    node_hours_per_month: Annotated[float, Field(ge=0, le=MAX_NODE_HOURS)] | None = None
    """Most node-hours in a calendar month (UTC), including running requests up to their end;
    unlimited when absent."""


class SourceRegistration(RecordModel):
    """Registration of a source by its provisioner, at its start and after each change."""

    protocol: int
    """`PROTOCOL` of the sender."""
    name: SourceName
    """Its name; a source token is bound to it."""
    kind: SourceKind
    """Kind of engine."""
    shape: NodeShape
    """Resources of each of its nodes."""
    limits: SourceLimits
    """Limits of requests to it."""
    request_seconds: Annotated[float, Field(ge=60, le=LONGEST_SECONDS)] | None
    """Length of an allocation; when absent, nodes stay until they are released."""
    idle_seconds: Annotated[float, Field(ge=0, le=LONGEST_SECONDS)]
    """Time without an attempt after which nodes are released."""
    leave_seconds: Annotated[float, Field(ge=30, le=LONGEST_SECONDS)]
    """Time before the end of an allocation at which its attempts save and leave."""
    check_addresses: bool
    """Whether a pilot must join from one of its addresses in the engine; off behind NAT."""
    version: Word
    """Version of Trainyard at the provisioner."""


class SourceRegistrationReply(RecordModel):
    """The answer to the registration of a source."""

    source_token: str | None
    """Token of the source, sent once when it joins."""


class SourceMessage(RecordModel):
    """The Celery message to a provisioner: ids only. It grants nothing; only a claim does."""

    source: SourceName
    """Source."""
    call: Literal["submit", "cancel", "list", "status", "explain"]
    """Call of the engine: `list` is for all requests of the source, the others for one."""
    request_id: RequestId | None = None
    """The request; absent for `list`."""


class RequestClaim(RecordModel):
    """Claim of a request by the provisioner, before it calls the engine; repeats are granted."""

    protocol: int
    """`PROTOCOL` of the sender."""
    source: SourceName
    """Its source."""
    secret_hashes: Annotated[tuple[SecretHash, ...], Field(max_length=MAX_NODES)]
    """SHA-256 of each pilot's join secret, by index. The server drops those beyond the request's
    number of nodes, which the reply to the claim gives. The provisioner draws the secrets, keeps
    them in a file of mode 0600 and passes them to the pilots. The server sees a secret only when
    its pilot joins."""


class RequestOrder(RecordModel):
    """The answer to a claim: the job to submit to the engine, or to cancel."""

    request_id: RequestId
    """The request."""
    purpose: Purpose
    """Purpose of its pilots."""
    nodes: Annotated[int, Field(ge=1, le=MAX_NODES)]
    """Number of nodes; each has one pilot."""
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
    """Length of the allocation; unlimited when absent."""
    wanted: bool
    """Whether the nodes are still wanted. If not, nothing is submitted, and an existing job is
    cancelled."""
    urls: Annotated[tuple[str, ...], Field(max_length=8)] = ()
    """URLs of the server for pilots; the provisioner's own setting takes precedence."""


class EngineNode(RecordModel):
    """A node of an engine's job, as the engine describes it."""

    index: Annotated[int, Field(ge=0, lt=MAX_NODES)]
    """Index of its pilot."""
    instance: Annotated[Word, Field(min_length=1, max_length=200)]
    """The engine's name of this run of the pilot; a requeue or a new pod has another name."""
    host: Annotated[Word, Field(max_length=255)] = ""
    """The engine's name of the machine."""
    addresses: Annotated[
        tuple[Annotated[Word, Field(max_length=64)], ...], Field(max_length=16)
    ] = ()
    """Addresses of the machine or pod; empty if the engine does not report them."""
    gone: bool = False
    """Whether the engine reports that no process of this instance is left. This is a proof, even
    while other instances of the job run; a missing instance is not proved gone."""


class EngineJob(RecordModel):
    """An engine's job, as the engine describes it now."""

    request_id: RequestId
    """The request, from the job's name."""
    ref: Annotated[Word, Field(min_length=1, max_length=200)]
    """The engine's id of the job."""
    state: EngineState
    """Its state."""
    gone: bool = False
    """Whether the engine reports that no process of the job is left. This is a proof, as is the end
    of a node's processes. Never set for `unknown`."""
    reason: Reason = ""
    """Why it waits or has ended, in the engine's words."""
    starts_at: UnixTime | None = None
    """Expected or actual start."""
    ends_at: UnixTime | None = None
    """Expected or actual end; it may change with the engine's limits."""
    nodes: Annotated[tuple[EngineNode, ...], Field(max_length=MAX_NODES)] = ()
    """Its nodes that have started. An index may have several instances: a running one, and earlier
    ones, which have `gone` if the engine proves that."""


class NeedsLogin(RecordModel):
    """The route to the engine needs a person."""

    reason: Reason
    """Why."""
    command: Annotated[Text, Field(max_length=500)]
    """Command that renews the login, on the provisioner's machine."""


class SourceReport(RecordModel):
    """Result of a provisioner's call of the engine."""

    protocol: int
    """`PROTOCOL` of the sender."""
    source: SourceName
    """Its source."""
    jobs: Annotated[tuple[EngineJob, ...], Field(max_length=MAX_JOBS)] = ()
    """Jobs that the engine reported."""
    earlier: Annotated[tuple[RequestId, ...], Field(max_length=MAX_JOBS)] = ()
    """Requests with jobs in the previous reports: a long answer comes in several reports, and the
    last of them is complete."""
    complete: bool = False
    """Whether these and the earlier ones are all jobs of the source. A submitted job that is
    missing is `unknown`, never gone."""
    asked: RequestId | None = None
    """The request of the call, if it had one."""
    explanation: Reason | None = None
    """Answer to `explain`."""
    error: Reason | None = None
    """Why the call failed; the state of its jobs is then `unknown`."""
    refused: bool = False
    """Whether the error is the engine's final refusal of the request (an invalid option, a limit
    of an account), so that a repeat is useless."""
    needs_login: NeedsLogin | None = None
    """Set while the route to the engine needs a person."""


class SourceReportReply(RecordModel):
    """The answer to a source's report."""

    cancel: Annotated[tuple[RequestId, ...], Field(max_length=MAX_CANCELS)] = ()
    """Requests with jobs to cancel: withdrawn requests, and orphans without a row."""


class PilotIdentity(RecordModel):
    """Identity of one run of a pilot; a join secret is valid for one instance at a time."""

    request_id: RequestId
    """Its request."""
    index: Annotated[int, Field(ge=0, lt=MAX_NODES)]
    """Its index."""
    instance: Annotated[Word, Field(min_length=1, max_length=200)]
    """The engine's name of this run, as in `EngineNode.instance`."""


class CheckResult(RecordModel):
    """One finding of the check of a source."""

    name: Annotated[str, Field(pattern=NAME, max_length=40)]
    """Subject of the check: `route`, `tls`, `python`, `roots`, `ports`, `clock`, `save`, ..."""
    passed: bool
    """Whether it satisfies a pilot's needs."""
    detail: Reason
    """What was found, and what is needed."""


class CheckReport(RecordModel):
    """Findings of the pilot of a check, sent once with its join secret."""

    protocol: int
    """`PROTOCOL` of the sender."""
    pilot: PilotIdentity
    """The sender."""
    results: Annotated[tuple[CheckResult, ...], Field(min_length=1, max_length=50)]
    """Its findings."""


class MessagesRequest(RecordModel):
    """Long poll of a worker that does not use the broker."""

    protocol: int
    """`PROTOCOL` of the sender."""
    node: Annotated[str, Field(pattern=NAME, max_length=100)]
    """Its name."""
    wait_seconds: Annotated[float, Field(ge=0, le=30)] = 25.0
    """Longest time that the server holds the poll while it has no message."""
    known: Annotated[tuple[str, ...], Field(max_length=1024)] = ()
    """Ids of launches and operations that it is starting; the server does not send them again."""


class MessagesReply(RecordModel):
    """Ids for a worker to claim. As with the broker, an id grants nothing; only a claim does."""

    attempts: tuple[str, ...] = ()
    """Ids of attempts with an unclaimed share on the node."""
    operations: tuple[str, ...] = ()
    """Ids of unclaimed operations that were given to the node."""
