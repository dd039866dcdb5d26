"""Calls of the SDK for the audit log."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from trainyard.client.transport import Transport, given
from trainyard.protocol.audit_log.views import AuditOutcome, AuditRow
from trainyard.protocol.rest.common import Page


class AuditCalls:
    """Calls of `Client` for the audit log. All need `audit:read`."""

    transport: Transport
    """Sends the requests."""

    def audit(
        self,
        *,
        user: str | None = None,
        token: str | None = None,
        operation: str | None = None,
        object: str | None = None,  # noqa: A002 - the name of the field
        project: str | None = None,
        outcome: AuditOutcome | str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Iterator[AuditRow]:
        """Iterate over the rows of the audit log, the newest first.

        Args:
            user: name of the user.
            token: id of the token.
            operation: operation of the API, such as `members_put`.
            object: an object, such as `projects/vision`; includes all below it, if it has a `/`.
            project: name of the project.
            outcome: what the request did.
            since: time of the first row, with its zone.
            until: time before which the rows are, with its zone.
        """
        query = given(
            user=user,
            token=token,
            operation=operation,
            object=object,
            project=project,
            outcome=None if outcome is None else str(outcome),
            since=_utc(since),
            until=_utc(until),
        )
        return self.transport.pages(Page[AuditRow], "/audit", query)

    def export_audit(self, after: int = 0) -> Iterator[str]:
        """Iterate over the lines of the export: rows and anchors as JSON, without line breaks.

        `after` is the number of the last row that is not needed.
        """
        with self.transport.stream("/audit/export", query={"after": after}) as response:
            yield from response.iter_lines()


def _utc(at: datetime | None) -> str | None:
    return None if at is None else f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
