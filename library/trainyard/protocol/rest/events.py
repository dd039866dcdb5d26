"""Events as views: one model for each kind, a union that `kind` tells apart."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args

from pydantic import Field
from typing_extensions import TypeAliasType

from trainyard.base.models import RecordModel
from trainyard.protocol.event_kinds import EventData, EventKind
from trainyard.protocol.manifest import SaveFailed, SaveSettled
from trainyard.protocol.rest import event_data as data

Kind = TypeVar("Kind", bound=str)
Data = TypeVar("Data")


class Event(RecordModel, Generic[Kind, Data]):
    """Something that happened."""

    id: int
    """Position in the stream of all events."""
    at: datetime
    """When."""
    kind: Kind
    """What; it decides which fields `data` has."""
    job_id: str | None
    """Job that it happened to."""
    attempt: int | None
    """Number of the attempt."""
    node: str | None
    """Node."""
    actor: str
    """Who did it: a token's name, `scheduler`, `trainer` or a node."""
    message: str
    """The event as a sentence."""
    data: Data
    """Its details."""


# The classes of the table inherit the descriptions; to read the source for each of them again
# would take half a second at import.
Event.model_config["use_attribute_docstrings"] = False

EventView = TypeAliasType(
    "EventView",
    Annotated[
        Event[Literal[EventKind.SUBMITTED], data.Submitted]
        | Event[Literal[EventKind.QUEUED], data.Queued]
        | Event[Literal[EventKind.WAITING], data.Waiting]
        | Event[Literal[EventKind.PLACED], data.Placed]
        | Event[Literal[EventKind.CLAIMED], data.Claimed]
        | Event[Literal[EventKind.PHASE], data.PhaseEntered]
        | Event[Literal[EventKind.RUNNING], data.Running]
        | Event[Literal[EventKind.WEIGHTS_LOADED], data.WeightsLoaded]
        | Event[Literal[EventKind.RESUMED], data.Resumed]
        | Event[Literal[EventKind.STOP_REQUESTED], data.StopRequested]
        | Event[Literal[EventKind.STOP_AGREED], data.StopAgreed]
        | Event[Literal[EventKind.CANCEL_REQUESTED], data.CancelRequested]
        | Event[Literal[EventKind.ROLLED_BACK], data.RolledBack]
        | Event[Literal[EventKind.RESUME_REQUESTED], data.ResumeRequested]
        | Event[Literal[EventKind.NODE_ENDED], data.NodeEnded]
        | Event[Literal[EventKind.ATTEMPT_ENDED], data.AttemptEnded]
        | Event[Literal[EventKind.JOB_ENDED], data.JobEnded]
        | Event[Literal[EventKind.UNREACHABLE], data.Unreachable]
        | Event[Literal[EventKind.REACHABLE], data.Reachable]
        | Event[Literal[EventKind.CHECKPOINT_COMMITTED], data.CheckpointCommitted]
        | Event[Literal[EventKind.CHECKPOINT_SETTLED], SaveSettled]
        | Event[Literal[EventKind.SAVE_FAILED], SaveFailed]
        | Event[Literal[EventKind.CHECKPOINT_DAMAGED], data.CheckpointDamaged]
        | Event[Literal[EventKind.CHECKPOINT_PINNED], data.CheckpointPinned]
        | Event[Literal[EventKind.OPERATION_QUEUED], data.OperationQueued]
        | Event[Literal[EventKind.OPERATION_WAITING], data.OperationWaiting]
        | Event[Literal[EventKind.OPERATION_STARTED], data.OperationStarted]
        | Event[Literal[EventKind.OPERATION_PROGRESS], data.OperationProgressed]
        | Event[Literal[EventKind.OPERATION_ENDED], data.OperationEnded]
        | Event[Literal[EventKind.CONTINUITY_CHECKED], data.ContinuityChecked]
        | Event[Literal[EventKind.REQUEST_ANSWERED], data.RequestAnswered]
        | Event[Literal[EventKind.METRICS], data.MetricsStored]
        | Event[Literal[EventKind.LOG], data.LogStored]
        | Event[Literal[EventKind.LINE_SKIPPED], data.LineSkipped]
        | Event[Literal[EventKind.METRICS_DROPPED], data.MetricsDropped]
        | Event[Literal[EventKind.NODE_REGISTERED], data.NodeRegistered]
        | Event[Literal[EventKind.NODE_ONLINE], data.NodeOnline]
        | Event[Literal[EventKind.NODE_OFFLINE], data.NodeOffline]
        | Event[Literal[EventKind.NODE_DRAINED], data.NodeDrained]
        | Event[Literal[EventKind.JOB_DELETED], data.JobDeleted],
        Field(discriminator="kind"),
    ],
)
"""An event; its kind names the model of its data."""

UnknownEvent = Event[str, dict[str, object]]
"""An event of another version, whose kind or data this one does not know."""

AnyEvent = TypeAliasType(
    "AnyEvent", Annotated[EventView | UnknownEvent, Field(union_mode="left_to_right")]
)
"""An event as a client reads it from a server of any version."""


def _kinds() -> Mapping[type[EventData], EventKind]:
    union, _ = get_args(EventView.__value__)
    members: list[Any] = [m.__pydantic_generic_metadata__["args"] for m in get_args(union)]
    return {model: get_args(kind)[0] for kind, model in members}


KIND_OF: Mapping[type[EventData], EventKind] = _kinds()
"""The kind of event that holds each model of data."""
