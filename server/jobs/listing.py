"""The jobs table: narrow rows by SQLAlchemy Core, JSON columns passed on as they are stored."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Row, Select, Text, func, or_, select, type_coerce, union_all

from server.context import Context
from server.tables import jobs
from specs.states import JobState

_COLUMNS = (
    jobs.c.id,
    jobs.c.name,
    type_coerce(jobs.c.tags, Text).label("tags"),
    jobs.c.state,
    jobs.c.reason,
    jobs.c.attempt,
    jobs.c.world_size,
    jobs.c.layout,
    jobs.c.priority,
    type_coerce(jobs.c.progress, Text).label("progress"),
    jobs.c.created_at,
    jobs.c.updated_at,
    jobs.c.started_at,
    jobs.c.ended_at,
)
# Plain strings: SQLAlchemy's own names are of a subclass, which orjson takes for no key.
_NAMES = tuple(str(column.key) for column in _COLUMNS)
_ESCAPED = re.compile(r"[/%_]")


@dataclass(frozen=True)
class JobFilter:
    """Which jobs are wanted; what is empty does not restrict."""

    states: tuple[JobState, ...] = ()
    """In one of these states."""
    tags: tuple[str, ...] = ()
    """With all of these tags."""
    name: str | None = None
    """With exactly this name."""
    search: str | None = None
    """With this text in the name, or an id that begins with it."""


def list_jobs(
    context: Context, wanted: JobFilter, *, after: str | None, limit: int
) -> Sequence[Row[Any]]:
    """Return at most `limit` jobs after an id, the newest first."""
    conditions = _conditions(wanted, after)
    if wanted.search is None and not wanted.tags:
        query = _newest(conditions, wanted.states, limit)
    else:
        query = _found(conditions, wanted.states, limit)
    with context.database.read() as connection:
        return connection.execute(query).all()


def job_summary(row: Row[Any]) -> dict[str, object]:
    """Return what a row says, for orjson: a `JobSummary`."""
    return {
        **dict(zip(_NAMES, row, strict=True)),
        "tags": orjson.Fragment(row.tags),
        "progress": orjson.Fragment(row.progress),
    }


def _conditions(wanted: JobFilter, after: str | None) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if after is not None:
        conditions.append(jobs.c.id < after)
    if wanted.name is not None:
        conditions.append(jobs.c.name == wanted.name)
    if wanted.search is not None:
        # Whole patterns: with `contains` the database would put them together anew for each row.
        text = _ESCAPED.sub(r"/\g<0>", wanted.search)
        in_name = func.lower(jobs.c.name).like(f"%{text.lower()}%", escape="/")
        conditions.append(or_(in_name, jobs.c.id.like(f"{text}%", escape="/")))
    tags = type_coerce(jobs.c.tags, Text)
    for word in (f'"{tag}"' for tag in wanted.tags):
        # LIKE finds the few rows fast, but on SQLite in any case of the letters.
        exactly = func.replace(tags, word, "") != tags
        conditions += [tags.contains(word, autoescape=True), exactly]
    return conditions


def _found(
    conditions: list[ColumnElement[bool]], states: tuple[JobState, ...], limit: int
) -> Select[Any]:
    """Return the query of a search: it walks an index of its own, and reads only what it shows."""
    if states:
        conditions = [*conditions, jobs.c.state.in_(states)]
    ids = select(jobs.c.id).where(*conditions).order_by(jobs.c.id.desc()).limit(limit)
    return select(*_COLUMNS).where(jobs.c.id.in_(ids)).order_by(jobs.c.id.desc())


def _newest(
    conditions: list[ColumnElement[bool]], states: tuple[JobState, ...], limit: int
) -> Select[Any]:
    """Return the query of the newest jobs; each state walks its own index, none is sorted whole."""
    if not states:
        return _page(conditions, limit)
    by_state = [
        _page([*conditions, jobs.c.state == state], limit) for state in dict.fromkeys(states)
    ]
    if len(by_state) == 1:
        return by_state[0]
    union = union_all(*(page.subquery().select() for page in by_state)).subquery()
    return union.select().order_by(union.c.id.desc()).limit(limit)


def _page(conditions: list[ColumnElement[bool]], limit: int) -> Select[Any]:
    return select(*_COLUMNS).where(*conditions).order_by(jobs.c.id.desc()).limit(limit)
