"""The list of jobs; its queries read few columns, and keep JSON columns as stored text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated, Any, ClassVar, NamedTuple

import orjson
from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    Table,
    Text,
    case,
    func,
    literal_column,
    or_,
    select,
    type_coerce,
    union_all,
)

from server.core.context import Context
from server.core.database.metric_and_log_tables import config_words
from server.core.database.rows import TypedRow
from server.core.database.scheduler_tables import shown_reason
from server.core.database.tables import jobs
from server.core.errors import InvalidRequestError
from server.core.people.user_tables import users
from server.core.visibility.scope import Scope
from server.jobs.facts.store import config_word
from trainyard.protocol.past_runs.views import ImportTool
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.jobs import JobOrder
from trainyard.protocol.states import TERMINAL_JOB_STATES, JobState

GROUPS = (
    tuple(s for s in JobState if s not in {JobState.QUEUED, *TERMINAL_JOB_STATES}),
    (JobState.QUEUED,),
    tuple(s for s in JobState if s in TERMINAL_JOB_STATES),
)
"""States of each group of jobs, in the order of a list with active jobs first."""
MERGED_PROJECTS = 32
"""Maximum number of visible projects with a query each. For more projects, the list reads the jobs
of all projects in order and omits the hidden ones."""
QUEUED = 1
"""Index of the group of queued jobs. This group is sorted by priority, then oldest first; the other
groups are sorted newest first."""


@dataclass(frozen=True, slots=True)
class ListedJob(TypedRow):
    """The columns of a job in the list; JSON columns hold the stored text."""

    table: ClassVar[Table] = jobs
    id: str
    name: str
    tags: Annotated[str, type_coerce(jobs.c.tags, Text).label("tags")]
    project: str
    owner_id: str
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
    """Index of the job's group in `GROUPS`."""

    @property
    def key(self) -> str:
        """Key of this row; a page starts after the key of the previous page's last row."""
        return f"{self.rank}{self.id}{self.priority}"

    def summary(self, owners: Mapping[str, str]) -> dict[str, object]:
        """Return the fields of a `JobSummary`, for serialization with orjson.

        `owners` has names by user id.
        """
        row: dict[str, object] = {name: getattr(self, name) for name in _SHOWN}
        tags, progress = orjson.Fragment(self.tags), orjson.Fragment(self.progress)
        owner = owners.get(self.owner_id)
        return {**row, "owner": owner, "tags": tags, "progress": progress}


_SHOWN = tuple(field.name for field in fields(ListedJob) if field.name not in {"rank", "owner_id"})


@dataclass(frozen=True)
class JobFilter:
    """Conditions on listed jobs; an empty field does not restrict."""

    states: tuple[JobState, ...] = ()
    tags: tuple[str, ...] = ()
    """Tags, all of which a job must have."""
    name: str | None = None
    project: str | None = None
    search: str | None = None
    """Words to search for. Each word must occur in the name or in a tag, begin the id, or equal a
    `name=value` of the configuration."""
    imported: bool | None = None
    """True for jobs that another tool recorded, False for jobs that ran here."""
    owner: str | None = None
    """Name of the user who owns the jobs."""
    owner_id: str | None = None
    """Id of the user who owns the jobs."""


def list_jobs(
    context: Context,
    wanted: JobFilter,
    order: JobOrder,
    *,
    scope: Scope,
    after: str | None,
    limit: int,
) -> Sequence[ListedJob]:
    """Return at most `limit` visible jobs after a `ListedJob.key`, newest first or active first.

    Raises:
        InvalidRequestError: this order does not have the group of the key.
    """
    last = None if after is None else _Last(int(after[0]), after[1:27], int(after[27:]))
    states = tuple(wanted.states or JobState)
    groups = [states]
    if order == JobOrder.ACTIVE:
        groups = [tuple(s for s in states if s in group) for group in GROUPS]
    if last is not None and last.rank >= len(groups):
        raise InvalidRequestError.at("query/page_token", "comes from a list in another order")
    # Earlier pages have all rows of the groups before the last row's group, and no later rows.
    begun = 0 if last is None else last.rank
    conditions = _conditions(wanted, scope)
    projects = _read_apart(wanted, scope)
    pages: list[Select[Any]] = []
    for rank, group in enumerate(groups):
        if group and rank >= begun:
            is_queue = order == JobOrder.ACTIVE and rank == QUEUED
            page = _Page(rank, last if rank == begun else None, is_queue=is_queue, limit=limit)
            is_search = wanted.search is not None or bool(wanted.tags)
            if is_search:
                pages.append(_searched(conditions, group, page))
            else:
                pages.append(_merged(conditions, group, page, projects=projects))
    if not pages:
        return ()
    query = pages[0]
    if len(pages) > 1:
        of = union_all(*(page.subquery().select() for page in pages)).subquery()
        waits = of.c.rank == QUEUED
        in_queue = (case((waits, -of.c.priority)), case((waits, of.c.id)))
        query = of.select().order_by(of.c.rank, *in_queue, of.c.id.desc()).limit(limit)
    with context.database.read() as connection:
        return ListedJob.all(connection, query)


class _Last(NamedTuple):
    """The parts of `ListedJob.key` of the last row on the previous page."""

    rank: int
    id: str
    priority: int


@dataclass(frozen=True)
class _Page:
    """A range of rows in one group, in the order of the group."""

    rank: int
    after: _Last | None
    is_queue: bool
    limit: int

    @property
    def order(self) -> tuple[ColumnElement[Any], ...]:
        return (jobs.c.priority.desc(), jobs.c.id) if self.is_queue else (jobs.c.id.desc(),)

    @property
    def conditions(self) -> list[ColumnElement[bool]]:
        if self.after is None:
            return []
        if not self.is_queue:
            return [jobs.c.id < self.after.id]
        behind = (jobs.c.priority == self.after.priority) & (jobs.c.id > self.after.id)
        return [or_(jobs.c.priority < self.after.priority, behind)]


def count_jobs(context: Context, wanted: JobFilter, *, scope: Scope) -> dict[JobState, int]:
    """Return the number of matching visible jobs by state, including states without jobs."""
    query = select(jobs.c.state, func.count()).where(*_conditions(wanted, scope))
    if wanted.states:
        query = query.where(jobs.c.state.in_(wanted.states))
    with context.database.read() as connection:
        found = {row[0]: row[1] for row in connection.execute(query.group_by(jobs.c.state))}
    return {state: found.get(state.value, 0) for state in JobState}


def _read_apart(wanted: JobFilter, scope: Scope) -> Sequence[str]:
    """Return the projects that have a query each, because an index then sorts their jobs."""
    visible = scope.within(Permission.JOBS_READ)
    if visible is None or wanted.project is not None or not 1 < len(visible) <= MERGED_PROJECTS:
        return ()
    return sorted(visible)


def _conditions(wanted: JobFilter, scope: Scope) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [scope.filter(jobs.c.project)]
    if wanted.name is not None:
        conditions.append(jobs.c.name == wanted.name)
    if wanted.project is not None:
        conditions.append(jobs.c.project == wanted.project)
    if wanted.owner is not None:
        named = select(users.c.id).where(users.c.name == wanted.owner)
        conditions.append(jobs.c.owner_id == named.scalar_subquery())
    if wanted.owner_id is not None:
        conditions.append(jobs.c.owner_id == wanted.owner_id)
    if wanted.imported is not None:
        tool = jobs.c.imported_from
        conditions.append(tool.is_not(None) if wanted.imported else tool.is_(None))
    tags = type_coerce(jobs.c.tags, Text)
    for word in (wanted.search or "").lower().split():
        if "=" in word:  # names and tags contain no "="
            conditions.append(_has_value(word))
            continue
        # `contains` would concatenate the pattern again for each row.
        text = re.sub(r"[/%_]", r"/\g<0>", word)
        within = [func.lower(each).like(f"%{text}%", escape="/") for each in (jobs.c.name, tags)]
        conditions.append(or_(*within, jobs.c.id.like(f"{text}%", escape="/")))
    for word in (f'"{tag}"' for tag in wanted.tags):
        # LIKE finds the few candidate rows fast, but ignores case on SQLite.
        exactly = func.replace(tags, word, "") != tags
        conditions += [tags.contains(word, autoescape=True), exactly]
    return conditions


def _has_value(text: str) -> ColumnElement[bool]:
    """Return the condition that the configuration has this `name=value`; both may contain "="."""
    parts = (text.partition("="), text.rpartition("="))
    words = {config_word(name, value) for name, _, value in parts} - {None}
    return jobs.c.id.in_(select(config_words.c.job_id).where(config_words.c.word.in_(words)))


def _searched(
    conditions: Sequence[ColumnElement[bool]], states: tuple[JobState, ...], page: _Page
) -> Select[Any]:
    """Return the query of one page of a group, for a search or a filter by tags.

    It reads ids from the covering index, then the rows of the page.
    """
    some = [*conditions, *page.conditions]
    if len(states) < len(JobState):
        some.append(jobs.c.state.in_(states))
    ids = select(jobs.c.id).where(*some).order_by(*page.order).limit(page.limit)
    return _page([jobs.c.id.in_(ids)], page)


def _merged(
    conditions: Sequence[ColumnElement[bool]],
    states: tuple[JobState, ...],
    page: _Page,
    *,
    projects: Sequence[str],
) -> Select[Any]:
    """Return the query of one page of a group.

    Each state and each of the given projects has its own query through its index, and the pages are
    merged. Of these queries, only the one of queued jobs sorts. All states together need no query
    for each state.
    """
    by_state = [[jobs.c.state == state] for state in dict.fromkeys(states)]
    if len(states) == len(JobState):
        by_state = [[]]
    by_project = [[jobs.c.project == project] for project in projects] or [[]]
    some = [
        [*conditions, *page.conditions, *of_state, *of_project]
        for of_state in by_state
        for of_project in by_project
    ]
    if len(some) == 1:
        return _page(some[0], page)
    # Only ids are merged: SQLAlchemy needs milliseconds for two dozen queries of all columns.
    ids = [_ids(each, page).subquery().select() for each in some]
    union = union_all(*ids).subquery()
    order = (union.c.priority.desc(), union.c.id) if page.is_queue else (union.c.id.desc(),)
    first = select(union.c.id).order_by(*order).limit(page.limit)
    return _page([jobs.c.id.in_(first)], page)


def _ids(conditions: Sequence[ColumnElement[bool]], page: _Page) -> Select[Any]:
    query = select(jobs.c.id, jobs.c.priority) if page.is_queue else select(jobs.c.id)
    return query.where(*conditions).order_by(*page.order).limit(page.limit)


def _page(conditions: list[ColumnElement[bool]], page: _Page) -> Select[Any]:
    query = select(*ListedJob.columns()[:-1], literal_column(str(page.rank), Integer).label("rank"))
    return query.where(*conditions).order_by(*page.order).limit(page.limit)
