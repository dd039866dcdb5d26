"""Kinds of events: what may happen, for the events table, the stream and whoever listens."""

from __future__ import annotations

from enum import StrEnum


class EventKind(StrEnum):
    """What happened. `data` of an event holds what its docstring names."""

    SUBMITTED = "submitted"
    """A job was stored."""
    QUEUED = "queued"
    """A launch is asked for: `cause`, and for a retry `not_before` and the failure's `reason`."""
    WAITING = "waiting"
    """The reason for which a job waits changed: `reason`. Transient."""
    PLACED = "placed"
    """An attempt got its slots: `layout`, `nodes`, `parent_checkpoint_id`, `start_step`."""
    CLAIMED = "claimed"
    """A node took on its share."""
    PHASE = "phase"
    """The trainer entered a phase: `phase`. Transient."""
    RUNNING = "running"
    """The first step of an attempt began."""
    WEIGHTS_LOADED = "weights_loaded"
    """The trainer read the weights that it starts from: `place`, `files` with their checksums."""
    RESUMED = "resumed"
    """The trainer loaded the checkpoint that it goes on from: `checkpoint_id`, `step`, `changed`
    (fields of the spec, with both values), `compared`, and the digests of own `code`."""
    STOP_REQUESTED = "stop_requested"
    """Somebody asked to save and leave: `reason`; with `goes_on` to continue on other nodes."""
    STOP_AGREED = "stop_agreed"
    """All ranks agreed to save and leave: `step`."""
    CANCEL_REQUESTED = "cancel_requested"
    """Somebody asked to leave now: `reason`, `lost`."""
    ROLLED_BACK = "rolled_back"
    """A guard sent the job back: `checkpoint_id`, `step` of it, `window` that is left out,
    `reason`."""
    RESUME_REQUESTED = "resume_requested"
    """Somebody asked to go on: `world_size`, `layout`, `checkpoint_id`, `branch`."""
    NODE_ENDED = "node_ended"
    """One node's share ended: `outcome`, `failure`."""
    ATTEMPT_ENDED = "attempt_ended"
    """An attempt ended: `outcome`, `failure`, `advice`."""
    JOB_ENDED = "job_ended"
    """A job reached an end: `state`, `reason`."""
    UNREACHABLE = "unreachable"
    """A lease expired; the attempt goes on until the contrary is proved."""
    REACHABLE = "reachable"
    """A silent node reports again."""
    CHECKPOINT_COMMITTED = "checkpoint_committed"
    """A checkpoint entered the catalog: `checkpoint_id`, `step`, `size`, `kind`."""
    CHECKPOINT_SETTLED = "checkpoint_settled"
    """Training takes note of the end of a save: `checkpoint_id`, `stall_seconds`. Transient."""
    SAVE_FAILED = "save_failed"
    """A save failed for a reason that may pass, and is tried again: a `SaveFailed`."""
    CHECKPOINT_DAMAGED = "checkpoint_damaged"
    """An attempt could not load its checkpoint, which is proved to be damaged: `checkpoint_id`,
    `fault`."""
    CHECKPOINT_PINNED = "checkpoint_pinned"
    """A checkpoint is kept whatever retention says, or no longer: `checkpoint_id`, `pinned`."""
    CHORE_QUEUED = "chore_queued"
    """Background work is to be done, or to be done again: `chore_id`, `kind`, `checkpoint_id`,
    `reason`."""
    CHORE_WAITING = "chore_waiting"
    """The reason for which a chore waits changed: `chore_id`, `kind`, `checkpoint_id`, `waiting`.
    Transient."""
    CHORE_STARTED = "chore_started"
    """A node took on a chore: `chore_id`, `kind`, `checkpoint_id`, `fence`."""
    CHORE_PROGRESS = "chore_progress"
    """A chore came further: `chore_id`, `kind`, `checkpoint_id`, `progress`. Transient."""
    CHORE_ENDED = "chore_ended"
    """A chore ended: `chore_id`, `kind`, `checkpoint_id`, `state`, and of a verification `ok`."""
    CONTINUITY_CHECKED = "continuity_checked"
    """The first step after a resume was compared with the lineage: a `Continuity`."""
    REQUEST_ANSWERED = "request_answered"
    """The trainer answered a request: `request_id`, `ok`, `message`."""
    METRICS = "metrics"
    """Points were stored: `step`, `values` of the last line, `progress`. Transient."""
    LOG = "log"
    """Output was stored: `rank`, `lines` so far. Transient."""
    LINE_SKIPPED = "line_skipped"
    """A line of a run's file can never be read and was left out: `file`, `offset`, `error`."""
    METRICS_DROPPED = "metrics_dropped"
    """Points of an attempt are left out: `what` (`series` or `steps`) exceeds the `limit`, and the
    `first` of them. Once for each."""
    NODE_REGISTERED = "node_registered"
    """A node registered or came back with other hardware."""
    NODE_ONLINE = "node_online"
    """Heartbeats of a node arrive again."""
    NODE_OFFLINE = "node_offline"
    """Heartbeats of a node stay away."""
    NODE_DRAINED = "node_drained"
    """Nothing new is placed on a node, or again: `draining`; `running` (`move` or `finish`) when
    somebody drained it, `notice` when it is about to go away itself."""
    JOB_DELETED = "job_deleted"
    """A job and what the server held of it are gone."""


TRANSIENT = frozenset(
    {
        EventKind.WAITING,
        EventKind.PHASE,
        EventKind.METRICS,
        EventKind.LOG,
        EventKind.CHECKPOINT_SETTLED,
        EventKind.CHORE_WAITING,
        EventKind.CHORE_PROGRESS,
    }
)
"""Kinds that only live views need: they are pruned after an hour and kept out of a job's events."""
