"""Reports in: content, acknowledged offsets and what follows from them, in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from sqlalchemy import Connection, select
from sqlalchemy.exc import DataError, DBAPIError, StatementError

from server.attempts.launch import effective_spec
from server.attempts.service import (
    Reporter,
    authorize_report,
    check_identity,
    record_exit,
    record_heartbeat,
)
from server.context import Context
from server.database.tables import attempt_nodes, attempts, requests
from server.errors import InvalidRequestError, UnauthenticatedError
from server.ingest.offsets import read_offsets, unpack, write_offsets
from server.ingest.parse import Delivery, ReportSource, read_delivery
from server.ingest.subscribers import (
    answer_request,
    note_dropped,
    note_events,
    note_metrics,
    note_provenance,
)
from server.logs.store import Stored, close_output, store_output
from server.metrics.store import MAX_SERIES, store_lines
from server.nodes.service import check_protocol
from trainyard.protocol.states import AttemptNodeState, DesiredState
from trainyard.protocol.worker_messages import PendingRequest, Report, ReportReply

logger = logging.getLogger(__name__)

REQUESTS_AT_ONCE = 100


def store_report(context: Context, attempt_id: str, token_hash: str, report: Report) -> ReportReply:
    """Store what a supervisor reports, exactly once, and return orders and stored offsets.

    Raises:
        UnauthenticatedError: the token is not that of this attempt on this node.
        ConflictError: another supervisor reports for the share.
        InvalidRequestError: a chunk is damaged, a line cannot be read (`server.ingest.jsonl`
            states the rule), or the database holds no such value; nothing is stored.
    """
    try:
        return _store(context, attempt_id, token_hash, report)
    except (StatementError, OverflowError) as error:
        if isinstance(error, DBAPIError) and not isinstance(error, DataError):
            raise
        # A 500 would be an outage to the sender, which repeats the same report for ever.
        logger.exception("the database refuses a value in a report of attempt %s", attempt_id)
        reason = str(getattr(error, "orig", error)).partition("\n")[0]
        raise InvalidRequestError.at("", f"the database refuses a value: {reason}") from error


def _store(context: Context, attempt_id: str, token_hash: str, report: Report) -> ReportReply:
    """Store a report, or nothing.

    Bytes that are stored already are ignored, and what follows a gap is not taken: the reply names
    the offset to go on from. Content, offsets, catalog, progress and events stand or fall together.
    Once the share has ended its token brings output alone (`_take_output`).
    """
    check_protocol(report.protocol)
    key = {"node": report.node, "token_hash": token_hash}
    # Nobody else's bytes are unpacked, and no line is parsed while other writers wait.
    with context.database.read() as connection:
        source = _source(connection, attempt_id, **key)
        offsets = read_offsets(connection, attempt_id, report.node)
    pieces = unpack(report.chunks)
    delivery = read_delivery(pieces, offsets, source)
    last_step = _last_step(context, attempt_id) if delivery.metrics else 0
    with context.database.write() as connection:
        reporter = authorize_report(connection, attempt_id, **key)
        present = read_offsets(connection, attempt_id, report.node)
        if present != offsets:  # a copy of this report came in between
            delivery = read_delivery(pieces, present, source)
        if reporter.node_state == AttemptNodeState.ENDED:
            return _take_output(context, connection, reporter, delivery, report, before=present)
        _leave_out(context, connection, reporter, delivery, last_step=last_step)
        logs = _store_content(context, connection, reporter, delivery, before=present)
        if report.exit is not None:
            quota = context.settings.log_quota_bytes
            logs += close_output(connection, attempt_id, source.ranks, quota=quota)
        record_heartbeat(context, connection, reporter, report.heartbeat, report.identity)
        note_provenance(connection, reporter, report.provenance)
        note_events(context, connection, reporter, delivery, logs)
        if delivery.metrics:
            note_metrics(
                context,
                connection,
                reporter,
                delivery.metrics,
                world_size=source.world_size,
                heartbeat_step=report.heartbeat.step if report.heartbeat else 0,
            )
        for request_id, answer in report.answers.items():
            answer_request(context, connection, reporter, request_id, answer)
        if report.exit is not None:
            record_exit(context, connection, reporter, report.exit)
        stored = present | {piece.file: piece.end for piece in delivery.pieces}
        return ReportReply(
            acknowledged={chunk.file: stored.get(chunk.file, 0) for chunk in report.chunks},
            desired=reporter.desired,
            requests=_pending_requests(connection, reporter),
        )


def _source(connection: Connection, attempt_id: str, *, node: str, token_hash: str) -> ReportSource:
    """Return where a report comes from; its token is checked again under the job's lock."""
    share, attempt = attempt_nodes.c, attempts.c
    row = connection.execute(
        select(share.slots, share.node_rank, attempt.job_id, attempt.number, attempt.layout)
        .join(attempts, attempt.id == share.attempt_id)
        .where(share.attempt_id == attempt_id, share.node == node, share.token_hash == token_hash)
    ).one_or_none()
    if row is None:
        raise UnauthenticatedError("this is no token of this attempt on this node")
    size = len(row.slots)  # every node of an attempt has as many ranks
    return ReportSource(
        job_id=row.job_id,
        number=row.number,
        node=node,
        node_rank=row.node_rank,
        ranks=range(row.node_rank * size, (row.node_rank + 1) * size),
        world_size=row.layout.world_size,
    )


def _store_content(
    context: Context,
    connection: Connection,
    reporter: Reporter,
    delivery: Delivery,
    *,
    before: Mapping[str, int],
) -> list[Stored]:
    """Store points, digests and output with their offsets."""
    attempt_id = reporter.attempt_id
    if delivery.metrics:
        left_out = store_lines(connection, attempt_id, delivery.metrics)
        if left_out:
            note_dropped(
                context, connection, reporter, what="series", limit=MAX_SERIES, first=left_out[0]
            )
    quota = context.settings.log_quota_bytes
    logs = [
        store_output(connection, attempt_id, rank, content, quota=quota)
        for rank, content in delivery.output
    ]
    write_offsets(connection, attempt_id, reporter.node, before=before, pieces=delivery.pieces)
    return logs


def _leave_out(
    context: Context,
    connection: Connection,
    reporter: Reporter,
    delivery: Delivery,
    *,
    last_step: int,
) -> None:
    """Drop metric lines above the last step; their bytes are acknowledged, so no report fails."""
    beyond = [line.step for line in delivery.metrics if line.step > last_step]
    if beyond:
        delivery.metrics = [line for line in delivery.metrics if line.step <= last_step]
        note_dropped(context, connection, reporter, what="steps", limit=last_step, first=beyond[0])


def _last_step(context: Context, attempt_id: str) -> int:
    with context.database.read() as connection:
        return effective_spec(connection, attempt_id).training.steps


def _take_output(
    context: Context,
    connection: Connection,
    reporter: Reporter,
    delivery: Delivery,
    report: Report,
    *,
    before: Mapping[str, int],
) -> ReportReply:
    """Store the output of a share that has ended, drop all else, and order what runs to end.

    What is dropped is acknowledged, so that the supervisor gets to its exit.
    """
    check_identity(reporter, report.identity)
    output = [piece for piece in delivery.pieces if piece.file not in {"metrics", "events"}]
    kept = Delivery(pieces=output, output=delivery.output)
    logs = _store_content(context, connection, reporter, kept, before=before)
    note_events(context, connection, reporter, kept, logs)
    dropped = {chunk.file: chunk.end for chunk in report.chunks}
    stored = dict(before) | {piece.file: piece.end for piece in output}
    acknowledged = {
        file: end if file in {"metrics", "events"} else stored.get(file, 0)
        for file, end in dropped.items()
    }
    return ReportReply(acknowledged=acknowledged, desired=DesiredState.CANCEL)


def _pending_requests(connection: Connection, reporter: Reporter) -> tuple[PendingRequest, ...]:
    """Return what the trainer has not answered; only global rank 0's node can hand it over."""
    if reporter.node_rank != 0:
        return ()
    query = (
        select(requests.c.id, requests.c.request)
        .where(requests.c.attempt_id == reporter.attempt_id, requests.c.answer.is_(None))
        .order_by(requests.c.id)
        .limit(REQUESTS_AT_ONCE)
    )
    return tuple(
        PendingRequest(id=row.id, request=row.request) for row in connection.execute(query)
    )
