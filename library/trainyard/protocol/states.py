"""States of jobs, attempts, attempt-nodes, operations and requests for nodes; legal transitions.

docs/lifecycle.md and docs/sources.md describe the states. `server/core/lifecycle.py` is the only
module that changes a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

State = TypeVar("State", bound=StrEnum)


class JobState(StrEnum):
    """State of a job, summarised from its attempts."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    CANCELLED = "cancelled"


class AttemptState(StrEnum):
    """State of one launch of a job."""

    PLACED = "placed"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class AttemptNodeState(StrEnum):
    """State of one node's share of an attempt."""

    PLACED = "placed"
    CLAIMED = "claimed"
    RUNNING = "running"
    SPARE = "spare"
    ENDED = "ended"


class OperationState(StrEnum):
    """State of background work on a node."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class NodeRequestState(StrEnum):
    """State of a request to a source for nodes."""

    WANTED = "wanted"
    PENDING = "pending"
    RUNNING = "running"
    LEAVING = "leaving"
    ENDED = "ended"


class AttemptOutcome(StrEnum):
    """Outcome of an attempt, or of one node's share of it."""

    SUCCEEDED = "succeeded"
    STOPPED = "stopped"
    FAILED = "failed"
    CANCELLED = "cancelled"


class DesiredState(StrEnum):
    """Desired state of an attempt, which each reply to a supervisor's report contains."""

    RUN = "run"
    STOP = "stop"
    CANCEL = "cancel"


class AttemptCause(StrEnum):
    """Cause of an attempt."""

    SUBMIT = "submit"
    RESUME = "resume"
    RESIZE = "resize"
    RETRY = "retry"
    IMPORT = "import"
    """An import, which launches nothing: its attempt only holds the points of a run that another
    tool recorded."""


TERMINAL_JOB_STATES = frozenset(
    {JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED, JobState.CANCELLED}
)
ACTIVE_JOB_STATES = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})
LIVE_ATTEMPT_STATES = frozenset(AttemptState) - {AttemptState.ENDED}

OPEN_OPERATION_STATES = frozenset({OperationState.QUEUED, OperationState.RUNNING})

_ENDS = TERMINAL_JOB_STATES | {JobState.QUEUED}  # queued: a retry or a resize follows

JOB_MOVES: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset(
        {JobState.STARTING, JobState.STOPPED, JobState.CANCELLED, JobState.FAILED}
    ),
    JobState.STARTING: _ENDS | {JobState.RUNNING, JobState.STOPPING},
    JobState.RUNNING: _ENDS | {JobState.STOPPING},
    JobState.STOPPING: _ENDS,
    **dict.fromkeys(TERMINAL_JOB_STATES, frozenset({JobState.QUEUED})),
}

_STOPPING = frozenset({AttemptState.STOPPING, AttemptState.ENDED})
ATTEMPT_MOVES: Mapping[AttemptState, frozenset[AttemptState]] = {
    AttemptState.PLACED: _STOPPING | {AttemptState.STARTING},
    AttemptState.STARTING: _STOPPING | {AttemptState.RUNNING},
    AttemptState.RUNNING: _STOPPING,
    AttemptState.STOPPING: frozenset({AttemptState.ENDED}),
    AttemptState.ENDED: frozenset(),
}

ATTEMPT_NODE_MOVES: Mapping[AttemptNodeState, frozenset[AttemptNodeState]] = {
    AttemptNodeState.PLACED: frozenset({AttemptNodeState.CLAIMED, AttemptNodeState.ENDED}),
    AttemptNodeState.CLAIMED: frozenset({AttemptNodeState.RUNNING, AttemptNodeState.ENDED}),
    AttemptNodeState.RUNNING: frozenset({AttemptNodeState.ENDED}),
    AttemptNodeState.SPARE: frozenset(),  # its row is deleted with its release
    AttemptNodeState.ENDED: frozenset(),
}

_GIVEN_UP = frozenset({OperationState.FAILED, OperationState.CANCELLED})
OPERATION_MOVES: Mapping[OperationState, frozenset[OperationState]] = {
    OperationState.QUEUED: _GIVEN_UP | {OperationState.RUNNING},
    OperationState.RUNNING: _GIVEN_UP | {OperationState.QUEUED, OperationState.SUCCEEDED},
    **dict.fromkeys(frozenset(OperationState) - OPEN_OPERATION_STATES, frozenset()),
}

_WITHDRAWN = frozenset({NodeRequestState.LEAVING, NodeRequestState.ENDED})
NODE_REQUEST_MOVES: Mapping[NodeRequestState, frozenset[NodeRequestState]] = {
    NodeRequestState.WANTED: _WITHDRAWN | {NodeRequestState.PENDING, NodeRequestState.RUNNING},
    NodeRequestState.PENDING: _WITHDRAWN | {NodeRequestState.RUNNING},
    NodeRequestState.RUNNING: _WITHDRAWN | {NodeRequestState.PENDING},  # requeued in the engine
    NodeRequestState.LEAVING: frozenset({NodeRequestState.ENDED}),
    NodeRequestState.ENDED: frozenset(),
}


def sources(moves: Mapping[State, frozenset[State]], target: State) -> frozenset[State]:
    """Return the states from which `target` can be reached. The SQL UPDATE to `target` only changes
    rows in one of these states."""
    return frozenset(state for state, targets in moves.items() if target in targets)
