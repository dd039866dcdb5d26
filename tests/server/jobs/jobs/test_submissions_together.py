"""Submissions in one transaction: as many statements as one, each job stored once or not at all."""

from __future__ import annotations

from functools import partial

import pytest
from fastapi import Response
from sqlalchemy import func, select

from server.api.http.group_commit import serve_apart
from server.core.context import Context
from server.core.database.rows import Job
from server.core.database.tables import idempotency_keys, jobs
from server.core.errors import InvalidRequestError
from server.core.visibility.scope import SYSTEM_SCOPE, Scope
from server.jobs.jobs import endpoints
from server.jobs.jobs.queries import job_row
from server.jobs.jobs.submission import SubmittedSpec, submit_all
from tests.actors import ADA, BOB
from tests.server.harness import Harness
from tests.server.statements import statements
from trainyard.spec.job import JobSpec, parse_job_spec


def spec(name: str, **sections: object) -> JobSpec:
    return parse_job_spec({"name": name} | sections)


def names(context: Context) -> list[str]:
    with context.database.read() as connection:
        return [*connection.scalars(select(jobs.c.name).order_by(jobs.c.name))]


def test_many_submissions_take_as_many_statements_as_one(context: Context) -> None:
    counts = []
    for some in (["a"], ["b", "c", "d", "e"]):
        with statements(context) as seen:
            submit_all(context, [SubmittedSpec(spec(name), ADA) for name in some])
        counts.append(len([each for each in seen if not each.startswith("BEGIN")]))
    assert counts == [3, 3] if context.database.is_sqlite else counts == [4, 4], counts


def test_each_job_is_that_of_its_submission(context: Context, harness: Harness) -> None:
    wanted = [spec(f"job-{size}", resources={"world_size": size}) for size in (1, 2, 4)]
    stored = submit_all(context, [SubmittedSpec(each, BOB) for each in wanted])
    for job, given in zip(stored, wanted, strict=True):
        assert isinstance(job, Job)
        assert (job.spec, job.created_by) == (given, "bob")
        assert harness.kinds(job.id) == ["submitted"]
        with context.database.read() as connection:
            assert job == job_row(connection, job.id, scope=SYSTEM_SCOPE)


def test_a_spec_that_cannot_run_keeps_no_other_job_from_being_stored(context: Context) -> None:
    wrong = spec("wrong", resources={"world_size": 3}, parallelism={"tp": 2})
    group = [SubmittedSpec(each, ADA) for each in (spec("a"), wrong, spec("b"))]
    first, refused, last = submit_all(context, group)
    assert isinstance(refused, InvalidRequestError)
    assert [job.name for job in (first, last) if isinstance(job, Job)] == ["a", "b"]
    assert names(context) == ["a", "b"]


def test_what_the_database_refuses_keeps_no_other_job_from_being_stored(
    context: Context,
) -> None:
    """A submission with an unknown project fails alone, and its key is free again."""
    group = [
        SubmittedSpec(spec("a"), ADA, "key-a"),
        SubmittedSpec(spec("lost", project="nowhere"), ADA, "key-lost"),
        SubmittedSpec(spec("b"), ADA),
        SubmittedSpec(spec("c"), BOB, "key-a"),
    ]
    stored = serve_apart(lambda some: submit_all(context, some), group)
    assert isinstance(stored[1], InvalidRequestError)
    assert names(context) == ["a", "b", "c"]
    with context.database.read() as connection:
        keys = connection.execute(select(idempotency_keys.c.actor, idempotency_keys.c.key)).all()
    assert sorted(map(tuple, keys)) == [(ADA.identity, "key-a"), (BOB.identity, "key-a")]


def test_a_repeat_in_a_group_returns_the_first_job(context: Context) -> None:
    (first,) = submit_all(context, [SubmittedSpec(spec("a"), ADA, "k")])
    assert isinstance(first, Job)
    group = [
        SubmittedSpec(spec("b"), ADA),
        SubmittedSpec(spec("a"), ADA, "k"),
        SubmittedSpec(spec("c"), ADA),
    ]
    before, again, after = submit_all(context, group)
    assert again == first
    assert [job.name for job in (before, after) if isinstance(job, Job)] == ["b", "c"]
    with context.database.read() as connection:
        assert connection.scalar(select(func.count()).select_from(jobs)) == 3


class Panic(BaseException):
    """As compiled code raises it."""


@pytest.mark.parametrize("error", [ValueError("no view"), Panic("no view")])
def test_a_job_whose_view_fails_is_stored_once(
    context: Context, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    created = endpoints._created

    def fails_once(context: Context, job: Job, *, scope: Scope) -> Response:
        if job.name == "b":
            raise error
        return created(context, job, scope=scope)

    monkeypatch.setattr(endpoints, "_created", fails_once)
    group = [SubmittedSpec(spec(name), ADA) for name in ("a", "b", "c")]
    answers = serve_apart(partial(endpoints._submitted, context), group)
    assert [isinstance(each, Response) for each in answers] == [True, False, True]
    assert isinstance(answers[1], Exception)
    assert names(context) == ["a", "b", "c"]
