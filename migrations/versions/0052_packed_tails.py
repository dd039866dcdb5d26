"""The points that one report brings of a series are one row, packed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from struct import Struct
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import SchemaItem

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None

POINT = Struct("<qdd")
NON_FINITE = {1: math.nan, 2: math.inf, 3: -math.inf}
ROWS_AT_ONCE = 200
ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Pack the tail of each series into one row."""
    _refuse_writers("metric_tail")
    new = _created(
        "metric_tails",
        sa.Column("last_step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("points", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("series_id", "last_step", name="pk_metric_tails"),
    )
    _insert(new, _packed())
    op.drop_table("metric_tail")


def downgrade() -> None:
    """Give each point a row again."""
    _refuse_writers("metric_tails")
    new = _created(
        "metric_tail",
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("value", sa.Float()),
        sa.Column("non_finite", sa.SmallInteger(), nullable=False),
        sa.PrimaryKeyConstraint("series_id", "step", name="pk_metric_tail"),
    )
    _insert(new, _unpacked())
    op.drop_table("metric_tails")


def _refuse_writers(table: str) -> None:
    """Have a server that was not stopped wait: what it stored after the copy would be lost."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE")


def _created(name: str, *columns: SchemaItem) -> sa.Table:
    return op.create_table(
        name,
        sa.Column("series_id", ROW_ID, autoincrement=False, nullable=False),
        *columns,
        sa.ForeignKeyConstraint(
            ["series_id"],
            ["metric_series.id"],
            name=f"fk_{name}_series_id_metric_series",
            ondelete="CASCADE",
        ),
        sqlite_with_rowid=False,
    )


def _insert(table: sa.Table, rows: Iterator[dict[str, Any]]) -> None:
    batch: list[dict[str, Any]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == ROWS_AT_ONCE:
            op.get_bind().execute(sa.insert(table), batch)
            batch = []
    if batch:
        op.get_bind().execute(sa.insert(table), batch)


def _rows(query: str) -> Iterator[Any]:
    streamed = {"yield_per": ROWS_AT_ONCE}
    return iter(op.get_bind().execute(sa.text(query), execution_options=streamed))


def _packed() -> Iterator[dict[str, Any]]:
    rows = _rows(
        "SELECT series_id, step, time, value, non_finite FROM metric_tail ORDER BY series_id, step"
    )
    for series_id, own in groupby(rows, itemgetter(0)):
        points = [
            (step, time, NON_FINITE[code] if value is None else value)
            for _, step, time, value, code in own
        ]
        yield {
            "series_id": series_id,
            "last_step": points[-1][0],
            "first_step": points[0][0],
            "points": b"".join(POINT.pack(*point) for point in points),
        }


def _unpacked() -> Iterator[dict[str, Any]]:
    for series_id, packed in _rows("SELECT series_id, points FROM metric_tails"):
        for step, time, value in POINT.iter_unpack(packed):
            code = 0 if math.isfinite(value) else 1 if math.isnan(value) else 2 if value > 0 else 3
            yield {
                "series_id": series_id,
                "step": step,
                "time": time,
                "value": None if code else value,
                "non_finite": code,
            }
