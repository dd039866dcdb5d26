"""Subscribers to reports: each applies one effect to a group of reports, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import func, select, update

from server.core.database.tables import attempts, events
from server.core.events.notices import notify_all
from server.core.subject import SERVER
from server.jobs.attempts.reports import HeardShare, record_heartbeats
from server.jobs.facts.store import report_facts
from server.jobs.ranks.node_findings import forget_check, record_check, withhold_slots
from server.telemetry.ingest.progress import advance_progress, check_continuity
from server.telemetry.ingest.report import IncomingReport
from server.telemetry.ingest.run_events import apply_run_events, store_answers
from trainyard.protocol.event_kinds import EventKind
from trainyard.protocol.rest.event_data import LineSkipped, LogStored
from trainyard.protocol.rest.metrics_and_logs import FactsStored
from trainyard.run.artifacts.artifact_records import DropReason
from trainyard.run.failures import FailureReason

MAX_SKIPPED = 100
"""Maximum number of events for unreadable lines per attempt; a program can write any number of
unreadable lines."""
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
    """Withhold the slots with devices that a launch found unusable."""
    share, unusable = incoming.share, incoming.report.unusable
    if unusable:
        withhold_slots(incoming.connection, share.node, slots=share.slots, unusable=unusable)


def record_network_check(incoming: IncomingReport) -> None:
    """Record the network between the attempt's nodes as checked once its ranks train."""
    share = incoming.share
    if share.starts_training(incoming.report.heartbeat):
        record_check(incoming.connection, share.attempt_id, incoming.context.now())


def forget_network_check(incoming: IncomingReport) -> None:
    """Forget the network check of the attempt's nodes after a hang, to repeat the check."""
    exit_record = incoming.report.exit
    failure = None if exit_record is None else exit_record.failure
    if failure is not None and failure.reason == FailureReason.HANG:
        forget_check(incoming.connection, incoming.share.attempt_id)


def renew_leases(reports: Sequence[IncomingReport]) -> None:
    """Renew leases and store offsets; a first step changes the attempt's state to `running`.

    One statement stores both, so a share's row is written once per report.
    """
    context, connection = reports[0].context, reports[0].connection
    record_heartbeats(context, connection, [heard(incoming) for incoming in reports])


def heard(incoming: IncomingReport) -> HeardShare:
    """Return the part of a report that renews the lease."""
    report = incoming.report
    return HeardShare(incoming.share, report.heartbeat, report.identity, incoming.acknowledged)


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
    """Replace the facts of the job by the ones that its script logs on global rank 0's node."""
    facts, share = incoming.report.facts, incoming.share
    if facts is not None and share.node_rank == 0:
        report_facts(incoming.connection, share.job_id, facts)
        stored = FactsStored(config=len(facts.config), summary=len(facts.summary))
        incoming.notify(stored)


def append_skipped_lines(incoming: IncomingReport) -> None:
    """Append an event for each unreadable line, up to `MAX_SKIPPED` per attempt."""
    if not incoming.content.skipped:
        return
    share = incoming.share
    known = select(func.count()).where(
        events.c.job_id == share.job_id,
        events.c.kind == EventKind.LINE_SKIPPED,
        events.c.attempt == share.number,
    )
    left = max(MAX_SKIPPED - (incoming.connection.scalar(known) or 0), 0)
    for skipped in incoming.content.skipped[:left]:
        incoming.append(
            LineSkipped(file=skipped.file, offset=skipped.offset, error=skipped.error),
            message=f"a line of {skipped.file} at byte {skipped.offset} cannot be read",
            actor=SERVER,
            subject=incoming.node_subject,
        )


def append_dropped_metrics(incoming: IncomingReport) -> None:
    """Append an event for metrics beyond a limit, once per attempt and limit."""
    if not incoming.dropped:
        return
    share = incoming.share
    appended = select(events.c.data).where(
        events.c.job_id == share.job_id,
        events.c.kind == EventKind.METRICS_DROPPED,
        events.c.attempt == share.number,
    )
    before = {data["what"] for data in incoming.connection.scalars(appended)}
    for dropped in incoming.dropped:
        if dropped.what in before:
            continue
        of_steps = f"steps up to {dropped.limit:,} (training.steps)"
        kept = of_steps if dropped.what == "steps" else f"{dropped.limit:,} series"
        incoming.append(
            dropped,
            message=f"metrics of attempt {share.number} are kept for {kept}; {dropped.first!r} "
            "and further ones are left out",
            actor=SERVER,
        )


def append_dropped_output(incoming: IncomingReport) -> None:
    """Append an event for omitted artifacts or logs, once per attempt and reason."""
    stored, share = incoming.artifacts, incoming.share
    if stored is None:
        return
    for notice in stored.notices:
        incoming.notify(notice)
    if not stored.dropped:
        return
    appended = select(events.c.data).where(
        events.c.job_id == share.job_id,
        events.c.kind == EventKind.OUTPUT_DROPPED,
        events.c.attempt == share.number,
    )
    known = {(data["what"], data["reason"]) for data in incoming.connection.scalars(appended)}
    for dropped in stored.dropped:
        if (dropped.what, dropped.reason) in known:
            continue
        known.add((dropped.what, dropped.reason))
        first = "" if dropped.first is None else f"; {dropped.first!r} is the first"
        incoming.append(
            dropped,
            message=f"{dropped.what} of attempt {share.number} are left out, "
            f"{DROPPED_BECAUSE[dropped.reason]}{first}",
            actor=SERVER,
            subject=incoming.node_subject,
        )


def notify_logs(incoming: IncomingReport) -> None:
    """Notify live views of new log lines, with one notice per rank."""
    for stored in {stored.rank: stored for stored in incoming.logs}.values():
        incoming.notify(
            LogStored(rank=stored.rank, lines=stored.lines), subject=incoming.node_subject
        )


def store_notices(reports: Sequence[IncomingReport]) -> None:
    """Store the notices of all reports."""
    ordered = sorted(reports, key=lambda incoming: incoming.share.job_id)
    new = [notice for incoming in ordered for notice in incoming.notices]
    notify_all(reports[0].context, reports[0].connection, new)


def _each(apply: Callable[[IncomingReport], None]) -> Subscriber:
    """Return a subscriber for a rare effect: it applies the effect to one report at a time."""

    def subscriber(reports: Sequence[IncomingReport]) -> None:
        for incoming in reports:
            apply(incoming)

    return subscriber


# A subscriber that raises an error rolls back the whole group. Nodes are locked before the first
# event, as for heartbeats; otherwise the two would deadlock. All nodes of an attempt are locked in
# the order of their names, before the reporting node, which may not be the first. The lease comes
# next: the first report of a step changes the attempt's state to `running` before the events of
# that step are appended.
SUBSCRIBERS: tuple[Subscriber, ...] = (
    _each(record_network_check),
    _each(forget_network_check),
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
