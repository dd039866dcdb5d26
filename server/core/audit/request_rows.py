"""The audit rows of one request, which its own transactions store."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, String, insert

from server.core.audit.audit_tables import audit_log, audit_pending
from server.core.context import Clock, Context
from server.core.database.engine import OBSERVER
from server.core.subject import ADMIN_USER_ID
from trainyard.base.redaction import MASK
from trainyard.protocol.audit_log.views import AuditOutcome
from trainyard.protocol.user_accounts.views import BUILT_IN_USER

logger = logging.getLogger(__name__)

FIELDS = frozenset(
    {
        *("role", "state", "email", "owner", "priority", "kind", "scopes", "expires_at"),
        *("name", "group"),
        *("description", "weight", "max_slots", "max_running", "slot_hours_per_month"),
        *("world_size", "checkpoint_id", "until_seq", "rows", "revoked", "version", "unix_account"),
    }
)
"""Fields that `before` and `after` may have. A field with a secret never enters this list."""
SIDES = ("before", "after")
MAX_TEXT, MAX_ITEMS = 200, 20
"""Maximum length of a value in characters, and of a list in items."""
CREDENTIAL = re.compile(r"ty_[a-z]+_[\w-]+")
"""A token. Clients have sent tokens in place of names."""
UNKNOWN = "?"
"""Stands for a parameter of the path that is no id or name of its kind."""
APPEND = insert(audit_pending)  # built once, because that takes longer than running it
LENGTHS = {
    str(column.name): column.type.length
    for column in audit_log.columns
    if isinstance(column.type, String) and column.type.length is not None
}
"""Maximum length of the texts of a row, in characters."""


class Audited(StrEnum):
    """Whether an operation has audit rows."""

    CHANGE = "change"
    """Each change has a row in its transaction."""
    SENSITIVE = "sensitive"
    """Each call has a row, stored before anything is read."""
    NO = "no"
    """Only refused attempts have rows."""


@dataclass(frozen=True)
class CallerIdentity:
    """Who calls; all fields are None for an unknown caller."""

    user: str | None = None
    user_id: str | None = None
    token: str | None = None
    token_id: str | None = None
    session_id: str | None = None
    break_glass: bool | None = None


@dataclass(frozen=True)
class PathParameter:
    """A parameter of a path."""

    name: str
    pattern: str | None
    """Regular expression of legal values; None if it is not declared, and then no value is known.
    """

    def of(self, given: Mapping[str, str]) -> str:
        """Return the value that a request gives, unless it is illegal: it may be a credential."""
        value = str(given.get(self.name, ""))
        return value if self.pattern and re.fullmatch(self.pattern, value) else UNKNOWN


@dataclass(frozen=True)
class AuditedOperation:
    """What the audit log needs to know of an operation."""

    id: str
    """Id in the OpenAPI document."""
    audited: Audited
    parts: Sequence[str | PathParameter] = ()
    """Parts of the path without `/api/v1`, up to the last parameter."""
    is_of_machines: bool = False
    """Whether refused attempts are counted only, because machines repeat them."""

    def object_of(self, given: Mapping[str, str]) -> str | None:
        """Return what a request is about, from the parameters of its path."""
        return "/".join(each if isinstance(each, str) else each.of(given) for each in self.parts)


@dataclass
class AuditedRequest:
    """One request to the API, and the rows that its open transaction will store."""

    clock: Clock
    operations: Mapping[Any, AuditedOperation] = field(default_factory=dict, repr=False)
    """The operations by endpoint function."""
    request_id: str = ""
    address: str = ""
    operation: str = ""
    audited: Audited = Audited.NO
    object: str | None = None
    project: str | None = None
    caller: CallerIdentity | None = None
    """Who is authenticated; None before authentication, and for public operations."""
    named: CallerIdentity | None = None
    """The user whom a login names, or the former holder of a token or session that has ended; the
    refused request counts as an attempt of this caller."""
    is_of_machines: bool = False
    may_be_hidden: bool = False
    """Whether 404 may stand for an object that the caller does not see."""
    _is_stored: bool = False
    _rows: list[dict[str, Any]] = field(default_factory=list)

    def name_operation(self, scope: Mapping[str, Any]) -> None:
        """Name the operation, from the ASGI scope of a request with a route."""
        operation = self.operations.get(scope.get("endpoint"))
        if operation is not None:
            self.operation, self.audited = operation.id, operation.audited
            self.is_of_machines = operation.is_of_machines
            self.object = operation.object_of(scope["path_params"]) or None

    def begin(self) -> None:
        """Forget the rows of an earlier transaction, which was rolled back."""
        self._rows.clear()

    def before_commit(self, connection: Connection) -> None:
        """Store the rows of the transaction; the first change without rows gets a plain one."""
        if self.audited is not Audited.CHANGE:
            self._rows.clear()
            return
        if not self._rows and not self._is_stored:
            self.add()
        append_rows(connection, self._rows)

    def after_commit(self) -> None:
        """Note that the rows are stored."""
        self._is_stored = self._is_stored or bool(self._rows)
        self._rows.clear()

    def add(self, **fields: Any) -> None:
        """Add a row to the open transaction; an object has one row with all its changes."""
        row = self.entry(AuditOutcome.CHANGED, **fields)
        for each in self._rows:
            if each["object"] == row["object"]:
                merged = {
                    name: {**(each.get(name) or {}), **(row.get(name) or {})} for name in SIDES
                }
                each |= {name: values or None for name, values in merged.items()}
                return
        self._rows.append(row)

    def entry(self, outcome: AuditOutcome, **fields: Any) -> dict[str, Any]:
        """Return a row; `fields` replace those of the request."""
        row: dict[str, Any] = {
            "at": self.clock.now(),
            "operation": self.operation or "unknown",
            "outcome": outcome,
            "address": self.address or None,
            "object": self.object,
            "project": self.project,
            "request_id": self.request_id or None,
            **vars(self.caller or self.named or CallerIdentity()),
        }
        return row | fields


def stored_form(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with bounded values and without nulls.

    A field of `before` or `after` outside `FIELDS` is left out, with a line in the server's log.
    """
    found = {name: value for name, value in row.items() if value is not None}
    for name in SIDES:
        if name in found:
            if unlisted := sorted(found[name].keys() - FIELDS):
                logger.error("not in FIELDS of the audit log: %s", ", ".join(unlisted))
            listed = found[name].keys() & FIELDS
            found[name] = {each: _bounded(found[name][each]) for each in sorted(listed)}
    texts = {name: _text(found[name], LENGTHS[name]) for name in found.keys() & LENGTHS.keys()}
    return found | texts


def _text(value: object, length: int) -> str:
    """Return a text that every database stores, such as one without NUL, and without a token."""
    text = CREDENTIAL.sub(MASK, str(value))[:length]
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else "?" for each in text)


def _bounded(value: Any) -> Any:
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list | tuple | frozenset | set):
        return sorted(_text(each, MAX_TEXT) for each in value)[:MAX_ITEMS]
    return _text(value, MAX_TEXT)


def current_request() -> AuditedRequest | None:
    """Return the request that this thread or task serves; None for work of the system itself."""
    found = OBSERVER.get()
    return found if isinstance(found, AuditedRequest) else None


def note_change(
    *,
    object: str | None = None,  # noqa: A002 - the name of the column
    project: str | None = None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Give a change its audit row, with what only its service knows.

    The row is stored with the current transaction. Work of the system itself has no row.

    Args:
        object: what was changed; by default, the path of the request.
        project: its project.
        before: changed fields before the change, each in `FIELDS`.
        after: the same fields after the change.
    """
    current = current_request()
    if current is None or current.audited is not Audited.CHANGE:
        return
    given = {"object": object, "project": project, "before": before, "after": after}
    current.add(**{name: value for name, value in given.items() if value is not None})


def note_changes(
    connection: Connection, changes: Iterable[tuple[AuditedRequest | None, Mapping[str, Any]]]
) -> None:
    """Give changes their audit rows in a transaction that may serve several requests.

    Args:
        connection: the transaction.
        changes: for each change its request, and fields as in `note_change`.
    """
    rows = []
    for request, fields in changes:
        if request is not None and request is current_request():
            request.add(**fields)
        elif request is not None:
            rows.append(request.entry(AuditOutcome.CHANGED, **fields))
    append_rows(connection, rows)


def note_project(project: str) -> None:
    """Name the project of the current request, unless it is named already."""
    current = current_request()
    if current is not None and current.project is None:
        current.project = project


def name_caller(caller: CallerIdentity) -> None:
    """Name who calls, in an operation that authenticates its caller itself, such as a login."""
    current = current_request()
    if current is not None and current.caller is None:
        current.caller = caller


def append_rows(connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
    """Store rows in a transaction; each row of the table `audit_pending` comes from here."""
    entries = [{"entry": stored_form(row)} for row in rows]
    if entries:
        connection.execute(APPEND, entries)


def system_row(
    context: Context,
    operation: str,
    *,
    outcome: AuditOutcome = AuditOutcome.CHANGED,
    object: str,  # noqa: A002 - the name of the column
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the row of what no request to the API did."""
    return {
        "at": context.now(),
        "operation": operation,
        "outcome": outcome,
        "object": object,
        "before": before,
        "after": after,
    }


def command_row(
    context: Context,
    operation: str,
    *,
    outcome: AuditOutcome = AuditOutcome.CHANGED,
    object: str = "tokens",  # noqa: A002 - the name of the column
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the row of a use of the server's command line, which has no caller of the API."""
    row = system_row(context, operation, outcome=outcome, object=object, before=before)
    return row | {"break_glass": True, "user": BUILT_IN_USER, "user_id": ADMIN_USER_ID}


def store_read(context: Context, request: AuditedRequest) -> None:
    """Store the row of a sensitive read, before anything is read."""
    with no_change(), context.database.write() as connection:
        append_rows(connection, [request.entry(AuditOutcome.READ)])


@contextmanager
def no_change() -> Iterator[None]:
    """Leave the transactions of the block out of the audit log, such as counts of failed logins."""
    token = OBSERVER.set(None)
    try:
        yield
    finally:
        OBSERVER.reset(token)
