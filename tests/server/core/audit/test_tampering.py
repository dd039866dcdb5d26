"""Attacks on the database: without the key, every change of the numbered rows is found."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import (
    Column,
    Connection,
    Table,
    bindparam,
    delete,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError

from server.core.audit import chain, verification
from server.core.audit.audit_retention import forget_segments
from server.core.audit.audit_tables import audit_anchors, audit_log, audit_marks, audit_pending
from server.core.audit.chain import digest_of, seal
from server.core.audit.raw_rows import select_raw
from server.core.audit.signed_digests import FIRST_DIGEST, HEAD, START, sign_chain
from server.core.audit.verification import verify
from server.core.context import Context
from tests.server.clock import FakeClock
from tests.server.core.audit.entries import add, rows_of, sealed


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 4 rows, and segments of 10."""
    monkeypatch.setattr(chain, "BATCH", 4)
    monkeypatch.setattr(chain, "SEGMENT_ROWS", 10)


def found(context: Context) -> list[str]:
    """Return what a check finds now, and after further rows: no new signature may hide a change."""
    before = verify(context).problems
    add(context, 12)
    list(seal(context))
    after = verify(context).problems
    assert bool(before) == bool(after), "a later row changes what is found"
    return after


def attack(context: Context, *steps: Callable[[Connection], Any]) -> None:
    """Change the database without the key."""
    with context.database.write() as connection:
        for step in steps:
            step(connection)


def rehashed(context: Context, since: int, **values: Any) -> Callable[[Connection], None]:
    """Return an attack that changes the rows from `since` on, with digests that fit together."""
    rows = rows_of(context)

    def change(connection: Connection) -> None:
        previous = rows[since - 1]["previous"]
        for row in rows[since - 1 :]:
            row |= values | {"previous": previous}
            previous = row["digest"] = digest_of(row)
            its = audit_log.c.seq == row["seq"]
            connection.execute(update(audit_log).where(its).values(row))
        for table in (audit_anchors, audit_marks):
            for seq in connection.scalars(select(table.c.seq).where(table.c.seq > 0)).all():
                digest = rows[seq - 1]["digest"]
                connection.execute(update(table).where(table.c.seq == seq).values(digest=digest))

    return change


def test_a_rewritten_chain_lacks_the_signature(context: Context) -> None:
    sealed(context, 25)
    attack(context, rehashed(context, 5, user="eve"))
    assert any("has signed the head" in each for each in found(context))


def test_the_server_signs_nothing_after_a_rewritten_head(context: Context) -> None:
    """Else the next row would turn the rewritten chain into a valid one."""
    sealed(context, 25)
    attack(context, rehashed(context, 5, user="eve"))
    with context.database.read() as connection:
        before = connection.execute(select(audit_marks)).all()
        anchors = connection.execute(select(audit_anchors)).all()
    assert len(sealed(context, 30)) == 55, "the rows are numbered, listed and exported"
    with context.database.read() as connection:
        assert connection.execute(select(audit_marks)).all() == before
        assert connection.execute(select(audit_anchors)).all() == anchors


def test_a_clients_value_is_no_signature(context: Context) -> None:
    """The server encrypts values of `env` with the same keys, and stores what it has encrypted."""
    rows = sealed(context, 25)
    sealed_env = context.secrets.seal(
        {
            "A": f"audit head\n25 {rows[4]['digest']}",
            "B": f'[5,"2026-01-01T00:00:00Z","{rows[4]["digest"]}",0]',
        }
    )
    assert sealed_env is not None
    for signature in sealed_env.values():
        values = {"seq": 5, "digest": rows[4]["digest"], "signature": signature[:64]}
        attack(
            context,
            lambda c: c.execute(delete(audit_log).where(audit_log.c.seq > 5)),
            lambda c, v=values: c.execute(  # type: ignore[misc]
                update(audit_marks).where(audit_marks.c.name == HEAD).values(v)
            ),
        )
        assert any("has signed the head" in each for each in verify(context).problems)


@pytest.mark.parametrize("names", [(HEAD,), (START,), (HEAD, START)])
def test_a_wiped_log_is_found(context: Context, names: tuple[str, ...]) -> None:
    sealed(context, 25)
    attack(
        context,
        *(lambda c, t=t: c.execute(delete(t)) for t in (audit_log, audit_anchors, audit_pending)),
        lambda c: c.execute(delete(audit_marks).where(audit_marks.c.name.in_(names))),
    )
    text = "\n".join(found(context))
    for name in names:
        assert f"the {name} of the chain is missing" in text


def test_a_log_that_was_begun_again_by_hand_is_found(context: Context) -> None:
    sealed(context, 25)
    first = {"seq": 0, "digest": FIRST_DIGEST, "last_anchor": 0}
    attack(
        context,
        *(lambda c, t=t: c.execute(delete(t)) for t in (audit_log, audit_anchors, audit_pending)),
        lambda c: c.execute(update(audit_marks).where(audit_marks.c.name == HEAD).values(first)),
    )
    assert any("has signed the head" in each for each in found(context))


def test_forged_retention_is_found(context: Context) -> None:
    """The anchor of a deleted segment is no start of a chain, and neither is a row about it."""
    sealed(context, 25)
    sealed(context, 1, operation="audit_forgotten", after={"until_seq": 12, "rows": 12})

    def forge(connection: Connection) -> None:
        anchor = connection.execute(select(audit_anchors).limit(1)).mappings().one()
        connection.execute(delete(audit_log).where(audit_log.c.seq <= anchor["seq"]))
        its = update(audit_marks).where(audit_marks.c.name == START)
        values = {str(name): value for name, value in anchor.items()}
        connection.execute(its.values(values))

    attack(context, forge)
    assert any("has signed the start" in each for each in found(context))


def test_an_old_time_of_an_anchor_deletes_nothing(context: Context, clock: FakeClock) -> None:
    sealed(context, 25)
    old = datetime(2000, 1, 1, tzinfo=UTC)
    attack(context, lambda c: c.execute(update(audit_anchors).values(at=old)))
    assert forget_segments(context) == 0
    assert len(rows_of(context)) == 25
    assert any("has signed the anchor" in each for each in found(context))


def test_an_anchor_is_no_head(context: Context) -> None:
    """Else an attacker could cut the end back to any anchor."""
    sealed(context, 25)

    def cut(connection: Connection) -> None:
        anchor = connection.execute(select(audit_anchors).limit(1)).mappings().one()
        connection.execute(delete(audit_log).where(audit_log.c.seq > anchor["seq"]))
        connection.execute(delete(audit_anchors).where(audit_anchors.c.seq > anchor["seq"]))
        its = update(audit_marks).where(audit_marks.c.name == HEAD)
        connection.execute(its.values({str(k): v for k, v in anchor.items()}))

    attack(context, cut)
    assert any("has signed the head" in each for each in found(context))


@pytest.mark.parametrize("seq", [12, 24])
def test_a_missing_anchor_is_found(context: Context, seq: int) -> None:
    sealed(context, 25)
    attack(context, lambda c: c.execute(delete(audit_anchors).where(audit_anchors.c.seq == seq)))
    assert "anchors are missing, added or reordered" in found(context)


@pytest.mark.parametrize("seq", [12, 24])
def test_a_missing_anchor_is_found_behind_linked_ones(context: Context, seq: int) -> None:
    sealed(context, 25)
    before = 0 if seq == 12 else 12
    attack(
        context,
        lambda c: c.execute(delete(audit_anchors).where(audit_anchors.c.seq == seq)),
        *(
            lambda c, t=t: c.execute(
                update(t).where(t.c.last_anchor == seq).values(last_anchor=before)
            )
            for t in (audit_anchors, audit_marks)
        ),
    )
    assert any("has signed the" in each for each in found(context))


def test_a_second_row_of_a_number_is_found(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attacker can drop the key of the table; the check reads each number once."""
    monkeypatch.setattr(verification, "BATCH", 5)
    row = sealed(context, 25)[4] | {"user": "eve"}
    attack(
        context,
        lambda c: c.execute(text("CREATE TABLE other AS SELECT * FROM audit_log")),
        lambda c: c.execute(text("DROP TABLE audit_log")),
        lambda c: c.execute(text("ALTER TABLE other RENAME TO audit_log")),
        lambda c: c.execute(insert(audit_log).values(row)),
    )
    assert "rows with the number of another row: 1" in found(context)


@pytest.mark.parametrize("where", [26, 30, 2**62])
def test_an_added_row_is_found_and_stops_nothing(context: Context, where: int) -> None:
    """An old time does not hide a row: the chain has an order of its own."""
    last = sealed(context, 25)[-1]
    row = last | {"seq": where, "previous": last["digest"], "at": last["at"] - timedelta(days=30)}
    row["digest"] = digest_of(row)
    attack(context, lambda c: c.execute(insert(audit_log).values(row)))
    assert found(context) != []
    with context.database.read() as connection:
        assert connection.scalar(select(audit_pending.c.id)) is None


class Attacker:
    """Makes one random change of the tables, without the key."""

    def __init__(self, seed: int, *, is_sqlite: bool) -> None:
        self.random = random.Random(seed)
        self.is_sqlite = is_sqlite

    def change(self, connection: Connection) -> None:
        """Make the change; databases refuse some values."""
        while True:
            what = self.random.choice([self.delete, self.cut, self.wipe, self.swap, self.edit])
            try:
                with connection.begin_nested():
                    what(connection)
            except DBAPIError:
                continue
            return

    def delete(self, connection: Connection) -> None:
        table, keys = self.some(connection)
        number = self.random.randint(1, len(keys))
        gone = self.random.sample(keys, number)
        connection.execute(delete(table).where(key_of(table).in_(gone)))

    def cut(self, connection: Connection) -> None:
        seq = self.random.randint(1, 25)
        is_gone = audit_log.c.seq <= seq if self.random.random() < 0.5 else audit_log.c.seq >= seq
        connection.execute(delete(audit_log).where(is_gone))

    def wipe(self, connection: Connection) -> None:
        for table in (audit_log, audit_anchors, audit_pending):
            connection.execute(delete(table))
        if self.random.random() < 0.5:
            connection.execute(delete(audit_marks))

    def swap(self, connection: Connection) -> None:
        one, other = self.random.sample(range(1, 26), 2)
        number: sa.BindParameter[int] = bindparam("number")
        for before, after in ((one, -7), (other, one), (-7, other)):
            moved = update(audit_log).where(audit_log.c.seq == number).values(seq=after)
            connection.execute(moved, {"number": before})

    def edit(self, connection: Connection) -> None:
        table, keys = self.some(connection)
        columns = [each.name for each in table.columns if each.name != "problem"]
        column, key = self.random.choice(columns), self.random.choice(keys)
        value: Any = self.random.choice(
            ["x", "7", -1, 2**62, "2001-01-01 00:00:00", None, "\u00ff"]
        )
        if self.is_sqlite and self.random.random() < 0.2:
            value = b"\xff"
        own = key_of(table).name
        untyped = sa.table(table.name, sa.column(column), sa.column(own))
        changed = update(untyped).where(untyped.c[own] == key).values({column: value})
        before = connection.execute(select_raw(table).order_by(key_of(table))).all()
        connection.execute(changed)
        if before == connection.execute(select_raw(table).order_by(key_of(table))).all():
            self.cut(connection)

    def some(self, connection: Connection) -> tuple[Table, list[Any]]:
        """Return a table, and the keys of its rows that are signed or chained."""
        table = self.random.choice([audit_log, audit_log, audit_anchors, audit_marks])
        return table, [*connection.scalars(select(key_of(table)))]


def key_of(table: Table) -> Column[Any]:
    return table.c.name if table is audit_marks else table.c.seq


@pytest.mark.parametrize("seed", range(120))
def test_any_change_of_the_tables_is_found(context: Context, seed: int) -> None:
    sealed(context, 25)
    assert verify(context).problems == []
    attack(context, Attacker(seed, is_sqlite=context.database.is_sqlite).change)
    assert found(context) != []


def test_sign_accepts_a_chain_as_it_is(context: Context) -> None:
    """For a lost key file; what does not fit together is still found."""
    rows = sealed(context, 25)
    context.secrets.path.unlink()
    context.secrets.create()
    assert found(context) != []
    for is_done in (True, False):
        with context.database.write() as connection:
            assert sign_chain(context, connection) is is_done
    sealed(context, 12)
    assert verify(context).problems == []
    attack(
        context,
        lambda c: c.execute(update(audit_log).where(audit_log.c.seq == 3).values(user="eve")),
    )
    attack(context, lambda c: c.execute(delete(audit_marks)))
    with context.database.write() as connection:
        assert sign_chain(context, connection)
    assert verify(context).problems[0].startswith("row 3 was changed")
    assert rows[2]["user"] == "ada"


def test_a_cut_end_stays_found_after_a_signature(context: Context) -> None:
    sealed(context, 25)
    attack(
        context,
        lambda c: c.execute(delete(audit_log).where(audit_log.c.seq > 20)),
        lambda c: c.execute(delete(audit_marks).where(audit_marks.c.name == START)),
    )
    with context.database.write() as connection:
        assert sign_chain(context, connection)
    assert "the end is cut: rows 21 to 25 are missing (the head)" in verify(context).problems
