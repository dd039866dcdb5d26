"""The steps of a job's lineage, and the checkpoint that a retry continues from."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import select, update

from server.core.context import Context
from server.core.database.tables import attempts, checkpoints
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.lineage import (
    BEFORE_ALL,
    NEVER,
    AttemptKey,
    Segment,
    attempts_of,
    branches_of,
    lineage_of,
    own_steps,
)
from server.jobs.attempts.parent import parent_checkpoint
from server.jobs.checkpoints.queries import list_checkpoints
from server.telemetry.metrics import csv, series
from server.telemetry.metrics.charts import chart
from server.telemetry.metrics.csv import csv_rows
from server.telemetry.metrics.points import Points
from server.telemetry.metrics.store import read_tails, store_metrics, store_points
from tests.server.harness import Harness
from tests.server.records import Parent, add_attempt, add_attempts, add_job
from trainyard.run.checkpoints.checkpoint_names import checkpoint_id
from trainyard.run.records import MetricRecord


def keys(*parents: Parent | None) -> dict[int, AttemptKey]:
    return {
        number: AttemptKey(
            f"id-{number}",
            number,
            checkpoint_id("job", *parent) if parent else None,
            parent[1] if parent else 0,
        )
        for number, parent in enumerate(parents, start=1)
    }


def test_two_lineages_part_after_the_last_step_that_they_share() -> None:
    known = keys(None, (1, 60), (2, 80), (1, 40), (2, 70), None)
    courses = {number: lineage_of(known, number) for number in known}
    for one, other, parted in (
        (2, 1, 60),
        (3, 2, 80),
        (3, 1, 60),
        (4, 3, 40),
        (5, 3, 70),
        (5, 4, 40),
        (6, 3, BEFORE_ALL),
    ):
        assert courses[one].parted_from(courses[other]) == parted
        assert courses[other].parted_from(courses[one]) == parted


def test_the_course_takes_of_each_attempt_what_the_next_one_came_from() -> None:
    found = lineage_of(keys(None, (1, 60), (2, 80)))
    assert found.segments == (
        Segment("id-1", 1, -1, 60),
        Segment("id-2", 2, 60, 80),
        Segment("id-3", 3, 80, NEVER),
    )
    assert found.holds(number=1, step=60)
    assert not found.holds(number=1, step=61)
    assert found.holds(number=2, step=60)  # saved again before its first step
    assert not found.holds(number=3, step=60)
    assert found.holds(number=1, step=0)
    assert not found.holds(number=1, step=-1)
    assert not found.holds(number=2, step=59)
    assert not found.holds(number=2, step=81)
    assert [found.reaches(number) for number in range(5)] == [False, True, True, True, False]


def test_an_attempt_that_comes_from_itself_or_a_later_one_has_no_earlier_steps() -> None:
    found = lineage_of(keys((1, 10), (3, 20), None), 2)
    assert found.segments == (Segment("id-2", 2, 20, NEVER),)
    assert lineage_of(keys((1, 10))).segments == (Segment("id-1", 1, 10, NEVER),)
    assert lineage_of(keys(None), 2).segments == ()


def test_a_part_of_a_segment_holds_the_first_and_the_last_step() -> None:
    whole = Segment("id-1", 1, 10, 20)
    assert whole.between(12, 18) == Segment("id-1", 1, 11, 18)
    assert whole.between(11, 20) == whole.between(0, 30) == whole


def test_a_checkpoint_of_another_job_is_no_parent_within_the_job(context: Context) -> None:
    other, job_id = add_job(context), add_job(context)
    add_attempt(context, other)
    add_attempts(context, job_id, [None, (1, 20)])
    foreign = checkpoint_id(other, 1, 30)
    with context.database.write() as connection:
        connection.execute(
            update(attempts)
            .where(attempts.c.job_id == job_id, attempts.c.number == 1)
            .values(parent_checkpoint_id=foreign, start_step=30)
        )
        found = attempts_of(connection, job_id)
        rows = connection.execute(select(attempts).where(attempts.c.job_id == job_id)).all()
    ids = {row.number: row.id for row in rows}
    assert found == {
        1: AttemptKey(ids[1], 1, None, 30),
        2: AttemptKey(ids[2], 2, checkpoint_id(job_id, 1, 20), 20),
    }
    assert own_steps(found[1]) == Segment(ids[1], 1, -1, NEVER)
    assert own_steps(found[2]) == Segment(ids[2], 2, 20, NEVER)


def test_a_branch_leaves_out_what_it_did_not_come_from() -> None:
    made = keys(None, (1, 60), (1, 30))
    found = lineage_of(made)
    assert [segment.number for segment in found.segments] == [1, 3]
    assert not found.reaches(2)
    assert branches_of(made, found) == [
        Segment("id-2", 2, 60, NEVER),
        Segment("id-1", 1, 30, NEVER),
    ]
    assert lineage_of(made, 2).segments[-1] == Segment("id-2", 2, 60, NEVER)


def test_a_job_without_attempts_has_an_empty_course() -> None:
    assert lineage_of({}).segments == ()


def test_the_newest_checkpoint_is_never_one_of_another_branch(
    harness: Harness, context: Context
) -> None:
    job_id = add_job(context)
    parents: list[Parent | None] = [None, (1, 20), (1, 10), None]
    saved = {1: [0, 10, 20, 30], 2: [20, 90], 3: [], 4: []}
    expected = {
        1: f"{job_id}.a1.step-30",
        2: f"{job_id}.a2.step-90",
        3: f"{job_id}.a1.step-10",
        4: None,
    }
    for number, parent in enumerate(parents, start=1):
        add_attempt(context, job_id, number, parent=parent)
        for step in saved[number]:
            harness.commit_checkpoint(job_id, step)
        with context.database.write() as connection:
            assert parent_checkpoint(connection, job_id).id == expected[number]
            if number == 3:  # without its parent, the next older one of the parent's attempt
                connection.execute(checkpoints.delete().where(checkpoints.c.id == expected[3]))
                assert parent_checkpoint(connection, job_id).id == f"{job_id}.a1.step-0"


def test_the_catalog_marks_what_lies_on_the_lineage(harness: Harness, context: Context) -> None:
    job_id = add_job(context)
    for number, parent in enumerate([None, (1, 10)], start=1):
        add_attempt(context, job_id, number, parent=parent)
        for step in (10, 20):
            harness.commit_checkpoint(job_id, step)
    views = list_checkpoints(context, job_id, scope=SYSTEM_SCOPE)
    assert [(view.attempt, view.step, view.on_lineage) for view in views] == [
        (2, 20, True),
        (2, 10, True),
        (1, 20, False),
        (1, 10, True),
    ]
    pages = [
        list_checkpoints(context, job_id, after=after, limit=2, scope=SYSTEM_SCOPE)
        for after in (None, views[1].id)
    ]
    assert pages == [views[:2], views[2:]]


def test_csv_follows_the_lineage_over_chunks_and_tail(context: Context) -> None:
    job_id = add_job(context)
    ids = add_attempts(context, job_id, [None, (1, 2500)])
    for attempt_id, first, last in ((ids[0], 1, 2700), (ids[1], 2501, 2600)):
        lines = [
            MetricRecord(
                step=step,
                time=step + 0.25,
                values={"train/loss": 1 / step, "train/lr": 0.1},
                data_digest=f"{step:032x}",
            )
            for step in range(first, last + 1)
        ]
        for start in range(0, len(lines), 1100):
            with context.database.write() as connection:
                store_metrics(connection, {attempt_id: lines[start : start + 1100]})
    text = "".join(csv_rows(context, job_id, scope=SYSTEM_SCOPE))
    header, *rows = text.splitlines()
    assert header == "attempt,step,time,name,value"
    found: dict[str, list[tuple[int, int]]] = {}
    for row in rows:
        attempt, step, time, name, value = row.split(",")
        found.setdefault(name, []).append((int(attempt), int(step)))
        if name == "train/loss":
            assert (float(time), float(value)) == (int(step) + 0.25, 1 / int(step))
    course = [(1, step) for step in range(1, 2501)] + [(2, step) for step in range(2501, 2601)]
    assert found == {"data_digest": course, "train/loss": course, "train/lr": course}
    own = "".join(
        csv_rows(context, job_id, ["train/lr"], attempt=1, scope=SYSTEM_SCOPE)
    ).splitlines()
    assert len(own) == 1 + 2700


@pytest.mark.parametrize("module", [csv, series])
def test_points_that_are_compacted_while_they_are_read_come_once(
    context: Context, monkeypatch: pytest.MonkeyPatch, module: ModuleType
) -> None:
    job_id = add_job(context)
    attempt_id = add_attempt(context, job_id)

    def store(first: int, last: int) -> None:
        steps = range(first, last + 1)
        points = {"train/loss": Points.of(steps, steps, steps)}
        with context.database.write() as connection:
            store_points(connection, attempt_id, points)

    def read_and_compact(*args: Any, **kwargs: Any) -> dict[int, Points]:
        found = read_tails(*args, **kwargs)
        monkeypatch.setattr(module, "read_tails", read_tails)
        # In a transaction that sees concurrent commits, like those of PostgreSQL.
        if not context.database.is_sqlite:
            store(601, 2000)
        return found

    store(1, 600)
    monkeypatch.setattr(module, "read_tails", read_and_compact)
    if module is csv:
        rows = "".join(
            csv.csv_rows(context, job_id, ["train/loss"], scope=SYSTEM_SCOPE)
        ).splitlines()[1:]
        steps = [int(row.split(",")[1]) for row in rows]
    else:
        (curve,) = chart(
            context, job_id, ["train/loss"], max_points=10_000, scope=SYSTEM_SCOPE
        ).curves
        steps = curve.steps
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) == 600 if context.database.is_sqlite else len(steps) >= 600
