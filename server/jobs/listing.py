"""The list of jobs: narrow rows whose JSON columns are passed on as stored."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated, Any, ClassVar

import orjson
from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    Table,
    Text,
    func,
    literal_column,
    or_,
    select,
    type_coerce,
    union_all,
)

from server.context import Context
from server.database.queue_tables import shown_reason
from server.database.rows import TypedRow
from server.database.tables import jobs
from server.errors import InvalidRequestError
from trainyard.protocol.past_runs.views import ImportTool
from trainyard.protocol.rest.jobs import JobOrder
from trainyard.protocol.states import TERMINAL_JOB_STATES, JobState

_ESCAPED = re.compile(r"[/%_]")


RANKS = {state: int(state in TERMINAL_JOB_STATES) for state in JobState}
"""Place of each state where active jobs come first: 0 before 1."""


@dataclass(frozen=True, slots=True)
class ListedJob(TypedRow):
    """A job as listed; JSON columns are the stored text."""

    table: ClassVar[Table] = jobs
    id: str
    name: str
    tags: Annotated[str, type_coerce(jobs.c.tags, Text).label("tags")]
    project: str
    state: JobState
    reason: Annotated[str | None, shown_reason]
    attempt: int
    world_size: int
    min_world_size: int | None
    max_world_size: int | None
    layout: str
    priority: int
    progress: Annotated[str, type_coerce(jobs.c.progress, Text).label("progress")]
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    imported_from: ImportTool | None
    rank: Annotated[int, literal_column("0", Integer).label("rank")]
    """Group of the order in which it is listed."""

    @property
    def key(self) -> str:
        """The key after which the next page begins."""
        return f"{self.rank}{self.id}"

    @property
    def summary(self) -> dict[str, object]:
        """A `JobSummary`, for orjson."""
        row: dict[str, object] = {name: getattr(self, name) for name in _SHOWN}
        tags, progress = orjson.Fragment(self.tags), orjson.Fragment(self.progress)
        return {**row, "tags": tags, "progress": progress}


_SHOWN = tuple(field.name for field in fields(ListedJob) if field.name != "rank")


@dataclass(frozen=True)
class JobFilter:
    """Conditions on listed jobs; an empty field does not restrict."""

    states: tuple[JobState, ...] = ()
    """In one of these states."""
    tags: tuple[str, ...] = ()
    """With all of these tags."""
    name: str | None = None
    """With exactly this name."""
    project: str | None = None
    """Of this project."""
    search: str | None = None
    """With this text in the name, or an id that begins with it."""
    imported: bool | None = None
    """Recorded by another tool, or not."""


def list_jobs(
    context: Context, wanted: JobFilter, order: JobOrder, *, after: str | None, limit: int
) -> Sequence[ListedJob]:
    """Return at most `limit` jobs after a `ListedJob.key`, the newest or the active ones first.

    Raises:
        InvalidRequestError: the key comes from the other order.
    """
    rank, last = (0, None) if after is None else (int(after[0]), after[1:])
    states = tuple(wanted.states or JobState)
    groups = [states]
    if order == JobOrder.ACTIVE:
        groups = [tuple(s for s in states if RANKS[s] == each) for each in (0, 1)]
    if rank >= len(groups):
        raise InvalidRequestError.at("query/page_token", "comes from a list in another order")
    # Groups before that of the last row are complete; later ones begin with their newest row.
    pages = [
        _group(wanted, group, place, after=last if place == rank else None, limit=limit)
        for place, group in enumerate(groups)
        if group and place >= rank
    ]
    if not pages:
        return ()
    query = pages[0]
    if len(pages) > 1:
        union = union_all(*(page.subquery().select() for page in pages)).subquery()
        query = union.select().order_by(union.c.rank, union.c.id.desc()).limit(limit)
    with context.database.read() as connection:
        return ListedJob.all(connection, query)


def count_jobs(context: Context, wanted: JobFilter) -> dict[JobState, int]:
    """Return the number of matching jobs in each state, 0 included."""
    query = select(jobs.c.state, func.count()).where(*_conditions(wanted, None))
    if wanted.states:
        query = query.where(jobs.c.state.in_(wanted.states))
    with context.database.read() as connection:
        found = {row[0]: row[1] for row in connection.execute(query.group_by(jobs.c.state))}
    return {state: found.get(state.value, 0) for state in JobState}


def _conditions(wanted: JobFilter, after: str | None) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if after is not None:
        conditions.append(jobs.c.id < after)
    if wanted.name is not None:
        conditions.append(jobs.c.name == wanted.name)
    if wanted.project is not None:
        conditions.append(jobs.c.project == wanted.project)
    if wanted.imported is not None:
        tool = jobs.c.imported_from
        conditions.append(tool.is_not(None) if wanted.imported else tool.is_(None))
    if wanted.search is not None:
        # Whole patterns: `contains` would concatenate them anew for each row.
        text = _ESCAPED.sub(r"/\g<0>", wanted.search)
        in_name = func.lower(jobs.c.name).like(f"%{text.lower()}%", escape="/")
        conditions.append(or_(in_name, jobs.c.id.like(f"{text}%", escape="/")))
    tags = type_coerce(jobs.c.tags, Text)
    for word in (f'"{tag}"' for tag in wanted.tags):
        # LIKE finds the few rows fast, but ignores case on SQLite.
        exactly = func.replace(tags, word, "") != tags
        conditions += [tags.contains(word, autoescape=True), exactly]
    return conditions


def _group(
    wanted: JobFilter, states: tuple[JobState, ...], rank: int, *, after: str | None, limit: int
) -> Select[Any]:
    conditions = _conditions(wanted, after)
    if wanted.search is None and not wanted.tags:
        return _newest(conditions, states, limit, rank)
    return _found(conditions, states, limit, rank)


def _found(
    conditions: list[ColumnElement[bool]], states: tuple[JobState, ...], limit: int, rank: int
) -> Select[Any]:
    """Return the query of a search: the ids from its covering index, then the rows of the page."""
    if len(states) < len(JobState):
        conditions = [*conditions, jobs.c.state.in_(states)]
    ids = select(jobs.c.id).where(*conditions).order_by(jobs.c.id.desc()).limit(limit)
    return _columns(rank).where(jobs.c.id.in_(ids)).order_by(jobs.c.id.desc()).limit(limit)


def _newest(
    conditions: list[ColumnElement[bool]], states: tuple[JobState, ...], limit: int, rank: int
) -> Select[Any]:
    """Return the query of the newest jobs: each state walks its index, and none is sorted."""
    if len(states) == len(JobState):
        return _page(conditions, limit, rank)
    by_state = [
        _page([*conditions, jobs.c.state == state], limit, rank) for state in dict.fromkeys(states)
    ]
    if len(by_state) == 1:
        return by_state[0]
    union = union_all(*(page.subquery().select() for page in by_state)).subquery()
    return union.select().order_by(union.c.id.desc()).limit(limit)


def _page(conditions: list[ColumnElement[bool]], limit: int, rank: int) -> Select[Any]:
    return _columns(rank).where(*conditions).order_by(jobs.c.id.desc()).limit(limit)


def _columns(rank: int) -> Select[Any]:
    return select(*ListedJob.columns()[:-1], literal_column(str(rank), Integer).label("rank"))
