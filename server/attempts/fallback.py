"""A checkpoint that could not be loaded: it is marked, and an older one takes its place."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from server.attempts.launch import Launch
from server.attempts.verdict import Fallback
from server.context import Context
from server.events.store import append_event
from server.events.subject import SERVER
from server.tables import checkpoints
from server.telemetry.catalog import newest_checkpoint, usable
from trainyard.protocol.chores import Verification
from trainyard.protocol.failures import Failure
from trainyard.protocol.rest.event_data import CheckpointDamaged


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
    return Fallback(
        damaged=load.checkpoint_id,
        named=attempt.parent_named,
        replacement=_older(connection, launch),
    )


def _older(connection: Connection, launch: Launch) -> str | None:
    """Return the checkpoint that a placement takes now; None where no usable one is left."""
    newest = newest_checkpoint(connection, launch.attempt.id)
    if newest is not None:
        return str(newest.id)
    origin = select(checkpoints.c.id).where(checkpoints.c.id == launch.job.forked_from, *usable())
    found: str | None = connection.scalar(origin)
    return found


def _mark(context: Context, connection: Connection, launch: Launch, failure: Failure) -> None:
    """Enter the damage as a verification would, unless the catalog has it already."""
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
        append_event(
            context,
            connection,
            CheckpointDamaged(checkpoint_id=load.checkpoint_id, fault=load.fault),
            message=f"{load.checkpoint_id} cannot be loaded: {load.fault}: {failure.message}",
            actor=SERVER,
            subject=launch.subject,
        )
