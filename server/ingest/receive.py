"""Stores a report: content, acknowledged offsets and what follows, in one transaction."""

from __future__ import annotations

import logging
from dataclasses import replace

from sqlalchemy import Connection, bindparam, select, update
from sqlalchemy.exc import DataError, DBAPIError, StatementError

from server.artifacts.store import store_artifacts
from server.attempts.finish import end_nodes
from server.attempts.retry_policy import NodeEnd
from server.attempts.service import (
    ReportedShare,
    check_identity,
    read_reported_share,
    record_heartbeat,
)
from server.context import Context
from server.database.tables import attempt_nodes, requests
from server.errors import InvalidRequestError, UnauthenticatedError
from server.ingest.early_commits import hold_early_commits
from server.ingest.parse import ReportContent, is_log, parse_chunks, unpack
from server.ingest.report import IncomingReport
from server.ingest.subscribers import SUBSCRIBERS, notify_logs
from server.lifecycle import lock_job
from server.logs.store import close_output, store_output
from server.metrics import rank_steps
from server.metrics.store import MAX_SERIES, store_metrics
from server.nodes.register import check_protocol
from server.shells.worker_api import shell_orders
from server.subject import Actor
from trainyard.protocol.rest.event_data import MetricsDropped
from trainyard.protocol.states import AttemptNodeState, AttemptOutcome, DesiredState
from trainyard.protocol.worker_messages import PendingRequest, Report, ReportReply
from trainyard.run.failures import Failure, FailureReason

logger = logging.getLogger(__name__)

REQUESTS_AT_ONCE = 100


def store_report(context: Context, share: ReportedShare, report: Report) -> ReportReply:
    """Store what a supervisor reports, exactly once, and return orders and stored offsets.

    Args:
        context: the server's surroundings.
        share: the share on which the token of the report was accepted.
        report: what it reports.

    Raises:
        UnauthenticatedError: the token is not that of this attempt on this node.
        ConflictError: another supervisor reports for the share.
        InvalidRequestError: a chunk is damaged, a line cannot be read (`server.ingest.parse`
            states the rule), or the database holds no such value; nothing is stored.
    """
    try:
        return _store(context, share, report)
    except (StatementError, OverflowError) as error:
        if isinstance(error, DBAPIError) and not isinstance(error, DataError):
            raise
        # A 500 would be an outage to the sender, which repeats the same report for ever.
        logger.exception("the database refuses a value in a report of attempt %s", share.attempt_id)
        reason = str(getattr(error, "orig", error)).partition("\n")[0]
        raise InvalidRequestError.at("", f"the database refuses a value: {reason}") from error


def _store(context: Context, accepted: ReportedShare, report: Report) -> ReportReply:
    """Store a report, or nothing.

    Bytes that are stored already are ignored, and what follows a gap is not taken: the reply names
    the offset at which to continue. Content, offsets, catalog, progress and events stand or fall
    together. After the end of the share its token brings output alone (`_take_output`).
    """
    check_protocol(report.protocol)
    if report.node != accepted.node:
        raise UnauthenticatedError("this is no token of this attempt on this node")
    # Lines are parsed before the write transaction begins: it holds the job's lock, and on SQLite
    # every writer waits for it.
    chunks = unpack(report.chunks)
    content = parse_chunks(chunks, accepted)
    with context.database.write() as connection:
        lock_job(connection, accepted.job_id)
        share = read_reported_share(connection, accepted.attempt_id, accepted.token_hash)
        if share.acknowledged != accepted.acknowledged:  # a copy of this report came in between
            content = parse_chunks(chunks, share)
        incoming = IncomingReport(context, connection, share, report, content)
        if share.node_state == AttemptNodeState.ENDED or share.lost_at is not None:
            return _take_output(incoming)
        _leave_out_later_steps(incoming)
        _fold_ranks(incoming)
        hold_early_commits(incoming)
        _store_content(incoming)
        _close_logs(incoming)
        for subscriber in SUBSCRIBERS:
            subscriber(incoming)
        _end_share(incoming)  # last: an ended attempt takes neither commits nor answers
        stored = incoming.acknowledged
        return ReportReply(
            acknowledged={chunk.file: stored.get(chunk.file, 0) for chunk in report.chunks},
            desired=share.desired,
            requests=_pending_requests(connection, share),
            shells=shell_orders(context, connection, share),
        )


def _leave_out_later_steps(incoming: IncomingReport) -> None:
    """Keep the metrics up to the last step; bytes of others are acknowledged: no report fails."""
    content, last_step = incoming.content, incoming.share.progress.last_legal_step
    if last_step is None:  # a program whose spec does not give its steps
        return
    metrics = [*content.metrics, *(record for _, record in content.of_ranks)]
    beyond = [each.step for each in metrics if each.step > last_step]
    if not beyond:
        return
    incoming.dropped.append(MetricsDropped(what="steps", limit=last_step, first=beyond[0]))
    content.metrics = [each for each in content.metrics if each.step <= last_step]
    content.of_ranks = [each for each in content.of_ranks if each[1].step <= last_step]


def _fold_ranks(incoming: IncomingReport) -> None:
    """Stage what ranks of a program logged, and fill `folded` of the report."""
    connection, share, now = incoming.connection, incoming.share, incoming.context.now()
    incoming.folded = rank_steps.fold(
        connection, share.attempt_id, incoming.content.of_ranks, now=now
    )
    if incoming.report.exit is not None:
        others = select(attempt_nodes.c.node).where(
            attempt_nodes.c.attempt_id == share.attempt_id,
            attempt_nodes.c.node != share.node,
            attempt_nodes.c.state != AttemptNodeState.ENDED,
            attempt_nodes.c.lost_at.is_(None),
        )
        last = connection.scalar(others.limit(1)) is None
        ranks = {*share.ranks, share.node_rank}
        incoming.folded += rank_steps.end_ranks(
            connection, share.attempt_id, ranks, last=last, now=now
        )


def _store_content(incoming: IncomingReport) -> None:
    """Store metrics, artifacts and output, and note in the report what became of them."""
    connection, attempt_id = incoming.connection, incoming.share.attempt_id
    content, quota = incoming.content, incoming.context.settings.log_quota_bytes
    # The digest of one of several processes is no digest of the step.
    alone = [
        replace(each, data_digest=None) if each.ranks > 1 else each for each in content.metrics
    ]
    if records := [*alone, *incoming.folded]:
        left_out = store_metrics(connection, attempt_id, records)
        if left_out:
            series = MetricsDropped(what="series", limit=MAX_SERIES, first=left_out[0])
            incoming.dropped.append(series)
    if content.artifacts:
        incoming.artifacts = store_artifacts(
            incoming.context, connection, incoming.share, content.artifacts
        )
    incoming.logs += [
        store_output(connection, attempt_id, rank, output, quota=quota)
        for rank, output in content.output
    ]


def _close_logs(incoming: IncomingReport) -> None:
    """Store the last, unfinished line of each log at the exit of the node's ranks."""
    if incoming.report.exit is not None:
        incoming.logs += close_output(
            incoming.connection,
            incoming.share.attempt_id,
            incoming.share.ranks,
            quota=incoming.context.settings.log_quota_bytes,
        )


def _end_share(incoming: IncomingReport) -> None:
    """End the share by its supervisor's last report, and with the last share the attempt."""
    exit_record, share = incoming.report.exit, incoming.share
    if exit_record is None:
        return
    failure = exit_record.failure
    if exit_record.outcome == "failed" and failure is None:
        failure = Failure(
            reason=FailureReason.TRAINER_ERROR, message="the supervisor named no reason"
        )
    if failure is not None:
        # Whatever the sender names: no node makes failures count against another one.
        failure = replace(failure, node=share.node)
    end_nodes(
        incoming.context,
        incoming.connection,
        share.attempt_id,
        [NodeEnd(share.node, AttemptOutcome(exit_record.outcome), failure)],
        actor=Actor(share.node),
        exit_record=exit_record,
    )


def _take_output(incoming: IncomingReport) -> ReportReply:
    """Store the output of a share that has ended or is lost, drop all else, and order its end.

    What is dropped is acknowledged, so that the supervisor gets to its exit, which ends a lost
    share. Until then its reports renew the lease: a node that reports is not ended by silence.
    """
    connection, share = incoming.connection, incoming.share
    report, content = incoming.report, incoming.content
    check_identity(share, report.identity)
    output = [chunk for chunk in content.chunks if is_log(chunk.file)]
    incoming.content = ReportContent(chunks=output, output=content.output)
    _store_content(incoming)
    notify_logs(incoming)
    stored = incoming.acknowledged
    if share.node_state == AttemptNodeState.ENDED:
        mine = attempt_nodes.c.attempt_id == share.attempt_id, attempt_nodes.c.node == share.node
        connection.execute(update(attempt_nodes).where(*mine).values(acknowledged=stored))
    else:
        record_heartbeat(incoming.context, connection, share, None, report.identity, stored)
        _end_share(incoming)
    acknowledged = {
        chunk.file: stored.get(chunk.file, 0) if is_log(chunk.file) else chunk.end
        for chunk in report.chunks
    }
    return ReportReply(acknowledged=acknowledged, desired=DesiredState.CANCEL)


_PENDING_REQUESTS = (
    select(requests.c.id, requests.c.request)
    .where(requests.c.attempt_id == bindparam("attempt_id"), requests.c.answer.is_(None))
    .order_by(requests.c.id)
    .limit(REQUESTS_AT_ONCE)
)


def _pending_requests(connection: Connection, share: ReportedShare) -> tuple[PendingRequest, ...]:
    """Return what the trainer has not answered; only global rank 0's node can hand it over."""
    if share.node_rank != 0:
        return ()
    pending = connection.execute(_PENDING_REQUESTS, {"attempt_id": share.attempt_id})
    return tuple(PendingRequest(id=row.id, request=row.request) for row in pending)
