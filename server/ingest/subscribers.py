"""What follows from a report: catalog, progress, continuity, answers, and their events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from sqlalchemy import Connection, select, update

from server.attempts.launch import effective_spec
from server.attempts.service import Reporter
from server.checkpoints.catalog import record_commit, record_stall
from server.checkpoints.service import apply_retention
from server.context import Context
from server.database.tables import attempts, events, jobs, requests
from server.events.notices import notify
from server.events.store import append_event
from server.ingest.jsonl import TrainerEvent
from server.ingest.parse import Delivery
from server.logs.store import Stored
from server.metrics import continuity
from server.metrics.progress import PACE_STEPS, STEP_SECONDS, advanced
from server.metrics.store import newest_values
from server.subject import SERVER, TRAINER
from trainyard.protocol.event_kinds import EventKind
from trainyard.protocol.manifest import Manifest, SaveFailed, SaveSettled
from trainyard.protocol.rest.event_data import (
    ContinuityChecked,
    LineSkipped,
    LogStored,
    MetricsDropped,
    MetricsStored,
    PhaseEntered,
    RequestAnswered,
    Resumed,
    StopAgreed,
    WeightsLoaded,
)
from trainyard.protocol.rest.jobs import Progress
from trainyard.run.records import MetricRecord, RequestAnswer


def note_provenance(
    connection: Connection, reporter: Reporter, provenance: dict[str, object] | None
) -> None:
    """Keep what the node of global rank 0 runs, as it was first told."""
    if provenance is not None and reporter.node_rank == 0:
        connection.execute(
            update(attempts)
            .where(attempts.c.id == reporter.attempt_id, attempts.c.provenance.is_(None))
            .values(provenance=provenance)
        )


def note_events(
    context: Context,
    connection: Connection,
    reporter: Reporter,
    delivery: Delivery,
    logs: Iterable[Stored],
) -> None:
    """Enter commits and answers, and tell what the run said of itself."""
    for found in delivery.events:
        if found.manifest is not None:
            _commit(context, connection, reporter, found.manifest)
        elif found.settled is not None:
            _settle(context, connection, reporter, found.settled)
        elif found.save_failed is not None:
            _note_failed_save(context, connection, reporter, found.save_failed)
        elif found.request_id is not None and found.answer is not None:
            answer_request(context, connection, reporter, found.request_id, found.answer)
        elif found.event is not None:
            _append(context, connection, reporter, found.event)
    for skipped in delivery.skipped:
        append_event(
            context,
            connection,
            LineSkipped(file=skipped.file, offset=skipped.offset, error=skipped.error),
            message=f"a line of {skipped.file} at byte {skipped.offset} cannot be read",
            actor=SERVER,
            subject=reporter.subject.on(reporter.node),
        )
    for stored in {stored.rank: stored for stored in logs}.values():
        notify(
            context,
            connection,
            reporter.subject.on(reporter.node),
            LogStored(rank=stored.rank, lines=stored.lines),
        )


def note_dropped(
    context: Context,
    connection: Connection,
    reporter: Reporter,
    *,
    what: Literal["series", "steps"],
    limit: int,
    first: str | int,
) -> None:
    """Tell, once an attempt, that points beyond a limit are left out."""
    told = select(events.c.data).where(
        events.c.job_id == reporter.job_id,
        events.c.kind == EventKind.METRICS_DROPPED,
        events.c.attempt == reporter.number,
    )
    if any(data["what"] == what for data in connection.scalars(told)):
        return
    kept = f"{limit:,} series" if what == "series" else f"steps up to {limit:,} (training.steps)"
    append_event(
        context,
        connection,
        MetricsDropped(what=what, limit=limit, first=first),
        message=f"metrics of attempt {reporter.number} are kept for {kept}; {first!r} and further "
        "ones are left out",
        actor=SERVER,
        subject=reporter.subject,
    )


def answer_request(
    context: Context,
    connection: Connection,
    reporter: Reporter,
    request_id: str,
    answer: RequestAnswer,
) -> None:
    """Store the first answer to a request of this attempt."""
    answered = connection.execute(
        update(requests)
        .where(
            requests.c.id == request_id,
            requests.c.attempt_id == reporter.attempt_id,
            requests.c.answer.is_(None),
        )
        .values(answer=answer)
    )
    if answered.rowcount == 0:
        return
    append_event(
        context,
        connection,
        RequestAnswered(request_id=request_id, ok=answer.ok, message=answer.message),
        message=answer.message,
        actor=TRAINER,
        subject=reporter.subject,
    )


def note_metrics(
    context: Context,
    connection: Connection,
    reporter: Reporter,
    lines: Sequence[MetricRecord],
    *,
    world_size: int,
    heartbeat_step: int,
) -> None:
    """Bring the job's progress forward, check a resume, and tell live charts.

    The heartbeat, noted before, may be some steps ahead of the lines, or behind them.
    """
    attempt_id = reporter.attempt_id
    step = max(line.step for line in lines)
    if step > max(reporter.last_step, heartbeat_step):
        connection.execute(
            update(attempts).where(attempts.c.id == attempt_id).values(last_step=step)
        )
    recent = [line.values[STEP_SECONDS] for line in lines if STEP_SECONDS in line.values]
    if 0 < len(recent) < PACE_STEPS:
        stored = newest_values(connection, attempt_id, STEP_SECONDS, limit=PACE_STEPS)
        recent = stored or recent
    before: Progress = connection.execute(
        select(jobs.c.progress).where(jobs.c.id == reporter.job_id)
    ).scalar_one()
    progress = advanced(
        before,
        lines,
        step=max(step, heartbeat_step),
        world_size=world_size,
        step_seconds=recent[-PACE_STEPS:],
    )
    connection.execute(update(jobs).where(jobs.c.id == reporter.job_id).values(progress=progress))
    _check_continuity(context, connection, reporter, lines)
    values = next((line.values for line in reversed(lines) if line.values), {})
    stored_points = MetricsStored(step=step, values=values, progress=progress)
    notify(context, connection, reporter.subject, stored_points)


def _commit(
    context: Context, connection: Connection, reporter: Reporter, manifest: Manifest
) -> None:
    section = effective_spec(connection, reporter.attempt_id).checkpoint
    if not record_commit(
        context, connection, reporter.attempt_id, manifest, root=section.root, actor=TRAINER
    ):
        return
    mine = attempts.c.id == reporter.attempt_id
    connection.execute(update(attempts).where(mine).values(save_failed=None))
    apply_retention(context, connection, reporter.job_id, section)


def _settle(
    context: Context, connection: Connection, reporter: Reporter, settled: SaveSettled
) -> None:
    if record_stall(connection, reporter.attempt_id, settled):
        notify(context, connection, reporter.subject, settled)


def _note_failed_save(
    context: Context, connection: Connection, reporter: Reporter, failed: SaveFailed
) -> None:
    mine = attempts.c.id == reporter.attempt_id
    connection.execute(update(attempts).where(mine).values(save_failed=failed))
    unsaved = failed.step - failed.saved_step
    append_event(
        context,
        connection,
        failed,
        message=f"save {failed.tries} failed, {unsaved} steps since step {failed.saved_step} "
        f"are not saved: {failed.message}",
        actor=TRAINER,
        subject=reporter.subject,
    )


def _append(
    context: Context, connection: Connection, reporter: Reporter, event: TrainerEvent
) -> None:
    if isinstance(event, PhaseEntered):
        notify(context, connection, reporter.subject, event)
        return
    append_event(
        context,
        connection,
        event,
        message=_in_words(event),
        actor=TRAINER,
        subject=reporter.subject,
    )


def _in_words(event: WeightsLoaded | Resumed | StopAgreed) -> str:
    match event:
        case WeightsLoaded():
            return f"starts from {event.place}"
        case Resumed():
            changed = f"; changed: {'; '.join(event.changed)}" if event.changed else ""
            return f"went on from {event.checkpoint_id}{changed}"
        case StopAgreed():
            return f"all ranks leave after step {event.step}"


def _check_continuity(
    context: Context, connection: Connection, reporter: Reporter, lines: Sequence[MetricRecord]
) -> None:
    if reporter.parent_checkpoint_id is None or lines[0].step > reporter.start_step + 1:
        return
    found = continuity.check(connection, reporter.attempt_id, lines)
    if found is None:
        return
    connection.execute(
        update(attempts).where(attempts.c.id == reporter.attempt_id).values(continuity=found)
    )
    append_event(
        context,
        connection,
        ContinuityChecked(**dict(found)),
        message=f"step {found.step} after {reporter.parent_checkpoint_id}: {found.summary}",
        actor=SERVER,
        subject=reporter.subject,
    )
