"""Fallback: marks a parent checkpoint that could not be loaded, and finds an older one."""

from __future__ import annotations

from sqlalchemy import Connection, update

from server.attempts.launch import Launch
from server.attempts.parent import parent_checkpoint
from server.attempts.retry_policy import Fallback
from server.context import Context
from server.database.tables import checkpoints
from server.events.store import NewEvent, append_event
from server.subject import SERVER
from trainyard.protocol.operations import Verification
from trainyard.protocol.rest.event_data import CheckpointDamaged
from trainyard.run.failures import Failure


def find_fallback(
    context: Context, connection: Connection, launch: Launch, failure: Failure | None
) -> Fallback | None:
    """Mark the parent checkpoint if it is proved to be damaged, and return what replaces it.

    Returns:
        None where the attempt did not fail by loading its parent checkpoint.
    """
    attempt, load = launch.attempt, failure.load if failure is not None else None
    if failure is None or load is None or load.checkpoint_id != attempt.parent_checkpoint_id:
        return None
    if load.fault is None:
        return Fallback(damaged=None, named=attempt.parent_named, replacement=load.checkpoint_id)
    _mark(context, connection, launch, failure)
    parent = parent_checkpoint(connection, launch.job.id)  # without the one that was just marked
    return Fallback(
        damaged=load.checkpoint_id,
        named=attempt.parent_named,
        replacement=parent.id if parent.usable else None,
    )


def _mark(context: Context, connection: Connection, launch: Launch, failure: Failure) -> None:
    """Store the damage as a verification does, unless the catalog has it."""
    load, now = failure.load, context.now()
    assert load is not None
    assert load.fault is not None
    found = Verification(ok=False, at=now, fault=load.fault, message=failure.message[:2000])
    marked = connection.execute(
        update(checkpoints)
        .where(checkpoints.c.id == load.checkpoint_id, checkpoints.c.verified.is_not(False))
        .values(verified=False, verification=found, checked_at=now)
    )
    if marked.rowcount:
        event = NewEvent(
            CheckpointDamaged(checkpoint_id=load.checkpoint_id, fault=load.fault),
            SERVER,
            launch.subject,
            f"{load.checkpoint_id} cannot be loaded: {load.fault}: {failure.message}",
        )
        append_event(context, connection, event)
