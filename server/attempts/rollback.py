"""Rollbacks: the checkpoint before the damage, and the windows that an attempt leaves out."""

from __future__ import annotations

from sqlalchemy import Connection, select

from server.attempts.launch import Launch
from server.attempts.parent import parent_checkpoint
from server.attempts.retry_policy import Rollback
from server.context import Context
from server.database.rows import Job
from server.database.tables import attempts, checkpoints
from server.events.store import NewEvent, append_event
from server.subject import SERVER
from trainyard.protocol.rest.event_data import RolledBack
from trainyard.protocol.rest.jobs import PendingLaunch
from trainyard.run.failures import Failure
from trainyard.training.data_stream import Windows, covered, merged


def find_rollback(
    connection: Connection, launch: Launch, failure: Failure | None
) -> Rollback | None:
    """Return the rollback that a failure requires; None where no guard requires one."""
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


def append_rollback(
    context: Context, connection: Connection, launch: Launch, rollback: Rollback, failure: Failure
) -> None:
    """Append the event of a queued rollback."""
    start, end = rollback.window
    event = NewEvent(
        RolledBack(
            checkpoint_id=rollback.checkpoint_id,
            step=rollback.step,
            window=rollback.window,
            reason=failure.reason,
        ),
        SERVER,
        launch.subject,
        f"Back to step {rollback.step} ({rollback.checkpoint_id}) after {failure.reason}: "
        f"{end - start} sequences, [{start}, {end}), are left out from now on",
    )
    append_event(context, connection, event)


def windows_left_out(
    connection: Connection, job: Job, pending: PendingLaunch, checkpoint_id: str | None
) -> Windows:
    """Return all windows of the stream that a new attempt leaves out.

    These are the windows that its checkpoint left out, and those of the previous attempt and of the
    launch that begin after the checkpoint's position: earlier data has been trained on.
    """
    wanted = list(pending.skip)
    if job.attempt > 0:
        previous = (attempts.c.job_id == job.id) & (attempts.c.number == job.attempt)
        wanted = [*(connection.scalar(select(attempts.c.skip).where(previous)) or ()), *wanted]
    if not wanted:
        return ()
    manifest = connection.scalar(
        select(checkpoints.c.manifest).where(checkpoints.c.id == checkpoint_id)
    )
    if manifest is None:
        return merged(wanted)
    data = manifest.train_state.data
    return merged([*data.skipped, *(w for w in wanted if w[0] >= data.position)])
