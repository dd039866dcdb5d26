"""What follows from a report: catalog, progress, continuity, answers, and their events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import orjson
from sqlalchemy import Connection, select, update

from server.attempts.launch import effective_spec
from server.attempts.service import Reporter
from server.chores.service import apply_retention
from server.context import Context
from server.events.store import append_event
from server.tables import attempts, events, jobs, requests
from server.telemetry import continuity
from server.telemetry.catalog import record_commit, record_stall
from server.telemetry.delivery import Delivery
from server.telemetry.lines import RunEvent
from server.telemetry.logs import Stored
from server.telemetry.metrics import newest_values
from server.telemetry.progress import PACE_STEPS, STEP_SECONDS, advanced
from specs.api.jobs import Progress
from specs.checkpoint import Manifest, SaveFailed, SaveSettled
from specs.events import EventKind
from specs.rundir import EventLine, MetricLine, RequestAnswer

TRAINER = "trainer"
"""Actor of what the run itself did."""


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
        else:
            _tell(context, connection, reporter, found)
    for skipped in delivery.skipped:
        append_event(
            context,
            connection,
            kind=EventKind.LINE_SKIPPED,
            message=f"a line of {skipped.file} at byte {skipped.offset} cannot be read",
            actor="server",
            job_id=reporter.job_id,
            attempt=reporter.number,
            node=reporter.node,
            data={"file": skipped.file, "offset": skipped.offset, "error": skipped.error},
        )
    for stored in {stored.rank: stored for stored in logs}.values():
        append_event(
            context,
            connection,
            kind=EventKind.LOG,
            message=f"rank {stored.rank}: {stored.lines} lines",
            actor=TRAINER,
            job_id=reporter.job_id,
            attempt=reporter.number,
            node=reporter.node,
            data={"rank": stored.rank, "lines": stored.lines},
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
        events.c.transient.is_(False),
        events.c.kind == EventKind.METRICS_DROPPED,
        events.c.attempt == reporter.number,
    )
    if any(data["what"] == what for data in connection.scalars(told)):
        return
    kept = f"{limit:,} series" if what == "series" else f"steps up to {limit:,} (training.steps)"
    append_event(
        context,
        connection,
        kind=EventKind.METRICS_DROPPED,
        message=f"metrics of attempt {reporter.number} are kept for {kept}; {first!r} and further "
        "ones are left out",
        actor="server",
        job_id=reporter.job_id,
        attempt=reporter.number,
        data={"what": what, "limit": limit, "first": first},
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
        kind=EventKind.REQUEST_ANSWERED,
        message=answer.message,
        actor=TRAINER,
        job_id=reporter.job_id,
        attempt=reporter.number,
        data={"request_id": request_id, "ok": answer.ok, "message": answer.message},
    )


def note_metrics(
    context: Context,
    connection: Connection,
    reporter: Reporter,
    lines: Sequence[MetricLine],
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
    append_event(
        context,
        connection,
        kind=EventKind.METRICS,
        message=f"step {step}",
        actor=TRAINER,
        job_id=reporter.job_id,
        attempt=reporter.number,
        data={
            "step": step,
            "values": _as_json(next((line.values for line in reversed(lines) if line.values), {})),
            "progress": orjson.loads(progress.model_dump_json()),
        },
    )


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
    if not record_stall(connection, reporter.attempt_id, settled):
        return
    append_event(
        context,
        connection,
        kind=EventKind.CHECKPOINT_SETTLED,
        message=f"training waited {settled.stall_seconds:.3g} s for {settled.checkpoint_id}",
        actor=TRAINER,
        job_id=reporter.job_id,
        attempt=reporter.number,
        data=settled.model_dump(),
    )


def _note_failed_save(
    context: Context, connection: Connection, reporter: Reporter, failed: SaveFailed
) -> None:
    mine = attempts.c.id == reporter.attempt_id
    connection.execute(update(attempts).where(mine).values(save_failed=failed))
    unsaved = failed.step - failed.saved_step
    append_event(
        context,
        connection,
        kind=EventKind.SAVE_FAILED,
        message=f"save {failed.tries} failed, {unsaved} steps since step {failed.saved_step} "
        f"are not saved: {failed.message}",
        actor=TRAINER,
        job_id=reporter.job_id,
        attempt=reporter.number,
        data=failed.model_dump(mode="json"),
    )


def _tell(context: Context, connection: Connection, reporter: Reporter, found: RunEvent) -> None:
    line = found.line
    messages = {
        "phase": f"{line.data.get('phase', 'unknown')} at step {line.step}",
        "weights_loaded": f"starts from {line.data.get('place', 'given weights')}",
        "resumed": f"went on from {line.data.get('checkpoint_id', 'a checkpoint')}"
        f"{_what_changed(line)}",
        "stop_agreed": f"all ranks leave after step {line.step}",
    }
    append_event(
        context,
        connection,
        kind=EventKind(line.kind),
        message=messages[line.kind],
        actor=TRAINER,
        job_id=reporter.job_id,
        attempt=reporter.number,
        data={**line.data, "step": line.step, "time": line.time},
    )


def _what_changed(line: EventLine) -> str:
    changed = line.data.get("changed")
    if not isinstance(changed, list) or not changed:
        return ""
    return f"; changed: {'; '.join(map(str, changed))}"


def _check_continuity(
    context: Context, connection: Connection, reporter: Reporter, lines: Sequence[MetricLine]
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
        kind=EventKind.CONTINUITY_CHECKED,
        message=f"step {found.step} after {reporter.parent_checkpoint_id}: {found.summary}",
        actor="server",
        job_id=reporter.job_id,
        attempt=reporter.number,
        data=found.model_dump(mode="json"),
    )


def _as_json(values: Mapping[str, float]) -> dict[str, float | str]:
    """Write NaN and infinity as strings: JSON has neither, and they are what people look for."""
    names = {math.inf: "Infinity", -math.inf: "-Infinity"}
    return {
        name: value if math.isfinite(value) else names.get(value, "NaN")
        for name, value in values.items()
    }
