"""The earlier checkpoint from which a job resumes after a failure: a fallback or a rollback.

A fallback replaces a parent checkpoint that could not be loaded, and marks that checkpoint as
damaged. A rollback goes back to before a bad window of data, and the next attempt skips the window.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, select, update

from server.core.context import Context
from server.core.database.tables import attempts, checkpoints, jobs
from server.core.events.store import NewEvent, append_event
from server.core.subject import SERVER
from server.jobs.attempts.launch import Launch
from server.jobs.attempts.parent import parent_checkpoint
from server.jobs.attempts.retry_policy import Fallback, Rollback
from trainyard.protocol.manifest import Manifest
from trainyard.protocol.operations import Verification
from trainyard.protocol.rest.event_data import CheckpointDamaged, RolledBack
from trainyard.protocol.rest.jobs import PendingLaunch
from trainyard.run.failures import Failure
from trainyard.training.data_stream import Windows, covered, merged


def find_fallback(
    context: Context, connection: Connection, *, launch: Launch, failure: Failure | None
) -> Fallback | None:
    """Mark the parent checkpoint as damaged if the damage is proved; return a replacement.

    The result is None unless the attempt failed during the load of its parent checkpoint. The
    damage is stored like the result of a verification, unless the catalog already has this damage.
    """
    attempt, load = launch.attempt, failure.load if failure is not None else None
    if failure is None or load is None or load.checkpoint_id != attempt.parent_checkpoint_id:
        return None
    if load.fault is None:
        return Fallback(damaged=None, named=attempt.parent_named, replacement=load.checkpoint_id)
    now = context.now()
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
    parent = parent_checkpoint(connection, launch.job.id)  # without the checkpoint just marked
    replacement = parent.id if parent.usable else None
    return Fallback(damaged=load.checkpoint_id, named=attempt.parent_named, replacement=replacement)


def find_rollback(
    connection: Connection, launch: Launch, failure: Failure | None
) -> Rollback | None:
    """Return the rollback that a guard requires after a failure; None without such a guard."""
    if failure is None or failure.bad_window is None:
        return None
    bad = failure.bad_window
    found = parent_checkpoint(connection, launch.job.id, before_step=bad.first_step)
    return Rollback(
        window=bad.window,
        first_step=bad.first_step,
        checkpoint_id=found.id,
        step=found.step,
        repeated=covered(bad.window, launch.attempt.skip),
    )


def rolled_back(launch: Launch, rollback: Rollback, failure: Failure) -> NewEvent:
    """Return the event of a queued rollback."""
    start, end = rollback.window
    if launch.job.spec.program is None:
        then = f"{end - start} sequences, [{start}, {end}), are left out from now on"
    else:  # a program has no data positions, so its windows are steps
        then = f"the same in steps {start + 1} to {end} ends the job"
    origin, step, reason = rollback.checkpoint_id, rollback.step, failure.reason
    data = RolledBack(checkpoint_id=origin, step=step, window=rollback.window, reason=reason)
    message = f"Back to step {step} ({origin}) after {reason}: {then}"
    return NewEvent(data, SERVER, launch.subject, message)


def windows_of_newest(connection: Connection, job_ids: Collection[str]) -> Mapping[str, Windows]:
    """Return for each job the windows that its newest attempt skips; unstarted jobs are omitted."""
    newest = (attempts.c.job_id == jobs.c.id) & (attempts.c.number == jobs.c.attempt)
    query = select(jobs.c.id, attempts.c.skip).join(attempts, newest)
    return dict(connection.execute(query.where(jobs.c.id.in_(job_ids))).all())


def windows_left_out(
    connection: Connection, pending: PendingLaunch, *, checkpoint_id: str | None, previous: Windows
) -> Windows:
    """Return the windows of the data stream that a new attempt gets an order to skip.

    These are the windows of the previous attempt and of the launch, except windows that start
    before the position of the parent checkpoint, because the job has already trained on the data
    before this position. If there are any, the windows that the checkpoint lists are added; without
    the order, the trainer skips these windows, too. A program gets all windows.
    """
    wanted = [*previous, *pending.skip]
    if not wanted:
        return ()
    manifest = connection.scalar(
        select(checkpoints.c.manifest).where(checkpoints.c.id == checkpoint_id)
    )
    if not isinstance(manifest, Manifest):  # a program has no data positions
        return merged(wanted)
    data = manifest.train_state.data
    return merged([*data.skipped, *(w for w in wanted if w[0] >= data.position)])
