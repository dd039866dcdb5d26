"""Views of events and notices: one model for each kind, in unions with `kind` as discriminator."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args

from pydantic import Field
from typing_extensions import TypeAliasType

from trainyard.base.model_base import RecordModel
from trainyard.protocol.event_kinds import EventData, EventKind, NoticeKind
from trainyard.protocol.job_artifacts.events import ArtifactsStored, OutputDropped
from trainyard.protocol.manifest import SaveFailed, SaveSettled
from trainyard.protocol.node_sources.views import NodesReleased, NodesRequested, SourceChanged
from trainyard.protocol.rest import event_data as data
from trainyard.protocol.rest import metrics_and_logs as ranks
from trainyard.protocol.rest.jobs import SizeChange
from trainyard.protocol.rest.nodes import (
    NodeDrained,
    NodeLabeled,
    NodeOffline,
    NodeOnline,
    NodeRegistered,
)
from trainyard.protocol.rest.projects import ProjectChanged
from trainyard.protocol.shell_sessions.views import ShellClosed, ShellOpened
from trainyard.protocol.user_accounts.members import (
    LimitsChanged,
    MembersChanged,
    OwnerChanged,
    ServiceTokenChanged,
)
from trainyard.protocol.user_accounts.secret_views import SecretChanged, SecretsDelivered

Kind = TypeVar("Kind", bound=str)
Data = TypeVar("Data")


class Event(RecordModel, Generic[Kind, Data]):
    """An event: a stored record of something that happened."""

    id: int
    """Position of the event in the stream of all events."""
    at: datetime
    """Time of the event."""
    kind: Kind
    """Kind of the event; it determines the fields of `data`."""
    job_id: str | None
    """Id of the job."""
    attempt: int | None
    """Number of the attempt."""
    node: str | None
    """Name of the node."""
    actor: str
    """Author of the event: the name of a token, of a node, or of a part of the system, such as
    `scheduler`."""
    user: str | None = None
    """Name of the author's user; null for nodes and parts of the system, and in older events."""
    message: str
    """The event as a sentence."""
    data: Data
    """Details of the event."""


class Notice(RecordModel, Generic[Kind, Data]):
    """A notice: the newest state of something that changes often; it is not stored as an event."""

    at: datetime
    """Time of the change."""
    kind: Kind
    """Kind of the notice; it determines the fields of `data`."""
    job_id: str
    """Id of the job."""
    attempt: int | None
    """Number of the attempt."""
    node: str | None
    """Name of the node."""
    data: Data
    """Details of the notice."""


EventView = TypeAliasType(
    "EventView",
    Annotated[
        Event[Literal[EventKind.SUBMITTED], data.Submitted]
        | Event[Literal[EventKind.IMPORTED], data.Imported]
        | Event[Literal[EventKind.QUEUED], data.Queued]
        | Event[Literal[EventKind.PLACED], data.Placed]
        | Event[Literal[EventKind.CLAIMED], data.Claimed]
        | Event[Literal[EventKind.SECRETS_DELIVERED], SecretsDelivered]
        | Event[Literal[EventKind.RUNNING], data.Running]
        | Event[Literal[EventKind.WEIGHTS_LOADED], data.WeightsLoaded]
        | Event[Literal[EventKind.RESUMED], data.Resumed]
        | Event[Literal[EventKind.STOP_REQUESTED], data.StopRequested]
        | Event[Literal[EventKind.STOP_AGREED], data.StopAgreed]
        | Event[Literal[EventKind.CANCEL_REQUESTED], data.CancelRequested]
        | Event[Literal[EventKind.ROLLED_BACK], data.RolledBack]
        | Event[Literal[EventKind.RESUME_REQUESTED], data.ResumeRequested]
        | Event[Literal[EventKind.PRIORITY_CHANGED], data.PriorityChanged]
        | Event[Literal[EventKind.OWNER_CHANGED], OwnerChanged]
        | Event[Literal[EventKind.SIZE_CHANGED], SizeChange]
        | Event[Literal[EventKind.NODE_ENDED], data.NodeEnded]
        | Event[Literal[EventKind.ATTEMPT_ENDED], data.AttemptEnded]
        | Event[Literal[EventKind.JOB_ENDED], data.JobEnded]
        | Event[Literal[EventKind.UNREACHABLE], data.Unreachable]
        | Event[Literal[EventKind.REACHABLE], data.Reachable]
        | Event[Literal[EventKind.CHECKPOINT_COMMITTED], data.CheckpointCommitted]
        | Event[Literal[EventKind.SAVE_FAILED], SaveFailed]
        | Event[Literal[EventKind.CHECKPOINT_DAMAGED], data.CheckpointDamaged]
        | Event[Literal[EventKind.CHECKPOINT_PINNED], data.CheckpointPinned]
        | Event[Literal[EventKind.OPERATION_QUEUED], data.OperationQueued]
        | Event[Literal[EventKind.OPERATION_STARTED], data.OperationStarted]
        | Event[Literal[EventKind.OPERATION_ENDED], data.OperationEnded]
        | Event[Literal[EventKind.CONTINUITY_CHECKED], data.ContinuityChecked]
        | Event[Literal[EventKind.REQUEST_ANSWERED], data.RequestAnswered]
        | Event[Literal[EventKind.SHELL_OPENED], ShellOpened]
        | Event[Literal[EventKind.SHELL_CLOSED], ShellClosed]
        | Event[Literal[EventKind.LINE_SKIPPED], data.LineSkipped]
        | Event[Literal[EventKind.METRICS_DROPPED], data.MetricsDropped]
        | Event[Literal[EventKind.OUTPUT_DROPPED], OutputDropped]
        | Event[Literal[EventKind.STRAGGLER_FOUND], ranks.StragglerFound]
        | Event[Literal[EventKind.STRAGGLER_GONE], ranks.StragglerGone]
        | Event[Literal[EventKind.NODE_REGISTERED], NodeRegistered]
        | Event[Literal[EventKind.NODE_ONLINE], NodeOnline]
        | Event[Literal[EventKind.NODE_OFFLINE], NodeOffline]
        | Event[Literal[EventKind.NODE_DRAINED], NodeDrained]
        | Event[Literal[EventKind.NODE_LABELED], NodeLabeled]
        | Event[Literal[EventKind.JOB_DELETED], data.JobDeleted]
        | Event[Literal[EventKind.PROJECT_CHANGED], ProjectChanged]
        | Event[Literal[EventKind.MEMBERS_CHANGED], MembersChanged]
        | Event[Literal[EventKind.SERVICE_TOKEN_CHANGED], ServiceTokenChanged]
        | Event[Literal[EventKind.LIMITS_CHANGED], LimitsChanged]
        | Event[Literal[EventKind.SECRET_CHANGED], SecretChanged]
        | Event[Literal[EventKind.SOURCE_CHANGED], SourceChanged]
        | Event[Literal[EventKind.NODES_REQUESTED], NodesRequested]
        | Event[Literal[EventKind.NODES_RELEASED], NodesReleased],
        Field(discriminator="kind"),
    ],
)
"""An event; its kind determines the model of its data."""

UnknownEvent = Event[str, dict[str, object]]
"""An event from a server of another version, with an unknown kind or unknown data."""

AnyEvent = TypeAliasType(
    "AnyEvent", Annotated[EventView | UnknownEvent, Field(union_mode="left_to_right")]
)
"""An event from a server of any version."""


NoticeView = TypeAliasType(
    "NoticeView",
    Annotated[
        Notice[Literal[NoticeKind.WAITING], data.Waiting]
        | Notice[Literal[NoticeKind.PHASE], data.PhaseEntered]
        | Notice[Literal[NoticeKind.METRICS], data.MetricsStored]
        | Notice[Literal[NoticeKind.RANK_TIMES], ranks.RankTimesStored]
        | Notice[Literal[NoticeKind.ARTIFACTS], ArtifactsStored]
        | Notice[Literal[NoticeKind.FACTS], ranks.FactsStored]
        | Notice[Literal[NoticeKind.LOG], data.LogStored]
        | Notice[Literal[NoticeKind.CHECKPOINT_SETTLED], SaveSettled]
        | Notice[Literal[NoticeKind.OPERATION_WAITING], data.OperationWaiting]
        | Notice[Literal[NoticeKind.OPERATION_PROGRESS], data.OperationProgressed],
        Field(discriminator="kind"),
    ],
)
"""A notice; its kind determines the model of its data."""

StreamItem = TypeAliasType(
    "StreamItem", Annotated[EventView | NoticeView, Field(union_mode="left_to_right")]
)
"""An item of the stream: an event, which has an `id`, or a notice, which has no `id`."""

AnyStreamItem = TypeAliasType(
    "AnyStreamItem", Annotated[AnyEvent | NoticeView, Field(union_mode="left_to_right")]
)
"""An item of the stream from a server of any version."""


def _kinds(view: TypeAliasType) -> Mapping[type[EventData], Any]:
    union, _ = get_args(view.__value__)
    members: list[Any] = [m.__pydantic_generic_metadata__["args"] for m in get_args(union)]
    return {model: get_args(kind)[0] for kind, model in members}


KIND_OF: Mapping[type[EventData], EventKind] = _kinds(EventView)
"""Kind of event, by model of the event's data."""
NOTICE_KIND_OF: Mapping[type[EventData], NoticeKind] = _kinds(NoticeView)
"""Kind of notice, by model of the notice's data."""
