"""The content of a report: points, digests and output, stored with the offsets up to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from sqlalchemy import select

from server.database.tables import events
from server.ingest.offsets import write_offsets
from server.ingest.report import IncomingReport
from server.logs.store import close_output, store_output
from server.metrics.store import MAX_SERIES, store_lines
from server.subject import SERVER
from trainyard.protocol.event_kinds import EventKind
from trainyard.protocol.rest.event_data import MetricsDropped


def store_content(incoming: IncomingReport, *, before: Mapping[str, int]) -> None:
    """Store points, digests and output with their offsets.

    Args:
        incoming: the report; its `logs` are filled.
        before: the offsets that are stored.
    """
    connection, attempt_id = incoming.connection, incoming.share.attempt_id
    delivery, quota = incoming.delivery, incoming.context.settings.log_quota_bytes
    if delivery.metrics:
        left_out = store_lines(connection, attempt_id, delivery.metrics)
        if left_out:
            _append_dropped(incoming, what="series", limit=MAX_SERIES, first=left_out[0])
    incoming.logs += [
        store_output(connection, attempt_id, rank, content, quota=quota)
        for rank, content in delivery.output
    ]
    node = incoming.share.node
    write_offsets(connection, attempt_id, node, before=before, pieces=delivery.pieces)


def close_logs(incoming: IncomingReport) -> None:
    """Store the last, unfinished line of each log at the exit of the node's ranks."""
    if incoming.report.exit is not None:
        incoming.logs += close_output(
            incoming.connection,
            incoming.share.attempt_id,
            incoming.source.ranks,
            quota=incoming.context.settings.log_quota_bytes,
        )


def drop_steps_beyond(incoming: IncomingReport, *, last_step: int) -> None:
    """Drop metric records above the last step; their bytes are acknowledged: no report fails."""
    delivery = incoming.delivery
    beyond = [record.step for record in delivery.metrics if record.step > last_step]
    if beyond:
        delivery.metrics = [record for record in delivery.metrics if record.step <= last_step]
        _append_dropped(incoming, what="steps", limit=last_step, first=beyond[0])


def _append_dropped(
    incoming: IncomingReport, *, what: Literal["series", "steps"], limit: int, first: str | int
) -> None:
    """Append, once an attempt, the event that points beyond a limit are left out."""
    share = incoming.share
    appended = select(events.c.data).where(
        events.c.job_id == share.job_id,
        events.c.kind == EventKind.METRICS_DROPPED,
        events.c.attempt == share.number,
    )
    if any(data["what"] == what for data in incoming.connection.scalars(appended)):
        return
    kept = f"{limit:,} series" if what == "series" else f"steps up to {limit:,} (training.steps)"
    incoming.append(
        MetricsDropped(what=what, limit=limit, first=first),
        message=f"metrics of attempt {share.number} are kept for {kept}; {first!r} and further "
        "ones are left out",
        actor=SERVER,
    )
