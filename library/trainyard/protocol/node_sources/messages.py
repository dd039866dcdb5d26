"""Messages between the server, the provisioners of nodes, and the pilots that they start."""

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
"""State of an engine's job. `unknown` is the answer of an engine that fails, has forgotten the job
or lacks its accounting: it proves nothing."""
Purpose = Literal["nodes", "check"]
"""Pilots of a request serve as nodes, or its one pilot checks the place and ends."""

SOURCE_LABEL = "source"
"""Label of each node of a source; its value is the source's name."""
MAX_NODES = 256
"""Most nodes of one request."""
MAX_JOBS = 10_000
"""Most jobs of one report, and most that earlier parts of it described."""
MAX_CANCELS = 1000
"""Most jobs that the answer to a report names; the next one names the rest."""
USEFUL_SECONDS = 300.0
"""Shortest time between a placement on a node and the order to leave it before its allocation ends:
to start and to save takes minutes."""
SOURCE_NAME = r"^[a-z][a-z0-9-]{0,30}$"
SourceName = Annotated[str, Field(pattern=SOURCE_NAME, examples=["slurm-a100"])]
"""Name of a source; the names of its nodes begin with it."""
RequestId = Annotated[str, Field(pattern=ID_PATTERN)]
"""Id of a request for nodes. It is stored before the engine is called and is the name of the
engine's job (`trainyard-<id>`), so that a repeated or a lost call finds what it started."""
SecretHash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Reason = Annotated[Text, Field(max_length=2000)]
UnixTime = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LONGEST_SECONDS = 1e8
"""Longest time of a setting: three years. Sums of it with a date stay within the calendar."""
MAX_NODE_HOURS = 1e9
"""Highest limit of node-hours of a month: more than 100,000 nodes can use in one."""


def _printable(text: str) -> str:
    for place, character in enumerate(text):
        if not character.isprintable():
            raise ValueError(f"unprintable character {character!r} at position {place}")
    return text


Word = Annotated[str, AfterValidator(_printable)]
"""Name that an engine gives, on one line: it is shown in terminals and pages."""


def job_name(request_id: str) -> str:
    """Return the name of the engine's job of a request."""
    return f"trainyard-{request_id}"


def pilot_name(source: str, request_id: str, index: int) -> str:
    """Return the name of the node that the pilot `index` of a request becomes."""
    return f"{source}-{request_id}-{index}"


class NodeShape(RecordModel):
    """What each node of a source is expected to offer."""

    slots: Annotated[int, Field(ge=1, le=1024)]
    """Slots."""
    device: Literal["cpu", "cuda"]
    """Kind of its slots."""
    labels: Labels = Field(default_factory=dict)
    """Labels of its nodes; each also has `source=<name>`."""
    roots: Annotated[
        tuple[Annotated[str, Field(pattern=ROOT_PATTERN.pattern)], ...], Field(max_length=64)
    ] = ("checkpoints",)
    """Storage roots that its nodes see. A node that sees another storage under a name is found at
    its registration, as any node."""


class SourceLimits(RecordModel):
    """Limits of what is asked of a source."""

    pending: Annotated[int, Field(ge=1, le=1000)] = 4
    """Most requests that wait in the engine at once."""
    nodes: Annotated[int, Field(ge=1, le=100_000)] = 16
    """Most nodes that are asked for or allocated at once."""
    nodes_per_request: Annotated[int, Field(ge=1, le=MAX_NODES)] = 8
    """Most nodes of one request."""
    node_hours_per_month: Annotated[float, Field(ge=0, le=MAX_NODE_HOURS)] | None = None
    """Most node-hours of a calendar month (UTC), those of running requests up to their end
    included; unlimited when absent."""


class SourceRegistration(RecordModel):
    """Registration of a source by its provisioner, at its start and after each change."""

    protocol: int
    """`PROTOCOL` of the sender."""
    name: SourceName
    """Its name; a source token is bound to it."""
    kind: SourceKind
    """Kind of engine."""
    shape: NodeShape
    """What a node of it offers."""
    limits: SourceLimits
    """What may be asked of it."""
    request_seconds: Annotated[float, Field(ge=60, le=LONGEST_SECONDS)] | None
    """Length of an allocation; nodes stay until they are released when absent."""
    idle_seconds: Annotated[float, Field(ge=0, le=LONGEST_SECONDS)]
    """Time without an attempt after which nodes are released."""
    leave_seconds: Annotated[float, Field(ge=30, le=LONGEST_SECONDS)]
    """Time before the end of an allocation at which its attempts save and leave."""
    check_addresses: bool
    """Whether a pilot must join from an address that the engine names for it; off behind NAT."""
    version: Word
    """Version of Trainyard at the provisioner."""


class SourceRegistrationReply(RecordModel):
    """The answer to the registration of a source."""

    source_token: str | None
    """Token of the source, sent once, when it joined."""


class SourceMessage(RecordModel):
    """The Celery message to a provisioner: ids only. It grants nothing: only a claim does."""

    source: SourceName
    """Source."""
    call: Literal["submit", "cancel", "list", "status", "explain"]
    """What to call: `list` for all requests of the source, the others for one."""
    request_id: RequestId | None = None
    """The request; absent for `list`."""


class RequestClaim(RecordModel):
    """Claim of a request by the provisioner, before it calls the engine; repeats are granted."""

    protocol: int
    """`PROTOCOL` of the sender."""
    source: SourceName
    """Its source."""
    secret_hashes: Annotated[tuple[SecretHash, ...], Field(max_length=MAX_NODES)]
    """SHA-256 of the join secret of each pilot, by index; those beyond the nodes of the request,
    whose number the claim's reply gives, are not kept. The provisioner draws the secrets, keeps
    them in a file of mode 0600 and hands them to the pilots: the server never sees one before a
    pilot joins with it."""


class RequestOrder(RecordModel):
    """The answer to a claim: what to ask of the engine, or to cancel."""

    request_id: RequestId
    """The request."""
    purpose: Purpose
    """What its pilots do."""
    nodes: Annotated[int, Field(ge=1, le=MAX_NODES)]
    """Nodes; each has one pilot."""
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
    """Length of the allocation; without an end when absent."""
    wanted: bool
    """Whether the nodes are still wanted; otherwise nothing is submitted, and what exists is
    cancelled."""
    urls: Annotated[tuple[str, ...], Field(max_length=8)] = ()
    """URLs at which pilots reach the server; the provisioner's own setting wins."""


class EngineNode(RecordModel):
    """A node of an engine's job, as the engine describes it."""

    index: Annotated[int, Field(ge=0, lt=MAX_NODES)]
    """Index of its pilot."""
    instance: Annotated[Word, Field(min_length=1, max_length=200)]
    """The engine's name of this life of the pilot: another one after a requeue or a new pod."""
    host: Annotated[Word, Field(max_length=255)] = ""
    """The engine's name of the machine."""
    addresses: Annotated[
        tuple[Annotated[Word, Field(max_length=64)], ...], Field(max_length=16)
    ] = ()
    """Addresses of the machine or pod; empty where the engine does not name them."""
    gone: bool = False
    """The engine's word that no process of this instance is left: a proof, also while others of
    the job run. An instance that is no longer listed is not proved gone by that."""


class EngineJob(RecordModel):
    """An engine's job, as the engine describes it now."""

    request_id: RequestId
    """The request that the job's name has."""
    ref: Annotated[Word, Field(min_length=1, max_length=200)]
    """The engine's id of the job."""
    state: EngineState
    """Its state."""
    gone: bool = False
    """The engine's word that no process of the job is left: a proof, as the end of a node's
    processes is. Never set for `unknown`."""
    reason: Reason = ""
    """Why it waits or has ended, in the engine's words."""
    starts_at: UnixTime | None = None
    """Expected or actual start."""
    ends_at: UnixTime | None = None
    """Expected or actual end; limits change, so that this may too."""
    nodes: Annotated[tuple[EngineNode, ...], Field(max_length=MAX_NODES)] = ()
    """Its nodes that have begun. An index may have several instances: one that runs, and those
    before it with `gone` where the engine proves that."""


class NeedsLogin(RecordModel):
    """The route to the engine needs a person."""

    reason: Reason
    """Why."""
    command: Annotated[Text, Field(max_length=500)]
    """Command that renews the login, at the provisioner's machine."""


class SourceReport(RecordModel):
    """What a provisioner learned by one call of the engine."""

    protocol: int
    """`PROTOCOL` of the sender."""
    source: SourceName
    """Its source."""
    jobs: Annotated[tuple[EngineJob, ...], Field(max_length=MAX_JOBS)] = ()
    """Jobs that the engine described."""
    earlier: Annotated[tuple[RequestId, ...], Field(max_length=MAX_JOBS)] = ()
    """Requests whose jobs were sent just before: a long answer comes in several reports, and the
    last of them is complete."""
    complete: bool = False
    """Whether these and the earlier ones are all jobs of the source: one that was submitted and is
    missing is `unknown`, never gone."""
    asked: RequestId | None = None
    """The request that the call was about, where it was about one."""
    explanation: Reason | None = None
    """Answer to `explain`."""
    error: Reason | None = None
    """Why the call failed; what it was about is then `unknown`."""
    refused: bool = False
    """Whether the error is the engine's final refusal of the request (an invalid option, a limit
    of an account), so that a repeat is useless."""
    needs_login: NeedsLogin | None = None
    """Set while the route to the engine needs a person."""


class SourceReportReply(RecordModel):
    """The answer to a source's report."""

    cancel: Annotated[tuple[RequestId, ...], Field(max_length=MAX_CANCELS)] = ()
    """Requests whose jobs are to be cancelled: withdrawn ones, and orphans that no row has."""


class PilotIdentity(RecordModel):
    """The life of a pilot, by which a join secret is held to one instance at a time."""

    request_id: RequestId
    """Its request."""
    index: Annotated[int, Field(ge=0, lt=MAX_NODES)]
    """Its index."""
    instance: Annotated[Word, Field(min_length=1, max_length=200)]
    """The engine's name of this life, as `EngineNode.instance`."""


class CheckResult(RecordModel):
    """One finding of the check of a source."""

    name: Annotated[str, Field(pattern=NAME, max_length=40)]
    """What was checked: `route`, `tls`, `python`, `roots`, `ports`, `clock`, `save`, ..."""
    passed: bool
    """Whether it is as a pilot needs it."""
    detail: Reason
    """What was found, and what would be needed."""


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
    """Longest time that the answer may take while there is none to send."""
    known: Annotated[tuple[str, ...], Field(max_length=1024)] = ()
    """Ids of launches and operations that it has received and is starting; they are not sent."""


class MessagesReply(RecordModel):
    """What a worker is to claim. As with the broker, an id grants nothing: only a claim does."""

    attempts: tuple[str, ...] = ()
    """Ids of attempts with an unclaimed share on the node."""
    operations: tuple[str, ...] = ()
    """Ids of unclaimed operations that were given to the node."""
