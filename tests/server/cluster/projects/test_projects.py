"""Projects of jobs: legal names, and where the name is stored."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from server.cluster.projects.queries import list_projects, read_project
from server.cluster.projects.service import (
    change_project,
    check_project,
    create_project,
    delete_project,
)
from server.core.context import Context
from server.core.database.tables import jobs
from server.core.errors import ConflictError, InvalidRequestError, NotFoundError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.jobs.fork import fork
from server.jobs.jobs.queries import job_view
from server.jobs.jobs.resume import resume
from server.jobs.jobs.service import cancel, delete, stop
from tests.actors import ADA
from tests.server.harness import Harness
from tests.server.submit import submit
from trainyard.protocol.rest.checkpoints import ForkRequest
from trainyard.protocol.rest.projects import ProjectRequest, ProjectSettings
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.spec.job import JobSpec, parse_job_spec


@pytest.fixture
def vision(context: Context) -> str:
    """A project of twice the weight of `default`."""
    return create_project(context, ProjectRequest(name="vision", weight=2.0), actor=ADA).name


def test_a_job_has_the_project_that_its_spec_names(
    harness: Harness, context: Context, vision: str
) -> None:
    named, other = harness.submit(project=vision), harness.submit()
    assert (
        job_view(context, named, scope=SYSTEM_SCOPE).project
        == job_view(context, named, scope=SYSTEM_SCOPE).spec.project
        == vision
    )
    assert "project" in job_view(context, named, scope=SYSTEM_SCOPE).set_fields
    assert job_view(context, other, scope=SYSTEM_SCOPE).project == "default"
    with pytest.raises(InvalidRequestError) as refused:
        harness.submit(project="visoin")
    (problem,) = refused.value.problems
    assert (problem.pointer, problem.detail) == (
        "/project",
        "'visoin' is no project; legal: default, vision",
    )


def test_neither_the_stored_spec_nor_that_of_a_claim_names_the_project(
    harness: Harness, context: Context, vision: str
) -> None:
    """A worker of an older version refuses an unknown field."""
    harness.add_node()
    job_id, (supervisor,) = harness.launched(project=vision)
    assert supervisor.reply.spec.project == "default"
    with context.database.read() as connection:
        stored = connection.scalars(select(jobs.c.spec).where(jobs.c.id == job_id)).one()
    assert vision not in stored.text
    assert supervisor.reply.spec.digest == harness.job(job_id).spec_digest


def test_a_digest_does_not_depend_on_the_project() -> None:
    assert JobSpec(project="vision").digest == JobSpec().digest


def test_a_repeated_submission_with_another_project_is_another_request(
    context: Context, vision: str
) -> None:
    spec = parse_job_spec({"project": vision})
    first = submit(context, spec, actor=ADA, idempotency_key="k").id
    assert submit(context, spec, actor=ADA, idempotency_key="k").id == first
    with pytest.raises(InvalidRequestError, match="Idempotency-Key"):
        submit(context, JobSpec(), actor=ADA, idempotency_key="k")


def test_a_resume_and_a_fork_keep_the_project(
    harness: Harness, context: Context, vision: str
) -> None:
    create_project(context, ProjectRequest(name="speech"), actor=ADA)
    harness.add_node()
    job_id, (supervisor,) = harness.running(project=vision, training={"steps": 100})
    saved = harness.commit_checkpoint(job_id, 40)
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    resume(context, job_id, ResumeRequest(), actor=ADA)
    assert harness.job(job_id).project == vision
    _, same = fork(context, saved, ForkRequest(), actor=ADA)
    _, other = fork(context, saved, ForkRequest(changes={"project": "speech"}), actor=ADA)
    assert (harness.job(same).project, harness.job(other).project) == (vision, "speech")
    with pytest.raises(InvalidRequestError) as refused:
        fork(context, saved, ForkRequest(changes={"project": "none"}), actor=ADA)
    assert refused.value.problems[0].pointer == "/changes/project"


def test_a_project_shows_what_it_holds_and_waits_for(
    harness: Harness, context: Context, vision: str
) -> None:
    harness.add_node(slots=4)
    assert [view.fair_share for view in list_projects(context, scope=SYSTEM_SCOPE)] == [0, 0]
    harness.running(project=vision, resources={"world_size": 3})
    harness.running()
    harness.submit(project=vision)
    default, shown = list_projects(context, scope=SYSTEM_SCOPE)
    assert (default.name, default.held_slots, default.waiting_jobs) == ("default", 1, 0)
    assert (shown.name, shown.held_slots, shown.waiting_jobs) == ("vision", 3, 1)
    assert (default.share, shown.share) == (0.25, 0.75)
    assert (default.fair_share, shown.fair_share) == (1 / 3, 2 / 3)
    assert read_project(context, vision, scope=SYSTEM_SCOPE) == shown


def test_a_change_keeps_what_it_does_not_name(context: Context, vision: str) -> None:
    quota = ProjectSettings(max_slots=4, slot_hours_per_month=10.0)
    assert change_project(context, vision, quota, actor=ADA).weight == 2
    shown = change_project(context, vision, ProjectSettings(max_slots=None), actor=ADA)
    assert (shown.max_slots, shown.slot_hours_per_month, shown.weight) == (None, 10, 2)
    with pytest.raises(NotFoundError, match="no project has the name 'none'"):
        change_project(context, "none", quota, actor=ADA)


def test_the_name_of_a_deleted_project_is_never_given_again(context: Context, vision: str) -> None:
    """Members of another project of this name would see operations and events of the first one."""
    delete_project(context, vision, actor=ADA)
    with pytest.raises(ConflictError, match="a project 'vision' was deleted"):
        create_project(context, ProjectRequest(name=vision), actor=ADA)
    with pytest.raises(NotFoundError):
        read_project(context, vision, scope=SYSTEM_SCOPE)


def test_the_error_for_an_unknown_project_names_twenty(context: Context) -> None:
    for number in range(21):
        create_project(context, ProjectRequest(name=f"p{number:02}"), actor=ADA)
    with (
        context.database.read() as connection,
        pytest.raises(InvalidRequestError, match=r"legal: default, p00, .*, p18 and more") as error,
    ):
        check_project(connection, "none", scope=SYSTEM_SCOPE)
    assert "p19" not in str(error.value)


def test_only_a_project_without_jobs_is_deleted(
    harness: Harness, context: Context, vision: str
) -> None:
    job_id = harness.submit(project=vision)
    cancel(context, job_id, actor=ADA, reason="")
    with pytest.raises(ConflictError, match="project 'vision' has jobs"):
        delete_project(context, vision, actor=ADA)
    delete(context, job_id, actor=ADA, checkpoints="keep")
    delete_project(context, vision, actor=ADA)
    with pytest.raises(NotFoundError):
        delete_project(context, vision, actor=ADA)
    with pytest.raises(ConflictError, match="'default' is the project of jobs that name none"):
        delete_project(context, "default", actor=ADA)
