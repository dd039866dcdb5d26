"""Subscribers to reports: each applies one effect to a group of reports, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import select, update

from server.core.database.tables import attempts, events
from server.core.events.notices import notify_all
from server.core.subject import SERVER
from server.jobs.attempts.reports import HeardShare, record_heartbeats
from server.jobs.facts.store import report_facts
from server.jobs.ranks.node_findings import forget_check, record_check, withhold_slots
from server.telemetry.ingest.parse import MAX_SKIPPED
from server.telemetry.ingest.progress import advance_progress, check_continuity
from server.telemetry.ingest.report import IncomingReport
from server.telemetry.ingest.run_events import apply_run_events, store_answers
from trainyard.protocol.event_kinds import EventKind
from trainyard.protocol.rest.event_data import LogStored
from trainyard.protocol.rest.metrics_and_logs import FactsStored
from trainyard.run.artifacts.artifact_records import DropReason
from trainyard.run.failures import FailureReason

DROPPED_BECAUSE: Mapping[DropReason, str] = {
    "disk_full": "because the disk of the node is about to be full",
    "queue_full": "because the script's process logged them faster than it could write them",
    "spool_full": "because the spool of the node is full",
    "quota": "because the job has reached its quota (TRAINYARD_ARTIFACT_QUOTA_BYTES)",
    "too_many": "because the job has reached the limit of their number",
    "too_large": "because files exceed the limit of their size",
    "unreadable": "because files cannot be read, or changed while they were sent",
}
Subscriber = Callable[[Sequence[IncomingReport]], None]


def withhold_unusable_slots(incoming: IncomingReport) -> None:
    """Withhold the slots whose devices a launch found unusable."""
    share, unusable = incoming.share, incoming.report.unusable
    if unusable:
        withhold_slots(incoming.connection, share.node, slots=share.slots, unusable=unusable)


def update_network_check(incoming: IncomingReport) -> None:
    """Once an attempt's ranks train, record that the network between its nodes is checked.

    A hang deletes this record, so that the next attempt checks the network again.
    """
    share, exit_record = incoming.share, incoming.report.exit
    if share.starts_training(incoming.report.heartbeat):
        record_check(incoming.connection, share.attempt_id, incoming.context.now())
    failure = None if exit_record is None else exit_record.failure
    if failure is not None and failure.reason == FailureReason.HANG:
        forget_check(incoming.connection, share.attempt_id)


def renew_leases(reports: Sequence[IncomingReport]) -> None:
    """Renew leases and store offsets; the end of the start-up makes the attempt `running`.

    One statement stores lease and offsets, so a share's row is written once per report.
    """
    heard = [
        HeardShare(each.share, each.report.heartbeat, each.report.identity, each.acknowledged)
        for each in reports
    ]
    record_heartbeats(reports[0].context, reports[0].connection, heard)


def keep_provenance(incoming: IncomingReport) -> None:
    """Keep the first provenance that the node of global rank 0 reports."""
    provenance, share = incoming.report.provenance, incoming.share
    if provenance is not None and share.node_rank == 0:
        incoming.connection.execute(
            update(attempts)
            .where(attempts.c.id == share.attempt_id, attempts.c.provenance.is_(None))
            .values(provenance=provenance)
        )


def keep_facts(incoming: IncomingReport) -> None:
    """Replace the facts of the job by the facts that the node of global rank 0 reports."""
    facts, share = incoming.report.facts, incoming.share
    if facts is not None and share.node_rank == 0:
        report_facts(incoming.connection, share.job_id, facts)
        incoming.notify(FactsStored(config=len(facts.config), summary=len(facts.summary)))


def append_skipped_lines(incoming: IncomingReport) -> None:
    """Append an event for each unreadable line, up to `MAX_SKIPPED` per attempt."""
    if not incoming.content.skipped:
        return
    left = max(MAX_SKIPPED - len(_appended(incoming, EventKind.LINE_SKIPPED)), 0)
    for skipped in incoming.content.skipped[:left]:
        incoming.append(
            skipped,
            message=f"a line of {skipped.file} at byte {skipped.offset} cannot be read",
            actor=SERVER,
            subject=incoming.node_subject,
        )


def append_dropped_metrics(incoming: IncomingReport) -> None:
    """Append an event if a limit has dropped metrics, once per attempt and limit."""
    if not incoming.dropped:
        return
    before = {data["what"] for data in _appended(incoming, EventKind.METRICS_DROPPED)}
    for dropped in incoming.dropped:
        if dropped.what in before:
            continue
        of_steps = f"steps up to {dropped.limit:,} (training.steps)"
        kept = of_steps if dropped.what == "steps" else f"{dropped.limit:,} series"
        incoming.append(
            dropped,
            message=f"metrics of attempt {incoming.share.number} are kept for {kept}; "
            f"{dropped.first!r} and further ones are left out",
            actor=SERVER,
        )


def append_dropped_output(incoming: IncomingReport) -> None:
    """Notify of stored artifacts; append an event per attempt and reason for omitted output."""
    stored = incoming.artifacts
    if stored is None:
        return
    for notice in stored.notices:
        incoming.notify(notice)
    if not stored.dropped:
        return
    appended = _appended(incoming, EventKind.OUTPUT_DROPPED)
    known = {(data["what"], data["reason"]) for data in appended}
    for dropped in stored.dropped:
        if (dropped.what, dropped.reason) in known:
            continue
        known.add((dropped.what, dropped.reason))
        first = "" if dropped.first is None else f"; {dropped.first!r} is the first"
        incoming.append(
            dropped,
            message=f"{dropped.what} of attempt {incoming.share.number} are left out, "
            f"{DROPPED_BECAUSE[dropped.reason]}{first}",
            actor=SERVER,
            subject=incoming.node_subject,
        )


def _appended(incoming: IncomingReport, kind: EventKind) -> Sequence[dict[str, Any]]:
    """Return the data of the attempt's events of a kind."""
    share = incoming.share
    query = select(events.c.data).where(
        events.c.job_id == share.job_id, events.c.kind == kind, events.c.attempt == share.number
    )
    return incoming.connection.scalars(query).all()


def notify_logs(incoming: IncomingReport) -> None:
    """Notify live views of new log lines, with one notice per rank."""
    for rank, lines in {stored.rank: stored.lines for stored in incoming.logs}.items():
        incoming.notify(LogStored(rank=rank, lines=lines), subject=incoming.node_subject)


def store_notices(reports: Sequence[IncomingReport]) -> None:
    """Store the notices of all reports."""
    ordered = sorted(reports, key=lambda incoming: incoming.share.job_id)
    new = [notice for incoming in ordered for notice in incoming.notices]
    notify_all(reports[0].context, reports[0].connection, new)


def _each(apply: Callable[[IncomingReport], None]) -> Subscriber:
    """Return a subscriber that applies a rare effect to one report at a time."""

    def subscriber(reports: Sequence[IncomingReport]) -> None:
        for incoming in reports:
            apply(incoming)

    return subscriber


# A subscriber that raises an error rolls back the whole group. The first two subscribers lock nodes
# before the first event, as heartbeats do; otherwise reports and heartbeats could deadlock. The
# first one locks all nodes of an attempt in the order of their names, the second one only the
# reporting node. The lease comes next, so that the attempt's state is `running` before the events
# of its first step.
SUBSCRIBERS: tuple[Subscriber, ...] = (
    _each(update_network_check),
    _each(withhold_unusable_slots),
    renew_leases,
    _each(keep_provenance),
    _each(keep_facts),
    _each(apply_run_events),
    _each(append_skipped_lines),
    _each(append_dropped_metrics),
    _each(append_dropped_output),
    _each(notify_logs),
    advance_progress,
    _each(check_continuity),
    _each(store_answers),
    store_notices,
)
