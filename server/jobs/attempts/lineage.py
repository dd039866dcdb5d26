"""Lineage: the steps that led to an attempt; all other steps belong to branches."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from sqlalchemy import Connection, Table

from server.core.database.rows import TypedRow
from server.core.database.tables import attempts
from trainyard.run.checkpoints.checkpoint_names import split_checkpoint_id

BEFORE_ALL = -1
"""The step before step 0. A fresh start begins with step 0."""
NEVER = 2**31 - 1
"""A step after all others, and the largest value of PostgreSQL's INTEGER."""


@dataclass(frozen=True, slots=True)
class AttemptKey(TypedRow):
    """The columns of an attempt that define its lineage."""

    table: ClassVar[Table] = attempts
    id: str
    number: int
    parent_checkpoint_id: str | None
    """Parent checkpoint of the attempt; None if the checkpoint belongs to another job."""
    start_step: int


@dataclass(frozen=True)
class Segment:
    """The steps of one attempt after `after`, up to and including `until`."""

    attempt_id: str
    number: int
    after: int
    until: int = NEVER

    def between(self, first: int, last: int) -> Segment:
        """Return the part of the segment that lies within `first..last`."""
        return replace(self, after=max(self.after, first - 1), until=min(self.until, last))


@dataclass(frozen=True)
class Lineage:
    """The steps that led to one attempt."""

    segments: tuple[Segment, ...]
    """Segments, oldest first; each segment starts where the previous segment ends."""

    def holds(self, *, number: int, step: int) -> bool:
        """Return whether attempt `number` at `step` belongs to this lineage.

        The step at which an attempt started belongs to its part of the lineage, because the attempt
        may have saved its start state again.
        """
        return any(
            segment.number == number and max(segment.after, 0) <= step <= segment.until
            for segment in self.segments
        )

    def parted_from(self, other: Lineage) -> int:
        """Return the last step that both lineages contain; `BEFORE_ALL` if they share no step."""
        until = {segment.number: segment.until for segment in self.segments}
        shared = (
            min(until[segment.number], segment.until)
            for segment in other.segments
            if segment.number in until
        )
        return max(shared, default=BEFORE_ALL)

    def reaches(self, number: int) -> bool:
        """Return whether any state of attempt `number` belongs to this lineage."""
        return any(segment.number == number for segment in self.segments)


def attempts_of(connection: Connection, job_id: str) -> dict[int, AttemptKey]:
    """Return the attempts of a job by number."""
    return attempts_of_jobs(connection, [job_id])[job_id]


def attempts_of_jobs(
    connection: Connection, job_ids: Collection[str]
) -> dict[str, dict[int, AttemptKey]]:
    """Return the attempts of jobs, by job id and number."""
    query = AttemptKey.select().add_columns(attempts.c.job_id)
    found: dict[str, dict[int, AttemptKey]] = {job_id: {} for job_id in job_ids}
    for *values, job_id in connection.execute(query.where(attempts.c.job_id.in_(job_ids))):
        key = AttemptKey(*values)
        parent = key.parent_checkpoint_id
        if parent is not None and split_checkpoint_id(parent)[0] != job_id:
            key = replace(key, parent_checkpoint_id=None)
        found[job_id][key.number] = key
    return found


def lineage_of(keys: Mapping[int, AttemptKey], number: int | None = None) -> Lineage:
    """Return the lineage that ends in attempt `number` (default: the newest).

    The steps of an earlier attempt belong to the lineage up to the checkpoint that the next attempt
    loaded. A job without attempts has an empty lineage.
    """
    current = keys.get(max(keys, default=0) if number is None else number)
    until = NEVER
    segments = []
    while current is not None:
        segments.append(Segment(current.id, current.number, _start(current), until))
        if current.parent_checkpoint_id is None:
            break
        _, parent, until = split_checkpoint_id(current.parent_checkpoint_id)
        current = keys.get(parent) if parent < current.number else None
    return Lineage(tuple(reversed(segments)))


def branches_of(keys: Mapping[int, AttemptKey], lineage: Lineage) -> list[Segment]:
    """Return the steps that do not belong to the lineage, newest attempt first."""
    kept = {segment.number: segment for segment in lineage.segments}
    left: list[Segment] = []
    for number in sorted(keys, reverse=True):
        after = kept[number].until if number in kept else _start(keys[number])
        if after < NEVER:
            left.append(Segment(keys[number].id, number, after))
    return left


def own_steps(key: AttemptKey) -> Segment:
    """Return all steps of one attempt."""
    return Segment(key.id, key.number, _start(key))


def _start(key: AttemptKey) -> int:
    return BEFORE_ALL if key.parent_checkpoint_id is None else key.start_step
