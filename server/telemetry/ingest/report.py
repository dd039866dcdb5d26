"""A report within the transaction that stores it: its share, new content and events."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Connection, select

from server.core.context import Context
from server.core.database.tables import attempt_nodes
from server.core.events.store import NewEvent, append_event
from server.core.subject import TRAINER, Actor, Subject
from server.jobs.attempts.reports import ReportedShare
from server.telemetry.artifacts.store import StoredArtifacts
from server.telemetry.ingest.parse import ReportContent
from server.telemetry.logs.store import Stored
from trainyard.protocol.event_kinds import EventData
from trainyard.protocol.rest.event_data import MetricsDropped
from trainyard.protocol.states import AttemptNodeState
from trainyard.protocol.worker_messages import Report
from trainyard.run.records import MetricRecord, SeriesRestart


@dataclass
class IncomingReport:
    """A report as subscribers receive it."""

    context: Context
    connection: Connection
    """The open transaction, which holds the job's lock."""
    share: ReportedShare
    report: Report
    content: ReportContent
    """New content of the report."""
    folded: list[MetricRecord] = field(default_factory=list)
    """Metrics of a program's ranks to store now: own values of ranks, and folded steps."""
    logs: list[Stored] = field(default_factory=list)
    """Output that the report added to the logs of ranks."""
    artifacts: StoredArtifacts | None = None
    """Stored and dropped artifacts of the report; None if it has no artifacts."""
    dropped: list[MetricsDropped] = field(default_factory=list)
    """Metrics that were left out because of a limit."""
    notices: list[tuple[Subject, EventData]] = field(default_factory=list)
    """Notices to store; a later notice with the same key replaces an earlier one."""

    @property
    def node_subject(self) -> Subject:
        """Subject for events of this node's share."""
        return self.share.subject.on(self.share.node)

    @property
    def acknowledged(self) -> dict[str, int]:
        """Number of stored bytes of each file after this report."""
        ends = {chunk.file: chunk.end for chunk in self.content.chunks}
        return self.share.acknowledged | ends

    def append(
        self,
        event: EventData,
        *,
        message: str,
        actor: Actor = TRAINER,
        subject: Subject | None = None,
    ) -> None:
        """Append an event of the attempt, or of another subject."""
        new = NewEvent(event, actor, subject or self.share.subject, message)
        append_event(self.context, self.connection, new)

    def notify(self, data: EventData, *, subject: Subject | None = None) -> None:
        """Queue a notice of the attempt, or of another subject; the group stores all notices."""
        self.notices.append((subject or self.share.subject, data))

    @property
    def may_share(self) -> bool:
        """Whether the report may share a transaction: it changes no state and adds no event.

        The locks of state changes and events would delay the other reports.
        """
        share = self.share
        return (
            share.node_state == AttemptNodeState.RUNNING
            and share.lost_at is None
            and share.unreachable_since is None
            and not share.starts_training(self.report.heartbeat)
            and not self.content.skipped
            and not self.begins_resume
        )

    def has_others(self, state: ColumnElement[bool]) -> bool:
        """Return whether the attempt has another share that is not lost and meets a condition."""
        others = select(attempt_nodes.c.node).where(
            attempt_nodes.c.attempt_id == self.share.attempt_id,
            attempt_nodes.c.node != self.share.node,
            attempt_nodes.c.lost_at.is_(None),
            state,
        )
        return self.connection.scalar(others.limit(1)) is not None

    @property
    def step_records(self) -> list[MetricRecord]:
        """New records of metrics, except the records of restarts, which belong to no step."""
        return [each for each in self.content.metrics if not isinstance(each, SeriesRestart)]

    @property
    def begins_resume(self) -> bool:
        """Whether the report may contain the first step after a loaded checkpoint."""
        share, metrics = self.share, [*self.step_records, *self.folded]
        if share.parent_checkpoint_id is None or not metrics:
            return False
        return min(record.step for record in metrics) <= share.start_step + 1
