"""Reads of the audit log: its sealed rows, filtered, the newest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, and_, or_, select

from server.core.audit.audit_tables import audit_log
from server.core.context import Context
from trainyard.protocol.audit_log.views import AuditOutcome, AuditRow


@dataclass(frozen=True)
class AuditFilter:
    """Which rows a reader requests; None stands for all."""

    user: str | None = None
    token: str | None = None
    """Id of the token."""
    operation: str | None = None
    object: str | None = None
    """An object. With a `/`, it includes all below it, such as the members of a project; the first
    part alone would select half of the table."""
    project: str | None = None
    outcome: AuditOutcome | None = None
    since: datetime | None = None
    until: datetime | None = None
    """Time before which the rows are."""

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the SQL conditions."""
        row = audit_log.c
        equal = {
            row.user: self.user,
            row.token_id: self.token,
            row.operation: self.operation,
            row.project: self.project,
            row.outcome: self.outcome,
        }
        found = [column == value for column, value in equal.items() if value is not None]
        if self.object is not None and "/" not in self.object:
            found.append(row.object == self.object)
        elif self.object is not None:
            below = and_(row.object >= f"{self.object}/", row.object < f"{self.object}0")
            found.append(or_(row.object == self.object, below))  # "0" follows "/"
        if self.since is not None:
            found.append(row.at >= self.since)
        if self.until is not None:
            found.append(row.at < self.until)
        return found


def list_rows(
    context: Context, wanted: AuditFilter, *, after: int | None, limit: int
) -> Sequence[AuditRow]:
    """Return at most `limit` rows, the newest first, with numbers below `after`.

    The order is that of the numbers, because a row with an earlier time may get its number later.
    """
    query = select(audit_log).where(*wanted.conditions())
    if after is not None:
        query = query.where(audit_log.c.seq < after)
    query = query.order_by(audit_log.c.seq.desc()).limit(limit)
    with context.database.read() as connection:
        rows = connection.execute(query).mappings().all()
    return [AuditRow(**{str(name): value for name, value in each.items()}) for each in rows]
