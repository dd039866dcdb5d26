"""Advances a job's progress from its metrics, and checks a resumed attempt's first step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, update

from server.core.database.tables import attempts, jobs
from server.core.expected_time import expected_time
from server.core.subject import SERVER
from server.telemetry.ingest.report import IncomingReport
from server.telemetry.metrics.continuity import first_step
from server.telemetry.metrics.store import newest_values
from trainyard.protocol.rest.event_data import ContinuityChecked, MetricsStored
from trainyard.protocol.rest.jobs import Progress
from trainyard.run.figures import LOSSES, MAX_TOKENS_PER_SECOND, duration, in_range
from trainyard.run.records import MetricRecord

STEP_SECONDS = "perf/step_seconds"
PER_DEVICE = "perf/tokens_per_second_per_device"
PACE_STEPS = 20
"""Number of logged steps over which the pace is averaged."""

_STORE_PROGRESS = (
    update(jobs).where(jobs.c.id == bindparam("of_job")).values(progress=bindparam("present"))
)
_STORE_STEP = (
    update(attempts)
    .where(attempts.c.id == bindparam("of_attempt"))
    .values(last_step=bindparam("step"))
)


def advance_progress(reports: Sequence[IncomingReport]) -> None:
    """Advance the progress of jobs from heartbeats and metrics, and notify live charts.

    The node of global rank 0 reports heartbeats and metrics. The step in the heartbeat may be
    slightly ahead of the records or behind them. The step in the heartbeat is 0 until a trainer has
    loaded its checkpoint.
    """
    mine = [
        each
        for each in reports
        if each.share.node_rank == 0 and (each.report.heartbeat or each.content.metrics)
    ]
    if not mine:
        return
    connection = mine[0].connection
    recent = _recent_step_seconds(connection, mine)
    steps: list[dict[str, Any]] = []
    progress: list[dict[str, Any]] = []
    for incoming in mine:
        share = incoming.share
        present = _present(incoming, recent.get(share.attempt_id, ()))
        if present.step > share.last_step:
            steps.append({"of_attempt": share.attempt_id, "step": present.step})
        progress.append({"of_job": share.job_id, "present": present})
        if records := incoming.content.metrics:
            values = _newest(records)
            incoming.notify(MetricsStored(step=present.step, values=values, progress=present))
    if steps:
        connection.execute(_STORE_STEP, steps)
    connection.execute(_STORE_PROGRESS, progress)


def _present(incoming: IncomingReport, step_seconds: Sequence[float]) -> Progress:
    """Return a job's progress after a report; `step_seconds` are durations of the last steps."""
    share, records, heartbeat = incoming.share, incoming.content.metrics, incoming.report.heartbeat
    reached = [share.last_step, *(record.step for record in records)]
    seen: dict[str, Any] = {}
    if heartbeat is not None:
        last = share.progress.last_legal_step
        # Later metrics are left out too, because the pace would count steps that never ran.
        reached.append(heartbeat.step if last is None else min(heartbeat.step, last))
        now = incoming.context.now()
        seen = {"phase": heartbeat.phase, "heartbeat_at": now, "answers": heartbeat.answers}
        # If the spec limits the number of steps, no report changes the number.
        if heartbeat.steps is not None and last is None:
            seen |= {"steps": heartbeat.steps, "steps_reported": True}
    progress = share.progress.model_copy(update={"step": max(reached), **seen})
    if not records:
        return progress
    ranks = share.layout.world_size
    return _advanced(progress, records, world_size=ranks, step_seconds=step_seconds)


def _newest(records: Sequence[MetricRecord]) -> dict[str, float]:
    """Return the values of the newest step that has values, merged from all records of the step."""
    valued = [record for record in records if record.values]
    last = max((record.step for record in valued), default=None)
    return {
        name: value
        for record in valued
        if record.step == last
        for name, value in record.values.items()
    }


def _advanced(
    progress: Progress,
    records: Sequence[MetricRecord],
    *,
    world_size: int,
    step_seconds: Sequence[float],
) -> Progress:
    """Return the progress with new loss, throughput and time left, from one or more `records`."""
    values = _newest(records)
    durations = [seconds for seconds in step_seconds if duration(seconds) is not None]
    left = None if step_seconds else progress.seconds_left
    if durations and progress.steps is not None:
        pace = sum(durations) / len(durations)
        left = expected_time(max(progress.steps - progress.step, 0) * pace).total_seconds()
    loss = next((values[name] for name in LOSSES if name in values), progress.loss)
    throughput = progress.tokens_per_second
    if PER_DEVICE in values:
        per_device = in_range(values[PER_DEVICE], below=MAX_TOKENS_PER_SECOND)
        throughput = None if per_device is None else per_device * world_size
    return progress.model_copy(
        update={"loss": loss, "tokens_per_second": throughput, "seconds_left": left}
    )


def _recent_step_seconds(
    connection: Connection, reports: Sequence[IncomingReport]
) -> dict[str, list[float]]:
    """Return durations of each attempt's last steps, by attempt id.

    The store gives the durations of an attempt if the reports have some, but too few.
    """
    given = {
        each.share.attempt_id: [
            record.values[STEP_SECONDS]
            for record in each.content.metrics
            if STEP_SECONDS in record.values
        ]
        for each in reports
    }
    short = [attempt_id for attempt_id, own in given.items() if 0 < len(own) < PACE_STEPS]
    stored = newest_values(connection, short, STEP_SECONDS, limit=PACE_STEPS) if short else {}
    return {attempt_id: own[-PACE_STEPS:] for attempt_id, own in (given | stored).items()}


def check_continuity(incoming: IncomingReport) -> None:
    """Check the first step of a resumed attempt once the step is stored."""
    if not incoming.begins_resume:
        return
    # A record of one of several processes does not cover the whole step.
    alone = (record for record in incoming.step_records if record.ranks == 1)
    share = incoming.share
    found = first_step.check(incoming.connection, share.attempt_id, [*alone, *incoming.folded])
    if found is None:
        return
    mine = attempts.c.id == share.attempt_id
    incoming.connection.execute(update(attempts).where(mine).values(continuity=found))
    changed = f"; changed: {', '.join(found.differs)}" if found.differs else ""
    incoming.append(
        ContinuityChecked(**dict(found)),
        message=f"step {found.step} after {share.parent_checkpoint_id}: {found.summary}{changed}",
        actor=SERVER,
    )
