"""Signed digests of the audit log: the start and the head of its chain, and its anchors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Connection, bindparam, delete, insert, select, update

from server.core.audit.audit_tables import audit_anchors, audit_log, audit_marks
from server.core.audit.raw_rows import parsed, select_raw
from server.core.context import Context
from server.core.database.upsert import insert_or_replace
from server.core.secrets import SecretsBox

START, HEAD, ANCHOR = "start", "head", "anchor"
FIRST_DIGEST = "0" * 64
"""Digest that the first row names as that of the row before."""
HAS_NUMBER = audit_log.c.seq.between(1, 2**62 - 1)
"""Excludes what is no number of this server. SQLite also stores texts in the column."""


@dataclass(frozen=True, slots=True)
class SignedDigest:
    """The digest of a row, with a signature that needs the key file."""

    name: str
    """`start`: the chain begins after this row. `head`: its newest row. `anchor`: the last row of a
    segment. The name is signed, so that an attacker cannot cut the end back to an anchor."""
    seq: int
    """Number of the row; 0 before the first one."""
    at: datetime
    digest: str
    last_anchor: int = 0
    """Number of the last anchor before this digest, so that a deleted anchor is found; or 0."""
    signature: str | None = None

    def is_signed(self, secrets: SecretsBox) -> bool:
        """Return whether a key of the key file has signed all fields.

        Raises:
            KeyFileError: the key file is missing or damaged.
        """
        return secrets.has_signed(self._content, self.signature, purpose=self._purpose)

    def signed(self, secrets: SecretsBox) -> SignedDigest:
        """Return the same digest with a signature of the newest key.

        Raises:
            KeyFileError: the key file is missing or damaged.
        """
        return replace(self, signature=secrets.sign(self._content, purpose=self._purpose))

    @property
    def stored(self) -> dict[str, Any]:
        """The row of the table."""
        return asdict(self) if self.name != ANCHOR else _without_name(asdict(self))

    @property
    def _purpose(self) -> str:
        return f"audit {self.name}"

    @property
    def _content(self) -> bytes:
        fields = [self.seq, self.at, self.digest, self.last_anchor]
        return orjson.dumps(fields, option=orjson.OPT_UTC_Z)


def _without_name(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "name"}


def read_mark(
    connection: Connection, name: str, *, for_update: bool = False
) -> SignedDigest | None:
    """Return the start or the head of the chain; None if it is missing or unreadable."""
    query = select_raw(audit_marks).where(audit_marks.c.name == name)
    row = connection.execute(query.with_for_update() if for_update else query).mappings().first()
    try:
        if row is None:
            return None
        values = parsed(audit_marks, row)
        del values["problem"]
        return SignedDigest(**values)
    except ValueError:
        return None


def write_mark(connection: Connection, mark: SignedDigest) -> None:
    """Store the start or the head of the chain."""
    insert_or_replace(connection, audit_marks, [mark.stored])


def read_anchors(connection: Connection) -> tuple[list[SignedDigest], int]:
    """Return the anchors in order, and the number of the unreadable ones."""
    rows = connection.execute(select_raw(audit_anchors).order_by(audit_anchors.c.seq)).mappings()
    found, unreadable = [], 0
    for row in rows:
        try:
            found.append(SignedDigest(ANCHOR, **parsed(audit_anchors, row)))
        except ValueError:
            unreadable += 1
    return found, unreadable


def are_linked(anchors: Sequence[SignedDigest], head: SignedDigest) -> bool:
    """Return whether each anchor, and then the head, names the anchor before it."""
    before = [0, *(each.seq for each in anchors)]
    return before == [*(each.last_anchor for each in anchors), head.last_anchor]


def newest_row(connection: Connection) -> tuple[int, str] | None:
    """Return number and digest of the last row; None for an empty log."""
    query = select(audit_log.c.seq, audit_log.c.digest).where(HAS_NUMBER)
    row = connection.execute(query.order_by(audit_log.c.seq.desc()).limit(1)).one_or_none()
    return None if row is None else (row.seq, row.digest)


def trusted_head(context: Context, connection: Connection) -> SignedDigest | None:
    """Lock and return the head; None if the server may not sign a row after it.

    Else a server would sign what an attacker has put there: another head, or rows after the head.

    Raises:
        KeyFileError: the key file is missing or damaged.
    """
    head = read_mark(connection, HEAD, for_update=True)
    if head is None or not head.is_signed(context.secrets):
        return None
    last = newest_row(connection)
    return head if last is None or last[0] <= head.seq else None


def sign_chain(context: Context, connection: Connection) -> bool:
    """Sign the chain as it is, unless its start, its head and its anchors are signed already.

    Only an operator decides this: after a lost key file, or after a finding of the check. Later
    checks still find rows that do not fit together.

    Returns:
        Whether anything was signed.

    Raises:
        KeyFileError: the key file is missing or damaged.
    """
    secrets = context.secrets
    head, start = trusted_head(context, connection), read_mark(connection, START)
    anchors, unreadable = read_anchors(connection)
    if start is not None and not start.is_signed(secrets):
        start = None
    is_linked = head is not None and start is not None and are_linked(anchors, head)
    if is_linked and not unreadable and all(each.is_signed(secrets) for each in anchors):
        return False
    start = start or _start_as_it_is(context, connection)
    head = head or _head_as_it_is(context, connection, start)
    rows, last = [], 0
    for each in anchors:
        if each.seq <= head.seq:
            rows.append(replace(each, last_anchor=last).signed(secrets).stored)
            last = each.seq
    connection.execute(delete(audit_anchors))
    if rows:
        connection.execute(insert(audit_anchors), rows)
    for mark in (start, replace(head, last_anchor=last)):
        write_mark(connection, mark.signed(secrets))
    return True


def _start_as_it_is(context: Context, connection: Connection) -> SignedDigest:
    query = select(audit_log.c.seq, audit_log.c.previous).where(HAS_NUMBER)
    first = connection.execute(query.order_by(audit_log.c.seq).limit(1)).one_or_none()
    seq, digest = (0, FIRST_DIGEST) if first is None else (first.seq - 1, first.previous)
    return SignedDigest(START, seq, context.now(), digest)


def _head_as_it_is(context: Context, connection: Connection, start: SignedDigest) -> SignedDigest:
    seq, digest = newest_row(connection) or (start.seq, start.digest)
    return SignedDigest(HEAD, seq, context.now(), digest)


def sign_again(context: Context, connection: Connection) -> None:
    """Replace the valid signatures by those of the newest key, before older keys are dropped.

    A signature of an unknown key stays, so that the check finds it.

    Raises:
        KeyFileError: the key file is missing or damaged.
    """
    secrets = context.secrets
    for name in (HEAD, START):  # the head first, which sealing locks
        mark = read_mark(connection, name, for_update=True)
        if mark is not None and mark.is_signed(secrets):
            write_mark(connection, mark.signed(secrets))
    signed = [
        {"of_seq": each.seq, "signature": each.signed(secrets).signature}
        for each in read_anchors(connection)[0]
        if each.is_signed(secrets)
    ]
    if signed:
        its = audit_anchors.c.seq == bindparam("of_seq")
        connection.execute(update(audit_anchors).where(its), signed)
