"""What is per person: the user counts, and for the built-in user the token."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fastapi import FastAPI
from sqlalchemy import select, update

from server.api.auth.permissions import ALL, WITHOUT_SCOPES
from server.core.context import Context
from server.core.database.metric_and_log_tables import shells
from server.core.database.tables import jobs
from server.core.errors import ConflictError, ForbiddenError, InvalidRequestError
from server.core.people.user_tables import submitter
from server.core.subject import ADMIN_USER_ID, SERVER, Actor
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.jobs.fork import fork
from server.jobs.jobs.resume import resume
from server.jobs.jobs.service import stop
from server.jobs.packs import store
from server.jobs.packs.store import PackUpload
from server.jobs.shells import service
from tests.actors import ADMIN
from tests.server.api.accounts.people import API, ORIGIN, Member, joined
from tests.server.api.in_process import TestClient
from tests.server.harness import BRINGS_CODE, Harness, Launched
from tests.server.submit import submit
from trainyard.protocol.rest.checkpoints import ForkRequest
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.shell_sessions.views import ShellRequest
from trainyard.spec.job import parse_job_spec

LS = ShellRequest(argv=("ls",))
ADA = Actor(
    "ada", "t1", user_id="u-ada", user_name="ada", permissions=WITHOUT_SCOPES, scope=SYSTEM_SCOPE
)
"""A user by a token."""
ADA_BY_PASSWORD = replace(ADA, token_id=None, session_id="s1")
ROOT = Actor("root", "t2", user_id="u-root", user_name="root", permissions=ALL, scope=SYSTEM_SCOPE)
"""A user with the role admin."""
OLD, OTHER_OLD = (
    Actor(
        name,
        name,
        user_id=ADMIN_USER_ID,
        user_name="admin",
        permissions=WITHOUT_SCOPES,
        scope=SYSTEM_SCOPE,
    )
    for name in ("t3", "t4")
)
"""Tokens of the built-in user."""


def owned(context: Context, job_id: str, actor: Actor) -> None:
    """Make a job one of an actor."""
    with context.database.write() as connection:
        its = update(jobs).where(jobs.c.id == job_id)
        connection.execute(its.values(owner_id=actor.owner_id, token_id=actor.token_id))


@BRINGS_CODE
@pytest.mark.parametrize(
    ("owner", "allowed", "refused"),
    [
        (ADA, (ADA, ADA_BY_PASSWORD, replace(ADA, token_id="t9"), ADMIN), (ROOT, OLD)),
        (ADA_BY_PASSWORD, (ADA, ADMIN), (ROOT, OLD)),
        (OLD, (OLD, ADMIN), (OTHER_OLD, ADA, ROOT, replace(ADA, token_id="t3"))),
    ],
)
def test_only_the_owner_and_the_admin_token_run_commands(
    context: Context,
    launched: Launched,
    owner: Actor,
    allowed: tuple[Actor, ...],
    refused: tuple[Actor, ...],
) -> None:
    job_id, supervisor = launched
    supervisor.train()
    owned(context, job_id, owner)
    for actor in allowed:
        opened = service.open_shell(context, job_id, LS, actor=actor)
        with context.database.write() as connection:
            its = update(shells).where(shells.c.id == opened.id)
            connection.execute(its.values(ended_at=context.now()))
    for actor in refused:
        with pytest.raises(ForbiddenError, match="a command sees the secrets of its job"):
            service.open_shell(context, job_id, LS, actor=actor)


@BRINGS_CODE
def test_the_output_of_a_command_is_of_its_user(context: Context, launched: Launched) -> None:
    job_id, supervisor = launched
    supervisor.train()
    owned(context, job_id, ADA)
    opened = service.open_shell(context, job_id, LS, actor=ADA)
    for actor in (ADA, ADA_BY_PASSWORD):
        service.read_output(context, job_id, opened.id, start=0, actor=actor)
    for actor in (ADMIN, ROOT, OLD):
        with pytest.raises(ForbiddenError, match="its output is private"):
            service.read_output(context, job_id, opened.id, start=0, actor=actor)


@BRINGS_CODE
@pytest.mark.parametrize("end", ["logout", "password", "disabled", "token"])
def test_a_command_ends_with_what_opened_it(
    app: FastAPI, admin: TestClient, context: Context, launched: Launched, end: str
) -> None:
    job_id, supervisor = launched
    supervisor.train()
    ada = joined(app, admin, "ada")
    other = joined(app, admin, "bob")
    owned_by(context, job_id, ada)
    header = ada.token() if end == "token" else ORIGIN
    path = f"{API}/jobs/{job_id}/shells"
    opened = ada.browser.post(path, json={"argv": ["ls"]}, headers=header)
    assert opened.status_code == 201, opened.text
    other.browser.delete(f"{API}/auth/session", headers=ORIGIN)
    assert not is_closed(context)
    match end:
        case "logout":
            ada.browser.delete(f"{API}/auth/session", headers=ORIGIN)
        case "password":
            code = admin.post(f"{API}/users/{ada.id}/invitation").json()["code"]
            body = {"code": code, "password": "another password"}
            assert TestClient(app).post(f"{API}/auth/invitation", json=body).status_code == 201
        case "disabled":
            admin.patch(f"{API}/users/{ada.id}", json={"state": "disabled"})
        case _:
            (token,) = ada.browser.get(f"{API}/tokens").json()["items"]
            ada.browser.delete(f"{API}/tokens/{token['id']}", headers=ORIGIN)
    assert is_closed(context)


def is_closed(context: Context) -> bool:
    with context.database.read() as connection:
        return bool(connection.scalar(select(shells.c.closed)))


def test_a_resume_keeps_the_owner_and_the_key_is_of_the_user(
    context: Context, harness: Harness
) -> None:
    harness.add_node()
    spec = parse_job_spec({"name": "tiny"})
    job = submit(context, spec, actor=ADA, idempotency_key="k")
    assert (job.owner_id, job.created_by) == ("u-ada", "ada")
    assert submit(context, spec, actor=ADA_BY_PASSWORD, idempotency_key="k").id == job.id
    by_old = submit(context, spec, actor=OLD, idempotency_key="k")
    assert by_old.id != job.id
    assert submit(context, spec, actor=OTHER_OLD, idempotency_key="k").id not in {job.id, by_old.id}
    with context.database.write() as connection:
        connection.execute(update(jobs).where(jobs.c.id == job.id).values(state="stopped"))
    resume(context, job.id, ResumeRequest(), actor=ROOT)
    with context.database.read() as connection:
        query = select(jobs.c.owner_id).where(jobs.c.id == job.id)
        assert connection.scalar(query) == "u-ada"
        persons = connection.scalars(select(submitter)).all()
        assert sorted(persons) == ["t3", "t4", "u-ada"]


def test_packs_count_per_user(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_UPLOADS", 1)
    PackUpload(context, actor=ADA)
    with pytest.raises(ConflictError, match="unfinished uploads"):
        PackUpload(context, actor=ADA_BY_PASSWORD)
    for actor in (OLD, OTHER_OLD, ROOT):
        PackUpload(context, actor=actor)
    with pytest.raises(ConflictError, match="unfinished uploads"):
        PackUpload(context, actor=OLD)


@BRINGS_CODE
def test_a_fork_belongs_to_its_maker_and_leaves_secrets_of_others_out(
    context: Context, harness: Harness
) -> None:
    harness.add_node(slots=8)
    job_id, (supervisor,) = harness.running(env={"HF_TOKEN": "secret"})
    supervisor.train(40)
    checkpoint = harness.commit_checkpoint(job_id, 40)
    stop(context, job_id, actor=SERVER, reason="")
    supervisor.end("stopped")
    owned(context, job_id, ADA)
    for actor in (ROOT, OLD):
        with pytest.raises(InvalidRequestError) as refusal:
            fork(context, checkpoint, ForkRequest(), actor=actor)
        assert [each.pointer for each in refusal.value.problems] == ["/changes/env/HF_TOKEN"]
    _, own = fork(context, checkpoint, ForkRequest(), actor=ADA_BY_PASSWORD)
    without = ForkRequest(changes={"env": {"HF_TOKEN": None}})
    _, theirs = fork(context, checkpoint, without, actor=ROOT)
    assert [harness.job(each).owner_id for each in (own, theirs)] == ["u-ada", "u-root"]
    assert context.secrets.open(harness.job(own).env) == {"HF_TOKEN": "secret"}


def owned_by(context: Context, job_id: str, member: Member) -> None:
    """Make a job one of a user."""
    with context.database.write() as connection:
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(owner_id=member.id))
