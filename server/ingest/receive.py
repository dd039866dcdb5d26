"""Reports in: content, acknowledged offsets and what follows from them, in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from sqlalchemy import Connection, select
from sqlalchemy.exc import DataError, DBAPIError, StatementError

from server.attempts.launch import effective_spec
from server.attempts.service import (
    ReportedShare,
    authorize_report,
    check_identity,
)
from server.context import Context
from server.database.tables import attempt_nodes, attempts, requests
from server.errors import InvalidRequestError, UnauthenticatedError
from server.ingest.offsets import read_offsets, unpack
from server.ingest.parse import Delivery, ReportSource, read_delivery
from server.ingest.report import IncomingReport
from server.ingest.store import close_logs, drop_steps_beyond, store_content
from server.ingest.subscribers import AFTER_THE_END, SUBSCRIBERS, publish
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
        share = authorize_report(connection, attempt_id, **key)
        present = read_offsets(connection, attempt_id, report.node)
        if present != offsets:  # a copy of this report came in between
            delivery = read_delivery(pieces, present, source)
        incoming = IncomingReport(context, connection, share, source, report, delivery)
        if share.node_state == AttemptNodeState.ENDED:
            return _take_output(incoming, before=present)
        drop_steps_beyond(incoming, last_step=last_step)
        store_content(incoming, before=present)
        close_logs(incoming)
        publish(incoming, SUBSCRIBERS)
        stored = present | {piece.file: piece.end for piece in delivery.pieces}
        return ReportReply(
            acknowledged={chunk.file: stored.get(chunk.file, 0) for chunk in report.chunks},
            desired=share.desired,
            requests=_pending_requests(connection, share),
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


def _last_step(context: Context, attempt_id: str) -> int:
    with context.database.read() as connection:
        return effective_spec(connection, attempt_id).training.steps


def _take_output(incoming: IncomingReport, *, before: Mapping[str, int]) -> ReportReply:
    """Store the output of a share that has ended, drop all else, and order what runs to end.

    What is dropped is acknowledged, so that the supervisor gets to its exit.
    """
    report, delivery = incoming.report, incoming.delivery
    check_identity(incoming.share, report.identity)
    output = [piece for piece in delivery.pieces if piece.file not in {"metrics", "events"}]
    incoming.delivery = Delivery(pieces=output, output=delivery.output)
    store_content(incoming, before=before)
    publish(incoming, AFTER_THE_END)
    dropped = {chunk.file: chunk.end for chunk in report.chunks}
    stored = dict(before) | {piece.file: piece.end for piece in output}
    acknowledged = {
        file: end if file in {"metrics", "events"} else stored.get(file, 0)
        for file, end in dropped.items()
    }
    return ReportReply(acknowledged=acknowledged, desired=DesiredState.CANCEL)


def _pending_requests(connection: Connection, share: ReportedShare) -> tuple[PendingRequest, ...]:
    """Return what the trainer has not answered; only global rank 0's node can hand it over."""
    if share.node_rank != 0:
        return ()
    query = (
        select(requests.c.id, requests.c.request)
        .where(requests.c.attempt_id == share.attempt_id, requests.c.answer.is_(None))
        .order_by(requests.c.id)
        .limit(REQUESTS_AT_ONCE)
    )
    return tuple(
        PendingRequest(id=row.id, request=row.request) for row in connection.execute(query)
    )
