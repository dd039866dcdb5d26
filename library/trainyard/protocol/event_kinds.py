"""Kinds of events, which are stored, and kinds of notices, which only live views receive."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import ConfigDict

from trainyard.base.model_base import RecordModel


class EventKind(StrEnum):
    """Kind of an event; `trainyard.protocol.rest.events` maps each kind to the model of its
    data."""

    SUBMITTED = "submitted"
    IMPORTED = "imported"
    QUEUED = "queued"
    PLACED = "placed"
    CLAIMED = "claimed"
    SECRETS_DELIVERED = "secrets_delivered"
    RUNNING = "running"
    WEIGHTS_LOADED = "weights_loaded"
    RESUMED = "resumed"
    STOP_REQUESTED = "stop_requested"
    STOP_AGREED = "stop_agreed"
    CANCEL_REQUESTED = "cancel_requested"
    ROLLED_BACK = "rolled_back"
    RESUME_REQUESTED = "resume_requested"
    PRIORITY_CHANGED = "priority_changed"
    OWNER_CHANGED = "owner_changed"
    SIZE_CHANGED = "size_changed"
    NODE_ENDED = "node_ended"
    ATTEMPT_ENDED = "attempt_ended"
    JOB_ENDED = "job_ended"
    UNREACHABLE = "unreachable"
    REACHABLE = "reachable"
    CHECKPOINT_COMMITTED = "checkpoint_committed"
    SAVE_FAILED = "save_failed"
    CHECKPOINT_DAMAGED = "checkpoint_damaged"
    CHECKPOINT_PINNED = "checkpoint_pinned"
    OPERATION_QUEUED = "operation_queued"
    OPERATION_STARTED = "operation_started"
    OPERATION_ENDED = "operation_ended"
    CONTINUITY_CHECKED = "continuity_checked"
    REQUEST_ANSWERED = "request_answered"
    SHELL_OPENED = "shell_opened"
    SHELL_CLOSED = "shell_closed"
    LINE_SKIPPED = "line_skipped"
    METRICS_DROPPED = "metrics_dropped"
    OUTPUT_DROPPED = "output_dropped"
    STRAGGLER_FOUND = "straggler_found"
    STRAGGLER_GONE = "straggler_gone"
    NODE_REGISTERED = "node_registered"
    NODE_ONLINE = "node_online"
    NODE_OFFLINE = "node_offline"
    NODE_DRAINED = "node_drained"
    NODE_LABELED = "node_labeled"
    JOB_DELETED = "job_deleted"
    PROJECT_CHANGED = "project_changed"
    MEMBERS_CHANGED = "members_changed"
    SERVICE_TOKEN_CHANGED = "service_token_changed"
    LIMITS_CHANGED = "limits_changed"
    SECRET_CHANGED = "secret_changed"
    SOURCE_CHANGED = "source_changed"
    NODES_REQUESTED = "nodes_requested"
    NODES_RELEASED = "nodes_released"


class NoticeKind(StrEnum):
    """Kind of a notice. For each part of a job, such as an operation, live views need only the
    newest notice of each kind."""

    WAITING = "waiting"
    PHASE = "phase"
    METRICS = "metrics"
    RANK_TIMES = "rank_times"
    LOG = "log"
    ARTIFACTS = "artifacts"
    FACTS = "facts"
    CHECKPOINT_SETTLED = "checkpoint_settled"
    OPERATION_WAITING = "operation_waiting"
    OPERATION_PROGRESS = "operation_progress"


def _stored_by_any_version(schema: dict[str, Any]) -> None:
    del schema["additionalProperties"]


class EventData(RecordModel):
    """Details of one event or notice; each kind has its own model.

    A writer only sets declared fields. An event that another version stored may lack fields with a
    default, and may have unknown fields. Therefore the JSON Schema marks fields with a default as
    optional, and allows unknown fields.
    """

    model_config = ConfigDict(
        json_schema_serialization_defaults_required=False,
        json_schema_extra=_stored_by_any_version,
    )
