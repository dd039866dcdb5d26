"""The check of the audit log for changed, missing, reordered and added rows, and a cut end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import orjson
from sqlalchemy import Connection, func, select

from server.core.audit.audit_tables import audit_log, audit_marks
from server.core.audit.chain import digest_of
from server.core.audit.raw_rows import parsed, select_raw
from server.core.audit.signed_digests import (
    HEAD,
    START,
    SignedDigest,
    are_linked,
    read_anchors,
    read_mark,
)
from server.core.context import Context
from server.core.secrets import KeyFileError

BATCH = 1000
MAX_FOUND = 20
"""Maximum number of problems that a check lists."""
MAX_SEQ = 2**63 - 1


@dataclass
class AuditCheck:
    """What a check has read and found."""

    first: int = 0
    """Number of the first row; 0 if the log is empty."""
    last: int = 0
    rows: int = 0
    compared: int = 0
    """Number of lines of the given export that were compared."""
    unread: int = 0
    """Number of lines of the export that are no rows, such as a line that a crash cut."""
    problems: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        """Add a problem, unless there are many already."""
        if len(self.problems) < MAX_FOUND:
            self.problems.append(problem)


@dataclass(frozen=True)
class Known:
    """A digest from outside the database."""

    seq: int
    digest: str


def known_digests(lines: Iterable[bytes]) -> Iterator[Known | None]:
    """Yield the digests of exported rows and anchors; None for a line that is neither."""
    for line in lines:
        try:
            found = orjson.loads(line)
            found = found.get("anchor", found)
            seq = int(found["seq"])
            yield Known(seq, str(found["digest"])) if 0 < seq <= MAX_SEQ else None
        except (ValueError, KeyError, TypeError, AttributeError):
            yield None


def verify(context: Context, known: Iterable[Known | None] = ()) -> AuditCheck:
    """Check the whole chain, its anchors and its ends, and compare it with an export.

    Args:
        context: the context.
        known: digests from the export, in any order; None stands for an unread line.
    """
    check = AuditCheck()
    with context.database.snapshot() as connection:
        start, head = read_mark(connection, START), read_mark(connection, HEAD)
        anchors, unreadable = read_anchors(connection)
        for name, mark in ((START, start), (HEAD, head)):
            if mark is None:
                check.add(f"the {name} of the chain is missing or unreadable")
        if unreadable:
            check.add(f"unreadable anchors: {unreadable}")
        if head is not None and not are_linked(anchors, head):
            check.add("anchors are missing, added or reordered")
        _check_signatures(context, check, [each for each in (start, head, *anchors) if each])
        by_seq = {each.seq: each for each in anchors}
        if start is not None and start.seq in by_seq and by_seq[start.seq].digest != start.digest:
            check.add(f"the start of the chain differs from the anchor of row {start.seq}")
        last = _check_rows(connection, check, start=start, anchors=by_seq)
        exported = _compare(connection, check, anchors=by_seq, known=known)
        _check_end(check, last, head=head, exported=exported)
    return check


def _check_signatures(context: Context, check: AuditCheck, some: Iterable[SignedDigest]) -> None:
    path = context.secrets.path
    try:
        for each in some:
            if not each.is_signed(context.secrets):
                check.add(f"no key of {path} has signed the {each.name} at row {each.seq}")
    except KeyFileError as error:
        check.add(f"signatures cannot be checked: {error.detail}")


@dataclass
class _Last:
    """The last row that was read."""

    seq: int
    digest: str | None
    """None if it was unreadable."""


def _check_rows(
    connection: Connection,
    check: AuditCheck,
    *,
    start: SignedDigest | None,
    anchors: Mapping[int, SignedDigest],
) -> _Last | None:
    """Check each row and its link to the row before; return the last row of the chain."""
    last = None if start is None else _Last(start.seq, start.digest)
    read = 0
    for row in _raw_rows(connection):
        seq, read = row["seq"], read + 1
        if not isinstance(seq, int):
            check.add(f"a row has no number: {seq!r:.80}")
        elif last is not None and seq <= last.seq:
            check.add(f"row {seq} is before the start of the chain: it was added")
        else:
            last = _check_row(check, row, last=last, anchor=anchors.get(seq))
    stored = connection.scalar(select(func.count()).select_from(audit_log)) or 0
    if stored != read:
        check.add(f"rows with the number of another row: {stored - read}")
    return last


def _raw_rows(connection: Connection) -> Iterator[Mapping[Any, Any]]:
    query = select_raw(audit_log).order_by(audit_log.c.seq).limit(BATCH)
    rows = connection.execute(query).mappings().all()
    while rows:
        yield from rows
        later = query.where(audit_log.c.seq > rows[-1]["seq"])
        rows = connection.execute(later).mappings().all()


def _check_row(
    check: AuditCheck,
    row: Mapping[Any, Any],
    *,
    last: _Last | None,
    anchor: SignedDigest | None,
) -> _Last:
    seq, digest = row["seq"], row["digest"]
    check.rows, check.last = check.rows + 1, seq
    check.first = check.first or seq
    if last is not None and seq > (expected := last.seq + 1):
        names = f"row {expected} is" if seq == expected + 1 else f"rows {expected} to {seq - 1} are"
        check.add(f"{names} missing")
    elif last is not None and last.digest not in {None, row["previous"]}:
        check.add(f"row {seq} does not follow row {seq - 1}: one of them was replaced")
    try:
        found = digest_of(parsed(audit_log, row))
    except (ValueError, TypeError) as error:
        check.add(f"row {seq} cannot be read: {error}")
        return _Last(seq, None)
    if found != digest:
        check.add(f"row {seq} was changed: its digest is {found}, stored {digest}")
    if anchor is not None and anchor.digest != digest:
        check.add(f"row {seq} differs from its anchor in the database")
    return _Last(seq, digest)


def _compare(
    connection: Connection,
    check: AuditCheck,
    *,
    anchors: Mapping[int, SignedDigest],
    known: Iterable[Known | None],
) -> int:
    """Compare rows and anchors with an export; return the last row that the export knows."""
    lines, last = iter(known), 0
    while some := [*islice(lines, BATCH)]:
        given = [each for each in some if each is not None]
        check.unread += len(some) - len(given)
        seqs = sorted({each.seq for each in given})
        query = select(audit_log.c.seq, audit_log.c.digest).where(audit_log.c.seq.in_(seqs))
        stored = {each.seq: each.digest for each in anchors.values()}
        stored |= {row.seq: row.digest for row in connection.execute(query)}
        for each in given:
            last = max(last, each.seq)
            if each.seq in stored:
                check.compared += 1
                if stored[each.seq] != each.digest:
                    check.add(f"row {each.seq} differs from the export")
    return last


def _check_end(
    check: AuditCheck, last: _Last | None, *, head: SignedDigest | None, exported: int
) -> None:
    """Compare the last row with the head, and with the last row of the export."""
    end = 0 if last is None else last.seq
    for whose, seq in (("the head", 0 if head is None else head.seq), ("the export", exported)):
        if seq > end:
            check.add(f"the end is cut: rows {end + 1} to {seq} are missing ({whose})")
    if head is None or last is None:
        return
    if end > head.seq:
        check.add(f"row {end} is after the signed head of the chain, which is row {head.seq}")
    elif end == head.seq and last.digest not in {None, head.digest}:
        check.add(f"row {end} differs from the head of the chain")


def export_problems(context: Context) -> list[str]:
    """Return a line for each destination that failed at its last try."""
    marks = audit_marks.c
    failed = select(marks.name, marks.seq, marks.problem).where(marks.problem.is_not(None))
    with context.database.read() as connection:
        rows = connection.execute(failed.order_by(marks.name)).all()
    return [f"the export to {row.name} stopped at row {row.seq}: {row.problem}" for row in rows]
