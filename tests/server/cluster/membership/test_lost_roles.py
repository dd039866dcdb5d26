"""Changes of people who lose their role meanwhile: nothing is stored, and nothing deadlocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import insert, select

from server.api.accounts.service import change_user
from server.api.auth.endings import write_as
from server.api.auth.principals import note_uses
from server.api.http.group_commit import serve_apart
from server.cluster.membership.limit_users import limit_users
from server.cluster.membership.service import (
    add_service_account,
    remove_member,
    set_everyone,
    set_group,
    set_member,
)
from server.cluster.nodes.changes import set_drain, set_labels
from server.cluster.projects.service import change_project, create_project, delete_project
from server.core.context import Context
from server.core.database.rows import Job
from server.core.database.scheduler_tables import projects
from server.core.database.tables import jobs
from server.core.errors import RefusalError
from server.core.people.identity_tables import user_groups
from server.core.subject import Actor
from server.jobs.checkpoints.deletion import delete as delete_checkpoint
from server.jobs.checkpoints.service import set_pin, verify
from server.jobs.jobs.fork import fork
from server.jobs.jobs.resume import resume
from server.jobs.jobs.service import add_request, cancel, delete, set_priority, stop
from server.jobs.jobs.submission import SubmittedSpec, submit_all
from server.jobs.operations.cancel import cancel as cancel_operation
from server.jobs.owners.service import transfer
from server.telemetry.imports.store import start_import
from tests.actors import ADMIN, authenticate_token
from tests.server.harness import Harness
from tests.server.members import OURS, THEIRS, add_projects, add_user
from tests.server.submit import submit
from trainyard.protocol.past_runs.views import ImportedRun, ImportRequest
from trainyard.protocol.rest.checkpoints import ForkRequest
from trainyard.protocol.rest.projects import ProjectRequest, ProjectRole, ProjectSettings
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.states import AttemptOutcome
from trainyard.protocol.user_accounts.members import (
    MemberRequest,
    ServiceAccountRequest,
    UserLimits,
)
from trainyard.protocol.user_accounts.views import ClusterRole, UserChange, UserKind
from trainyard.run.records import Request
from trainyard.spec.job import JobSpec, parse_job_spec

PATIENCE = 60
SPEC: JobSpec = parse_job_spec({"name": "late", "project": OURS})
IMPORT = ImportRequest(
    run=ImportedRun(tool="wandb", run_id="x", digest=f"sha256:{'a' * 64}", points=0),
    name="late",
    project=OURS,
    state="succeeded",
    start_time=1.7e9,
    seconds=1.0,
    last_step=1,
)


def actor_of(context: Context, name: str, **roles: ProjectRole | str) -> Actor:
    return authenticate_token(context, add_user(context, name, roles)).actor


@pytest.fixture
def orders(context: Context, harness: Harness) -> dict[str, Callable[[Actor], object]]:
    """An order of each kind; none has been given yet."""
    add_projects(context)
    harness.add_node("node-1", slots=2)
    ended, (supervisor,) = harness.running(project=OURS, step=8)
    kept, gone = (harness.commit_checkpoint(ended, step) for step in (4, 8))
    stop(context, ended, actor=ADMIN, reason="")
    supervisor.end(AttemptOutcome.STOPPED)
    operation = verify(context, kept, actor=ADMIN)
    old = harness.submit(project=OURS)
    cancel(context, old, actor=ADMIN, reason="")
    running, _ = harness.running(project=OURS)
    queued = harness.submit(project=OURS, resources={"world_size": 4})
    save = Request(kind="save")
    return {
        "submit": lambda actor: submit(context, SPEC, actor=actor),
        "fork": lambda actor: fork(context, kept, ForkRequest(name="late"), actor=actor),
        "resume": lambda actor: resume(context, ended, ResumeRequest(), actor=actor),
        "stop": lambda actor: stop(context, running, actor=actor, reason=""),
        "cancel": lambda actor: cancel(context, queued, actor=actor, reason=""),
        "priority": lambda actor: set_priority(context, queued, 5, actor=actor),
        "delete": lambda actor: delete(context, old, actor=actor, checkpoints="keep"),
        "request": lambda actor: add_request(context, running, save, actor=actor),
        "pin": lambda actor: set_pin(context, kept, pinned=True, actor=actor),
        "delete a checkpoint": lambda actor: delete_checkpoint(context, gone, actor=actor),
        "cancel an operation": lambda actor: cancel_operation(context, operation, actor=actor),
        "import": lambda actor: start_import(context, IMPORT, actor=actor),
    }


def test_no_order_of_a_removed_member_is_stored(
    context: Context, harness: Harness, orders: dict[str, Callable[[Actor], object]]
) -> None:
    """The request was authenticated before the removal."""
    eve = actor_of(context, "eve", ours="maintainer")
    remove_member(context, OURS, "eve", actor=ADMIN)
    before, passed = harness.dump(), []
    for name, order in orders.items():
        with suppress(RefusalError):
            order(eve)
            passed.append(name)
    assert passed == []
    assert harness.dump() == before


def test_no_change_of_a_former_operator_is_stored(context: Context, harness: Harness) -> None:
    harness.add_node("node-1")
    add_projects(context)
    token = add_user(context, "eve", cluster=ClusterRole.OPERATOR)
    eve = authenticate_token(context, token).actor
    assert eve.user_id is not None
    change_user(context, eve.user_id, UserChange(role=ClusterRole.USER), actor=ADMIN)
    before, passed = harness.dump(), []
    changes: list[Callable[[], object]] = [
        partial(create_project, context, ProjectRequest(name="late"), actor=eve),
        partial(change_project, context, OURS, ProjectSettings(weight=9.0), actor=eve),
        partial(delete_project, context, THEIRS, actor=eve),
        partial(set_drain, context, "node-1", "finish", actor=eve),
        partial(set_labels, context, "node-1", {"zone": "a"}, actor=eve),
    ]
    for change in changes:
        with suppress(RefusalError):
            change()
            passed.append(change)
    assert passed == []
    assert harness.dump() == before


def test_a_lost_role_fails_only_the_own_jobs_of_a_group(context: Context) -> None:
    """Requests of several people share a transaction."""
    add_projects(context)
    ada, eve = (actor_of(context, name, ours="member") for name in ("ada", "eve"))
    remove_member(context, OURS, "eve", actor=ADMIN)
    submissions = [SubmittedSpec(SPEC, actor) for actor in (ada, eve, ada, ADMIN, eve, ada)]
    found = serve_apart(partial(submit_all, context), submissions)
    assert [isinstance(each, Job) for each in found] == [True, False, True, True, False, True]
    assert all(isinstance(found[place], RefusalError) for place in (1, 4))


def test_a_removal_waits_for_a_change_in_progress(context: Context) -> None:
    add_projects(context)
    eve = actor_of(context, "eve", ours="member")
    removal = threading.Thread(
        target=remove_member, args=(context, OURS, "eve"), kwargs={"actor": ADMIN}
    )
    with write_as(context, eve):
        removal.start()
        removal.join(0.5)
        assert removal.is_alive()
    removal.join(PATIENCE)
    with pytest.raises(RefusalError):
        submit(context, SPEC, actor=eve)


@pytest.mark.parametrize("what", ["everyone", "member", "group", "account", "deletion", "transfer"])
def test_users_are_locked_before_projects_and_jobs(context: Context, what: str) -> None:
    """A submission holds its user, and then locks its project."""
    add_projects(context)
    ada = actor_of(context, "ada", ours="maintainer")
    add_user(context, "bob", {OURS: "member"})
    job_id = submit(context, SPEC, actor=ada).id
    changes: dict[str, Callable[[], object]] = {
        "everyone": lambda: set_everyone(context, OURS, role=ProjectRole.VIEWER, actor=ada),
        "member": lambda: set_member(context, OURS, "bob", request=LIMITED, actor=ada),
        "group": lambda: set_group(context, OURS, "g", role=ProjectRole.VIEWER, actor=ada),
        "account": lambda: add_service_account(context, OURS, request=ACCOUNT, actor=ada),
        "deletion": lambda: delete_project(
            context, OURS, actor=replace(ADMIN, user_id=ada.user_id)
        ),
        "transfer": lambda: transfer(context, job_id, "bob", actor=ada),
    }

    def run() -> None:
        with suppress(RefusalError):  # the project has a job
            changes[what]()

    thread = threading.Thread(target=run)
    with write_as(context, ada) as connection:
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        for table, its in ((projects, projects.c.name == OURS), (jobs, jobs.c.id == job_id)):
            query = select(table.c.project if table is jobs else table.c.name).where(its)
            connection.execute(query.with_for_update(nowait=True)).one()  # nothing else holds it
    thread.join(PATIENCE)


def test_changes_of_roles_projects_and_jobs_do_not_deadlock(
    context: Context, harness: Harness
) -> None:
    add_projects(context)
    admin = authenticate_token(context, add_user(context, "root", cluster=ClusterRole.ADMIN)).actor
    people = [actor_of(context, name, ours="maintainer") for name in ("ada", "bob", "eve")]
    ada, bob, eve = people
    given = set_service(context, "nightly")
    job_id = submit(context, SPEC, actor=ada).id
    add_groups(context, "g", people)
    token_ids = [each.token_id or "" for each in (*people, admin)]
    count = iter(range(1000))

    def limited(slots: int) -> MemberRequest:
        return MemberRequest(role=ProjectRole.MAINTAINER, max_slots=slots or None)

    def lives() -> None:
        name = f"short-{next(count)}"
        create_project(context, ProjectRequest(name=name), actor=admin)
        add_service_account(context, name, request=ACCOUNT, actor=admin)
        delete_project(context, name, actor=admin)

    orders: list[Callable[[], object]] = [
        lambda: submit_all(context, [SubmittedSpec(SPEC, each) for each in people]),
        lambda: submit_all(context, [SubmittedSpec(SPEC, each) for each in (eve, given, ada)]),
        lambda: set_priority(context, job_id, 1 + next(count) % 9, actor=bob),
        lambda: set_everyone(context, OURS, role=EVERYONE[next(count) % 2], actor=admin),
        lambda: set_group(context, OURS, "g", role=EVERYONE[next(count) % 2], actor=admin),
        lambda: set_member(context, OURS, "bob", request=limited(next(count) % 2), actor=ada),
        lambda: limit_users(context, OURS, UserLimits(max_running=next(count)), actor=ada),
        lambda: change_project(
            context, OURS, ProjectSettings(weight=1.0 + next(count)), actor=admin
        ),
        lambda: transfer(context, job_id, ("ada", "bob")[next(count) % 2], actor=eve),
        lambda: note_uses(context, token_ids),
        lives,
    ]
    begin = threading.Barrier(len(orders))

    def repeat(order: Callable[[], object]) -> None:
        begin.wait(PATIENCE)
        for _ in range(8):
            with suppress(RefusalError):  # a role has changed since the request began
                order()

    with ThreadPoolExecutor(len(orders)) as pool:
        for future in [pool.submit(repeat, each) for each in orders]:
            future.result(PATIENCE)


LIMITED = MemberRequest(role=ProjectRole.MEMBER, max_running=1)
ACCOUNT = ServiceAccountRequest(name="robot", role=ProjectRole.MEMBER)
EVERYONE = (None, ProjectRole.VIEWER)


def add_groups(context: Context, group: str, people: Sequence[Actor]) -> None:
    """Put people into a group of the issuer."""
    until = context.now() + timedelta(hours=1)
    rows = [{"user_id": each.user_id, "group_name": group, "expires_at": until} for each in people]
    with context.database.write() as connection:
        connection.execute(insert(user_groups), rows)


def set_service(context: Context, name: str) -> Actor:
    """Return the actor of a service account of the project."""
    token = add_user(context, name, {OURS: ProjectRole.MEMBER}, kind=UserKind.SERVICE, project=OURS)
    return authenticate_token(context, token).actor
