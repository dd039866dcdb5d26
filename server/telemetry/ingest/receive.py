"""Stores reports with their content, acknowledged offsets and effects in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, select, update
from sqlalchemy.exc import DataError, DBAPIError, StatementError

from server.api.http.worker_protocol import check_protocol
from server.core.context import Context
from server.core.database.tables import attempt_nodes, requests
from server.core.errors import InvalidRequestError, RefusalError, UnauthenticatedError
from server.core.lifecycle import lock_jobs_of
from server.core.subject import Actor
from server.jobs.attempts.finish import end_nodes
from server.jobs.attempts.reports import (
    WRONG_TOKEN,
    HeardShare,
    ReportedShare,
    ShareKey,
    accepted_or_refused,
    check_identity,
    read_reported_shares,
    record_heartbeats,
)
from server.jobs.attempts.retry_policy import NodeEnd
from server.jobs.shells.worker_api import shell_orders
from server.telemetry.artifacts.store import store_artifacts
from server.telemetry.ingest.parse import METRICS, ReportContent, is_log, parse_chunks, unpack
from server.telemetry.ingest.report import IncomingReport
from server.telemetry.ingest.run_events import hold_early_commits
from server.telemetry.ingest.subscribers import SUBSCRIBERS, notify_logs, store_notices
from server.telemetry.logs.store import LogKey, close_output, store_output
from server.telemetry.metrics import rank_steps
from server.telemetry.metrics.lineage_values import move_late_values
from server.telemetry.metrics.restarts import take_back
from server.telemetry.metrics.store import MAX_SERIES, store_metrics
from trainyard.protocol.rest.event_data import MetricsDropped
from trainyard.protocol.states import AttemptNodeState, AttemptOutcome, DesiredState
from trainyard.protocol.worker_messages import (
    OLDEST_REPORTS,
    PendingRequest,
    Report,
    ReportReply,
)
from trainyard.run.failures import Failure, FailureReason
from trainyard.run.records import MetricRecord, SeriesRestart

logger = logging.getLogger(__name__)

SHARED_BYTES = 16 * 1024
"""Maximum content of a report that may share a transaction, in bytes. A larger report would delay
the other reports, and sharing would save little, because most of the time of such a report goes
into its lines.
"""


@dataclass(frozen=True)
class SentReport:
    """A report and its share, which the report's token authenticates."""

    share: ReportedShare
    report: Report

    @property
    def may_share(self) -> bool:
        """Whether the report may join a group: it is small, with only steps, output and a lease."""
        report = self.report
        rare = report.exit or report.answers or report.unusable or report.provenance or report.facts
        if rare or sum(each.end - each.start for each in report.chunks) > SHARED_BYTES:
            return False
        return all(chunk.file in METRICS or is_log(chunk.file) for chunk in report.chunks)


Answer = ReportReply | RefusalError | None
"""Reply or error; None for a report that needs its own transaction."""


def store_report(context: Context, share: ReportedShare, report: Report) -> ReportReply:
    """Store a report of the share that its token authenticates; return orders and stored offsets.

    Raises:
        UnauthenticatedError: the token belongs to another attempt or another node.
        ConflictError: another supervisor reports for the share, or the token is revoked.
        InvalidRequestError: the protocol version is unknown, a chunk is damaged, a line cannot be
          read (see `server.telemetry.ingest.parse`), or the database rejects a value; nothing is
          stored.
    """
    answer = _store_one(context, SentReport(share, report), waits=True)
    if isinstance(answer, RefusalError):
        raise answer
    assert answer is not None
    return answer


def store_together(context: Context, sent: Sequence[SentReport]) -> Sequence[Answer]:
    """Store reports of different jobs in one transaction.

    The number of statements is the same as for one report. A report of a job that another
    transaction has locked is skipped, because a wait would delay all reports.

    Returns:
        For each report, the reply or the error that `store_report` would raise. None for a skipped
        report, and for a report that must be stored in its own transaction. A value that the
        database rejects raises an error for all reports.
    """
    if len(sent) == 1:
        return [_store_one(context, sent[0], waits=False)]
    assert len({each.share.job_id for each in sent}) == len(sent), "two reports of one job"
    return _store(context, sent, waits=False)


def _store_one(context: Context, sent: SentReport, *, waits: bool) -> Answer:
    try:
        (answer,) = _store(context, [sent], waits=waits)
    except (StatementError, OverflowError) as error:
        if isinstance(error, DBAPIError) and not isinstance(error, DataError):
            raise
        # For a 500, the sender would assume an outage and repeat the same report forever.
        attempt_id = sent.share.attempt_id
        logger.exception("the database refuses a value in a report of attempt %s", attempt_id)
        reason = str(getattr(error, "orig", error)).partition("\n")[0]
        raise InvalidRequestError.at("", f"the database refuses a value: {reason}") from error
    return answer


def _store(context: Context, sent: Sequence[SentReport], *, waits: bool) -> list[Answer]:
    """Store each report whole or not at all; unless `waits`, skip reports of locked jobs.

    Bytes that were stored before are ignored, and bytes after a gap are not stored. The reply gives
    the offset of the next bytes to send. After a share has ended, its token is valid only for
    output (`_take_output`).
    """
    # Parse lines before the write transaction starts, because the transaction holds the jobs'
    # locks, and on SQLite every writer waits for it.
    answers: list[Answer] = [None] * len(sent)
    parsed: dict[int, ReportContent] = {}
    for place, each in enumerate(sent):
        try:
            parsed[place] = _parse(each)
        except RefusalError as refusal:
            answers[place] = refusal
    if not parsed:
        return answers
    with context.database.write() as connection:
        attempt_ids = [each.share.attempt_id for each in sent]
        locked = lock_jobs_of(connection, attempt_ids, waits=waits)
        shares = read_reported_shares(connection, [each.share.key for each in sent])
        incoming: dict[int, IncomingReport] = {}
        for place, content in parsed.items():
            own = sent[place]
            if not waits and own.share.attempt_id not in locked:
                continue
            try:
                found = _incoming(context, connection, sent=own, content=content, shares=shares)
            except RefusalError as refusal:
                answers[place] = refusal
                continue
            if waits or found.may_share:
                incoming[place] = found
        replies = _apply([*incoming.values()]) if incoming else ()
        for place, reply in zip(incoming, replies, strict=True):
            answers[place] = reply
    return answers


def _parse(sent: SentReport) -> ReportContent:
    """Return the content that is new since the token was checked."""
    check_protocol(sent.report.protocol, oldest=OLDEST_REPORTS)
    if sent.report.node != sent.share.node:
        raise UnauthenticatedError(WRONG_TOKEN)
    return parse_chunks(unpack(sent.report.chunks), sent.share)


def _incoming(
    context: Context,
    connection: Connection,
    *,
    sent: SentReport,
    content: ReportContent,
    shares: Mapping[ShareKey, ReportedShare],
) -> IncomingReport:
    """Return a report with its share, read again under the job's lock."""
    # The token may have been accepted with an earlier report, or revoked since then.
    share = accepted_or_refused(context, shares.get(sent.share.key))
    if isinstance(share, RefusalError):
        raise share
    check_identity(share, sent.report.identity)
    if share.acknowledged != sent.share.acknowledged:  # a copy of this report was stored meanwhile
        content = parse_chunks(unpack(sent.report.chunks), share)
    return IncomingReport(context, connection, share, sent.report, content)


def _apply(reports: Sequence[IncomingReport]) -> list[ReportReply]:
    first = reports[0]
    if first.share.node_state == AttemptNodeState.ENDED or first.share.lost_at is not None:
        return [_take_output(first)]  # such a report is alone in its group
    for incoming in reports:
        _leave_out_later_steps(incoming)
        _fold_ranks(incoming)
        hold_early_commits(incoming)
    _store_content(reports)
    for incoming in reports:
        _close_logs(incoming)
    for subscriber in SUBSCRIBERS:
        subscriber(reports)
    for incoming in reports:
        _end_share(incoming)  # last: an ended attempt takes neither commits nor answers
    pending = _pending_requests(first.connection, [each.share for each in reports])
    return [_reply(incoming, pending.get(incoming.share.attempt_id, ())) for incoming in reports]


def _reply(incoming: IncomingReport, pending: Sequence[PendingRequest]) -> ReportReply:
    stored, share = incoming.acknowledged, incoming.share
    return ReportReply(
        acknowledged={each.file: stored.get(each.file, 0) for each in incoming.report.chunks},
        desired=share.desired,
        requests=tuple(pending),
        shells=shell_orders(incoming.context, incoming.connection, share),
    )


def _pending_requests(
    connection: Connection, shares: Sequence[ReportedShare]
) -> dict[str, list[PendingRequest]]:
    """Return the unanswered requests by attempt id, the oldest first.

    Only replies to the node of global rank 0 contain requests, because only this node can pass
    requests on to the trainer.
    """
    mine = [each.attempt_id for each in shares if each.node_rank == 0 and each.has_requests]
    found: dict[str, list[PendingRequest]] = {}
    if not mine:
        return found
    columns = requests.c
    query = select(columns.attempt_id, columns.id, columns.request).order_by(columns.id)
    unanswered = query.where(columns.attempt_id.in_(mine), columns.answer.is_(None))
    for attempt_id, request_id, request in connection.execute(unanswered):
        pending = PendingRequest(id=request_id, request=request)
        found.setdefault(attempt_id, []).append(pending)
    return found


def _leave_out_later_steps(incoming: IncomingReport) -> None:
    """Drop metrics beyond the last step of the spec, but acknowledge their bytes."""
    content, last_step = incoming.content, incoming.share.progress.last_legal_step
    if last_step is None:  # a program without steps in its spec
        return
    metrics = [*content.metrics, *(record for _, record in content.of_ranks)]
    beyond = [each.step for each in metrics if each.step > last_step]
    if not beyond:
        return
    incoming.dropped.append(MetricsDropped(what="steps", limit=last_step, first=beyond[0]))
    content.metrics = [each for each in content.metrics if each.step <= last_step]
    content.of_ranks = [each for each in content.of_ranks if each[1].step <= last_step]


def _fold_ranks(incoming: IncomingReport) -> None:
    """Stage the metrics of a program's ranks, and put the steps that are due into `folded`."""
    connection, share, now = incoming.connection, incoming.share, incoming.context.now()
    attempt_id = share.attempt_id
    incoming.folded = rank_steps.fold(connection, attempt_id, incoming.content.of_ranks, now=now)
    if incoming.report.exit is not None:
        last = not incoming.has_others(attempt_nodes.c.state != AttemptNodeState.ENDED)
        ranks = {*share.ranks, share.node_rank}
        incoming.folded += rank_steps.end_ranks(connection, attempt_id, ranks, last=last, now=now)


def _store_content(reports: Sequence[IncomingReport]) -> None:
    """Store metrics, artifacts and output, and list in each report what was stored or dropped."""
    connection = reports[0].connection
    metrics: dict[str, list[MetricRecord]] = {}
    output: dict[LogKey, bytes] = {}
    for incoming in reports:
        attempt_id, content = incoming.share.attempt_id, incoming.content
        # The digest of one of several processes does not cover the whole step.
        alone = (
            replace(each, data_digest=None) if each.ranks > 1 else each for each in content.metrics
        )
        metrics[attempt_id] = [*alone, *incoming.folded]
        move_late_values(connection, incoming.share, metrics)
        for rank, new in content.output:
            output[attempt_id, rank] = output.get((attempt_id, rank), b"") + new
        if content.artifacts:
            incoming.artifacts = store_artifacts(
                incoming.context, connection, share=incoming.share, lines=content.artifacts
            )
    left_out = _store_metrics(connection, metrics)
    logs = store_output(connection, output, quota=reports[0].context.settings.log_quota_bytes)
    for incoming in reports:
        attempt_id = incoming.share.attempt_id
        if above := left_out.get(attempt_id):
            series = MetricsDropped(what="series", limit=MAX_SERIES, first=above[0])
            incoming.dropped.append(series)
        incoming.logs += [stored for stored in logs if stored.attempt_id == attempt_id]


def _store_metrics(
    connection: Connection, metrics: Mapping[str, Sequence[MetricRecord]]
) -> Mapping[str, Sequence[str]]:
    """Store metrics with `store_metrics`; delete points at each restart among the records."""
    last: dict[str, Sequence[MetricRecord]] = {}
    above: dict[str, Sequence[str]] = {}
    for attempt_id, records in metrics.items():
        start = 0
        for place, record in enumerate(records):
            if isinstance(record, SeriesRestart):
                above |= store_metrics(connection, {attempt_id: records[start:place]})
                take_back(connection, attempt_id, names=record.names, step=record.step)
                start = place + 1
        last[attempt_id] = records[start:] if start else records
    return above | dict(store_metrics(connection, last))


def _close_logs(incoming: IncomingReport) -> None:
    """Store the unfinished last lines of each log when the node's ranks have exited."""
    if incoming.report.exit is not None:
        incoming.logs += close_output(
            incoming.connection,
            incoming.share.attempt_id,
            incoming.share.ranks,
            quota=incoming.context.settings.log_quota_bytes,
        )


def _end_share(incoming: IncomingReport) -> None:
    """End the share at its supervisor's last report; if it is the last share, end the attempt."""
    exit_record, share = incoming.report.exit, incoming.share
    if exit_record is None:
        return
    failure = exit_record.failure
    if exit_record.outcome == "failed" and failure is None:
        failure = Failure(
            reason=FailureReason.TRAINER_ERROR, message="the supervisor named no reason"
        )
    if failure is not None:
        # Ignore the sender's value, because no node may blame another for a failure.
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
    """Store only the output of an ended or lost share, and order the share to end.

    All other bytes are dropped but acknowledged, so that the supervisor finishes and reports its
    exit. This report ends a lost share. Until then, the supervisor's reports renew the lease, so
    that the node does not count as silent.
    """
    connection, share = incoming.connection, incoming.share
    report, content = incoming.report, incoming.content
    output = [chunk for chunk in content.chunks if is_log(chunk.file)]
    incoming.content = ReportContent(chunks=output, output=content.output)
    _store_content([incoming])
    notify_logs(incoming)
    store_notices([incoming])
    stored = incoming.acknowledged
    if share.node_state == AttemptNodeState.ENDED:
        mine = attempt_nodes.c.attempt_id == share.attempt_id, attempt_nodes.c.node == share.node
        connection.execute(update(attempt_nodes).where(*mine).values(acknowledged=stored))
    else:
        silent = HeardShare(share, None, report.identity, stored)
        record_heartbeats(incoming.context, connection, [silent])
        _end_share(incoming)
    acknowledged = {
        chunk.file: stored.get(chunk.file, 0) if is_log(chunk.file) else chunk.end
        for chunk in report.chunks
    }
    return ReportReply(acknowledged=acknowledged, desired=DesiredState.CANCEL)
