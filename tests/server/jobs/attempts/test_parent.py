"""The parent checkpoint of the next attempt: the same for placement and for previews."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from server.core.context import Context
from server.core.database.tables import checkpoints, jobs
from server.core.errors import NotFoundError
from server.jobs.attempts.parent import ParentCheckpoint, parent_checkpoint
from tests.server.harness import Harness


@pytest.fixture
def job_id(harness: Harness) -> str:
    """A running job that has saved at steps 4 and 8."""
    harness.add_node()
    job_id, _ = harness.running(step=9)
    for step in (4, 8):
        harness.commit_checkpoint(job_id, step)
    return job_id


def find(
    context: Context, job_id: str, *, named: str | None = None, before_step: int | None = None
) -> ParentCheckpoint:
    with context.database.read() as connection:
        return parent_checkpoint(connection, job_id, named=named, before_step=before_step)


def saved(job_id: str, step: int, *, usable: bool = True, branch: bool = False) -> ParentCheckpoint:
    return ParentCheckpoint(
        f"{job_id}.a1.step-{step}", step, own=True, usable=usable, branch=branch
    )


def change(context: Context, job_id: str, step: int, **values: object) -> None:
    with context.database.write() as connection:
        one = checkpoints.c.id == f"{job_id}.a1.step-{step}"
        connection.execute(update(checkpoints).where(one).values(**values))


def test_the_newest_is_the_parent(context: Context, job_id: str) -> None:
    assert find(context, job_id) == saved(job_id, 8)
    assert find(context, job_id, before_step=9) == saved(job_id, 8)
    assert find(context, job_id, before_step=8) == saved(job_id, 4)
    assert find(context, job_id, before_step=4) == ParentCheckpoint()


def test_a_named_one_is_the_parent_whatever_is_newer(context: Context, job_id: str) -> None:
    older, newer = saved(job_id, 4, branch=True), saved(job_id, 8)
    assert find(context, job_id, named=older.id) == older
    assert find(context, job_id, named=newer.id) == newer
    with pytest.raises(NotFoundError, match=r"no checkpoint 'other\.a1\.step-4'"):
        find(context, job_id, named="other.a1.step-4")


def test_an_unusable_one_is_the_parent_only_by_its_name(context: Context, job_id: str) -> None:
    change(context, job_id, 8, verified=False)
    assert find(context, job_id) == saved(job_id, 4)
    assert find(context, job_id, named=saved(job_id, 8).id) == saved(
        job_id, 8, usable=False, branch=True
    )
    change(context, job_id, 4, deleting_since=context.now())
    assert find(context, job_id) == ParentCheckpoint()


def test_a_fork_starts_where_it_was_forked_until_it_has_saved(
    context: Context, harness: Harness, job_id: str
) -> None:
    fork = harness.submit(name="tuned")
    source = saved(job_id, 8).id
    with context.database.write() as connection:
        origin = {"forked_from": source, "fork_step": 3}
        connection.execute(update(jobs).where(jobs.c.id == fork).values(**origin))
    assert find(context, fork) == ParentCheckpoint(source, 3)
    assert find(context, fork, before_step=100) == ParentCheckpoint()
    with pytest.raises(NotFoundError):
        find(context, fork, named=source)
    change(context, job_id, 8, verified=False)
    assert find(context, fork) == ParentCheckpoint(source, 3, usable=False)
    assert harness.place() == 1
    harness.commit_checkpoint(fork, 5)
    assert find(context, fork) == saved(fork, 5)
