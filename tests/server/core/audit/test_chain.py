"""The chain of the audit log: whatever changes in the table is found, and nothing else is."""

from __future__ import annotations

import re
import shutil
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, func, literal, select, update

from server.app.keys import rotate
from server.core.audit import audit_retention, chain
from server.core.audit.audit_retention import forget_segments
from server.core.audit.audit_tables import audit_anchors, audit_log, audit_marks, audit_pending
from server.core.audit.chain import digest_of, seal, seal_batch
from server.core.audit.export_lines import export
from server.core.audit.signed_digests import FIRST_DIGEST
from server.core.audit.verification import known_digests, verify
from server.core.context import Context
from server.core.database.column_types import UtcDateTime
from server.core.secrets import KeyFileError
from tests.server.clock import FakeClock
from tests.server.core.audit.entries import add, alter, rows_of, sealed, waiting
from trainyard.protocol.audit_log.views import AuditOutcome

DAYS = 86_400.0

CHANGED: dict[str, Any] = {
    "operation": "members_remove",
    "outcome": AuditOutcome.REFUSED,
    "status": 403,
    "count": 7,
    "user": "eve",
    "user_id": "7" * 26,
    "token": "laptop",
    "token_id": "7" * 26,
    "session_id": "7" * 26,
    "break_glass": True,
    "address": "192.0.2.7",
    "object": "projects/speech",
    "project": "speech",
    "before": {"role": "viewer"},
    "after": None,
    "request_id": "other",
    "previous": "f" * 64,
    "digest": "f" * 64,
}
"""Another value for each column."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 4 rows, and segments of 10."""
    monkeypatch.setattr(chain, "BATCH", 4)
    monkeypatch.setattr(chain, "SEGMENT_ROWS", 10)


def problems(context: Context) -> list[str]:
    return verify(context).problems


def problems_later(context: Context) -> list[str]:
    """Return what a check finds after further rows: no new signature may hide a change."""
    sealed(context, 12)
    return problems(context)


def test_an_untouched_chain_is_intact(context: Context, small: None) -> None:
    assert problems(context) == []
    rows = sealed(context, 25)
    assert [row["seq"] for row in rows] == [*range(1, 26)]
    assert rows[0]["previous"] == FIRST_DIGEST
    assert [row["previous"] for row in rows[1:]] == [row["digest"] for row in rows[:-1]]
    check = verify(context)
    assert (check.first, check.last, check.rows, check.problems) == (1, 25, 25, [])
    assert waiting(context) == []


@pytest.mark.parametrize("seq", [1, 10, 17, 25], ids=["first", "anchor", "inner", "last"])
@pytest.mark.parametrize("column", [*(c.name for c in audit_log.columns)])
def test_a_changed_value_is_found(context: Context, small: None, column: str, seq: int) -> None:
    before = sealed(context, 25)[seq - 1]
    if column == "seq":
        alter(context, seq, seq=1000)
    elif column == "at":
        alter(context, seq, at=before["at"] + timedelta(microseconds=1))
    else:
        assert before[column] != CHANGED[column]
        alter(context, seq, **{column: CHANGED[column]})
    assert problems_later(context) != []


@pytest.mark.parametrize("seq", [1, 10, 17, 25])
def test_a_missing_row_is_named(context: Context, small: None, seq: int) -> None:
    sealed(context, 25)
    with context.database.write() as connection:
        connection.execute(delete(audit_log).where(audit_log.c.seq == seq))
    text = "\n".join(problems_later(context))
    expected = {25: r"row 25 is missing"}
    assert re.search(expected.get(seq, rf"row {seq} is missing"), text)


@pytest.mark.parametrize("seq", [1, 10, 17, 25])
def test_a_changed_row_with_a_new_digest_is_found(context: Context, small: None, seq: int) -> None:
    row = sealed(context, 25)[seq - 1] | {"user": "eve"}
    alter(context, seq, user="eve", digest=digest_of(row))
    assert problems_later(context) != []


def test_swapped_rows_are_found(context: Context, small: None) -> None:
    rows = sealed(context, 25)
    for seq, other in ((5, rows[5]), (6, rows[4])):
        alter(context, seq, **{name: other[name] for name in other if name != "seq"})
    assert problems_later(context) != []


def test_a_cut_end_with_an_old_head_needs_the_export(context: Context, small: None) -> None:
    """A restored older copy of the database is consistent; only what is outside knows more."""
    sealed(context, 12)
    with context.database.read() as connection:
        query = select(audit_marks).where(audit_marks.c.name == "head")
        head = dict(connection.execute(query).mappings().one())
    sealed(context, 13)
    exported = b"".join(export(context, 0)).splitlines()
    with context.database.write() as connection:
        connection.execute(delete(audit_log).where(audit_log.c.seq > 12))
        connection.execute(delete(audit_anchors).where(audit_anchors.c.seq > 12))
        its = update(audit_marks).where(audit_marks.c.name == "head")
        connection.execute(its.values({str(k): v for k, v in head.items()}))
    assert problems(context) == []
    check = verify(context, known_digests(exported))
    assert check.problems == ["the end is cut: rows 13 to 25 are missing (the export)"]
    anchors = [line for line in exported if b'"anchor"' in line]
    assert len(anchors) == 2
    assert verify(context, known_digests(anchors)).problems != []


def test_an_export_of_another_chain_is_found(context: Context, small: None) -> None:
    sealed(context, 12)
    exported = b"".join(export(context, 0)).splitlines()
    assert verify(context, known_digests(exported)).compared == 13
    changed = exported[4].replace(rows_of(context)[4]["digest"].encode(), b"f" * 64)
    check = verify(context, known_digests([*exported, changed, b'{"torn', b"[]"]))
    assert check.problems == ["row 5 differs from the export"]
    assert check.unread == 2


def test_a_crash_between_batches_loses_and_repeats_nothing(context: Context, small: None) -> None:
    add(context, 25)
    next(seal(context))
    with pytest.raises(RuntimeError, match="crash"):
        crash(context)
    assert (len(rows_of(context)), len(waiting(context))) == (4, 21)
    list(seal(context))
    names = [row["object"] for row in rows_of(context)]
    assert names == [f"projects/vision/members/user-{number}" for number in range(25)]
    assert problems(context) == []


def crash(context: Context) -> None:
    """Seal a batch in a transaction that never commits."""
    with context.database.write() as connection:
        seal_batch(context, connection)
        raise RuntimeError("crash")


def test_two_leaders_seal_each_row_once(context: Context) -> None:
    add(context, 700)
    leaders = [threading.Thread(target=lambda: list(seal(context))) for _ in range(3)]
    for each in leaders:
        each.start()
    for each in leaders:
        each.join()
    assert len({row["object"] for row in rows_of(context)}) == 700
    assert problems(context) == []


def test_a_clock_that_is_set_back_breaks_nothing(context: Context, clock: FakeClock) -> None:
    sealed(context, 3)
    clock.set(-2 * DAYS)
    rows = sealed(context, 3)
    assert rows[3]["at"] < rows[2]["at"]
    clock.set(4 * DAYS)
    sealed(context, 3)
    assert problems(context) == []


def test_a_segment_ends_after_a_day(context: Context, clock: FakeClock) -> None:
    sealed(context, 3)
    assert anchors_of(context) == []
    clock.advance(DAYS)
    sealed(context, 1)
    sealed(context, 1)
    assert anchors_of(context) == [4]


def anchors_of(context: Context) -> list[int]:
    with context.database.read() as connection:
        return [*connection.scalars(select(audit_anchors.c.seq).order_by(audit_anchors.c.seq))]


@pytest.fixture
def database_clock(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The clock of the database."""
    other = FakeClock()
    monkeypatch.setattr(
        audit_retention, "database_time", lambda _: literal(other.now(), type_=UtcDateTime())
    )
    return other


def test_retention_deletes_segments_and_verify_passes(
    context: Context, clock: FakeClock, database_clock: FakeClock, small: None
) -> None:
    sealed(context, 25)
    exported = b"".join(export(context, 0)).splitlines()
    assert forget_segments(context) == 0
    clock.advance(731 * DAYS)
    assert forget_segments(context) == 0, "a wrong clock of one machine deletes nothing"
    database_clock.advance(731 * DAYS)
    sealed(context, 3)
    assert forget_segments(context) == 12  # to the anchor after three batches
    assert problems_later(context) == []
    assert forget_segments(context) == 12
    list(seal(context))
    rows = rows_of(context)
    assert (rows[0]["seq"], rows[-1]["operation"]) == (25, "audit_forgotten")
    assert rows[-1]["after"] == {"until_seq": 24, "rows": 12}
    assert anchors_of(context)[:2] == [12, 24]
    assert problems(context) == []
    check = verify(context, known_digests(exported))
    assert (check.problems, check.compared) == ([], 5)  # row 25, both anchors and their rows


def test_a_deletion_by_others_is_no_retention(
    context: Context, clock: FakeClock, small: None
) -> None:
    sealed(context, 25)
    with context.database.write() as connection:
        connection.execute(delete(audit_log).where(audit_log.c.seq <= 12))
    assert problems_later(context) == ["rows 1 to 12 are missing"]


def test_rows_wait_for_a_missing_key(context: Context) -> None:
    """A signature that comes later would be one over what someone may have changed meanwhile."""
    path = context.secrets.path
    kept = path.read_text()
    sealed(context, 1)
    path.unlink()
    with pytest.raises(KeyFileError):
        sealed(context, 3)
    assert (len(rows_of(context)), len(waiting(context))) == (1, 3)
    assert "signatures cannot be checked" in problems(context)[0]
    path.write_text(kept)
    list(seal(context))
    assert (len(rows_of(context)), problems(context)) == (4, [])


def test_a_field_of_a_later_version_is_left_out(context: Context) -> None:
    """During an upgrade, servers of two versions store rows, and either one seals them."""
    add(context, 2)
    with context.database.write() as connection:
        entry = waiting(context)[0] | {"mood": "good"}
        first = select(func.min(audit_pending.c.id)).scalar_subquery()
        connection.execute(
            update(audit_pending).where(audit_pending.c.id == first).values(entry=entry)
        )
    list(seal(context))
    assert problems_later(context) == []


def test_a_rotation_signs_again(context: Context, small: None) -> None:
    sealed(context, 25)
    for _ in range(3):
        rotate(context)
    assert problems(context) == []


def test_a_scheduler_on_another_machine_continues_after_a_rotation(
    context: Context, small: None, tmp_path: Path
) -> None:
    """Its copy of the key file comes later."""
    sealed(context, 25)
    (tmp_path / "other").mkdir()
    settings = context.settings.model_copy(update={"state_dir": tmp_path / "other"})
    shutil.copyfile(context.secrets.path, settings.key_file)
    rotate(context)
    sealed(replace(context, settings=settings), 12)
    assert problems(context) == []
