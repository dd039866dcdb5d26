"""Advances a job's progress by its metrics, and checks the first step of a resumed attempt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, update

from server.database.tables import attempts, jobs
from server.ingest.report import IncomingReport
from server.metrics import continuity
from server.metrics.store import newest_values
from server.placement.demand import expected_time
from server.subject import SERVER
from trainyard.protocol.rest.event_data import ContinuityChecked, MetricsStored
from trainyard.protocol.rest.jobs import Progress
from trainyard.run.records import Heartbeat, MetricRecord

STEP_SECONDS = "perf/step_seconds"
PACE_STEPS = 20
"""Logged steps over which the pace is averaged."""


_STORE_PROGRESS = (
    update(jobs).where(jobs.c.id == bindparam("of_job")).values(progress=bindparam("present"))
)
_STORE_STEP = (
    update(attempts)
    .where(attempts.c.id == bindparam("of_attempt"))
    .values(last_step=bindparam("step"))
)


def advance_progress(incoming: IncomingReport) -> None:
    """Advance the job's progress by heartbeat and metrics, check a resume, notify live charts.

    Global rank 0's node reports both. The heartbeat may be some steps ahead of the records or
    behind them, and is at 0 before a trainer has loaded its checkpoint.
    """
    connection, share = incoming.connection, incoming.share
    records, heartbeat = incoming.content.metrics, incoming.report.heartbeat
    if share.node_rank != 0 or (heartbeat is None and not records):
        return
    reached = [record.step for record in records]
    step = max([share.last_step, *reached, *([] if heartbeat is None else [heartbeat.step])])
    if step > share.last_step:
        connection.execute(_STORE_STEP, {"of_attempt": share.attempt_id, "step": step})
    progress = share.progress.model_copy(update={"step": step})
    if heartbeat is not None:
        progress = progress.model_copy(update=_seen(incoming, progress, heartbeat))
    if records:
        progress = advanced(
            progress,
            records,
            world_size=share.layout.world_size,
            step_seconds=_recent_step_seconds(incoming),
        )
    connection.execute(_STORE_PROGRESS, {"of_job": share.job_id, "present": progress})
    if records:
        values = next((record.values for record in reversed(records) if record.values), {})
        incoming.notify(MetricsStored(step=step, values=values, progress=progress))


def _seen(incoming: IncomingReport, progress: Progress, heartbeat: Heartbeat) -> dict[str, Any]:
    """Return the fields of the progress that a heartbeat gives."""
    seen: dict[str, Any] = {
        "phase": heartbeat.phase,
        "heartbeat_at": incoming.context.now(),
        "answers": heartbeat.answers,
    }
    # What the spec gives is a limit, and no report changes it.
    if heartbeat.steps is not None and progress.last_legal_step is None:
        seen |= {"steps": heartbeat.steps, "steps_reported": True}
    return seen


def advanced(
    progress: Progress,
    records: Sequence[MetricRecord],
    *,
    world_size: int,
    step_seconds: Sequence[float],
) -> Progress:
    """Return the progress after these records.

    Args:
        progress: what was known before, with the step that is reached.
        records: at least one record.
        world_size: ranks of the attempt.
        step_seconds: durations of the last steps.
    """
    values = next((record.values for record in reversed(records) if record.values), {})
    per_device = values.get("perf/tokens_per_second_per_device")
    durations = [seconds for seconds in step_seconds if 0 <= seconds < math.inf]
    left = progress.seconds_left
    if durations and progress.steps is not None:
        pace = sum(durations) / len(durations)
        left = expected_time(max(progress.steps - progress.step, 0) * pace).total_seconds()
    return progress.model_copy(
        update={
            "loss": values.get("train/loss", progress.loss),
            "tokens_per_second": progress.tokens_per_second
            if per_device is None
            else per_device * world_size,
            "seconds_left": left,
        }
    )


def _recent_step_seconds(incoming: IncomingReport) -> Sequence[float]:
    """Return the durations of the last steps; the store supplies what a short report lacks."""
    records = incoming.content.metrics
    recent = [record.values[STEP_SECONDS] for record in records if STEP_SECONDS in record.values]
    if 0 < len(recent) < PACE_STEPS:
        connection, attempt_id = incoming.connection, incoming.share.attempt_id
        recent = newest_values(connection, attempt_id, STEP_SECONDS, limit=PACE_STEPS) or recent
    return recent[-PACE_STEPS:]


def check_continuity(incoming: IncomingReport) -> None:
    """Check the first step of a resumed attempt, once it is stored."""
    share = incoming.share
    # What one of several processes logs is no record of the step.
    alone = (record for record in incoming.content.metrics if record.ranks == 1)
    records = [*alone, *incoming.folded]
    if share.parent_checkpoint_id is None or not records:
        return
    if min(record.step for record in records) > share.start_step + 1:
        return
    found = continuity.check(incoming.connection, share.attempt_id, records)
    if found is None:
        return
    mine = attempts.c.id == share.attempt_id
    incoming.connection.execute(update(attempts).where(mine).values(continuity=found))
    incoming.append(
        ContinuityChecked(**dict(found)),
        message=f"step {found.step} after {share.parent_checkpoint_id}: {found.summary}",
        actor=SERVER,
    )
