"""Members of projects: who gives which role, and what a lost role ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select, update

from server.api.auth.permissions import held_by_user
from server.core.context import Context
from server.core.database.metric_and_log_tables import shells
from server.core.database.tables import events, jobs
from server.jobs.shells.service import open_shell
from tests.actors import authenticate_token
from tests.server.api.conftest import BASE_URL, admin, admin_token, anonymous, app  # noqa: F401
from tests.server.api.in_process import TestClient
from tests.server.harness import BRINGS_CODE, Harness
from tests.server.members import OURS, THEIRS, add_projects, add_user
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.shell_sessions.views import ShellRequest
from trainyard.protocol.user_accounts.views import ClusterRole

API = "/api/v1"
Client = Callable[[str], TestClient]


@pytest.fixture
def as_user(app: FastAPI, context: Context) -> Client:  # noqa: F811 - the fixture above
    """Make a client with a token."""
    add_projects(context)

    def client(token: str) -> TestClient:
        headers = {"authorization": f"Bearer {token}"}
        return TestClient(app, base_url=BASE_URL, headers=headers)

    return client


def members_of(client: TestClient, project: str = OURS) -> dict[str, str]:
    listed = client.get(f"{API}/projects/{project}/members")
    assert listed.status_code == 200, listed.text
    return {each["user"]: each["role"] for each in listed.json()["items"]}


def put(client: TestClient, user: str, role: str, project: str = OURS) -> Any:
    return client.put(f"{API}/projects/{project}/members/{user}", json={"role": role})


def test_a_maintainer_adds_changes_and_removes_members(as_user: Client, context: Context) -> None:
    ada = as_user(add_user(context, "ada", {OURS: "maintainer"}))
    bob = as_user(add_user(context, "bob"))
    assert bob.get(f"{API}/projects/{OURS}/members").status_code == 403
    made = put(ada, "bob", "viewer")
    assert (made.status_code, made.json()["role"]) == (200, "viewer")
    assert members_of(bob) == {"ada": "maintainer", "bob": "viewer"}
    assert put(ada, "bob", "member").json()["role"] == "member"
    assert put(ada, "bob", "member").json()["since"] == made.json()["since"]
    projects = bob.get(f"{API}/projects").json()["items"]
    assert [(each["name"], each["role"]) for each in projects] == [(OURS, "member")]
    assert ada.delete(f"{API}/projects/{OURS}/members/bob").status_code == 204
    assert ada.delete(f"{API}/projects/{OURS}/members/bob").status_code == 404
    assert bob.get(f"{API}/projects").status_code == 403
    with context.database.read() as connection:
        query = select(events.c.message, events.c.project).where(events.c.kind == "members_changed")
        told = connection.execute(query.order_by(events.c.id)).all()
    assert [each.message for each in told] == [
        f"bob has the role viewer in {OURS}, before none",
        f"bob has the role member in {OURS}, before viewer",
        f"bob lost member in {OURS}",
    ]
    assert {each.project for each in told} == {OURS}


@pytest.mark.parametrize("role", ["viewer", "member"])
def test_others_change_no_members(as_user: Client, context: Context, role: str) -> None:
    ada = as_user(add_user(context, "ada", {OURS: role, THEIRS: "maintainer"}))
    refused = put(ada, "ada", "maintainer")
    assert refused.status_code == 403
    assert refused.json()["detail"] == (
        f"this needs members:write (role maintainer) in project '{OURS}'"
    )
    assert members_of(ada) == {"ada": role}


def test_a_hidden_project_is_an_unknown_one(as_user: Client, context: Context) -> None:
    ada = as_user(add_user(context, "ada", {OURS: "maintainer"}))
    for project in (THEIRS, "unknown"):
        missing = f"no project has the name {project!r}"
        for reply in (
            ada.get(f"{API}/projects/{project}"),
            ada.get(f"{API}/projects/{project}/members"),
            put(ada, "ada", "maintainer", project),
            ada.put(f"{API}/projects/{project}/everyone", json={"role": "member"}),
            ada.post(f"{API}/projects/{project}/service-accounts", json={"name": "nightly"}),
        ):
            assert (reply.status_code, reply.json()["detail"]) == (404, missing)


def test_an_operator_sees_projects_but_no_jobs(
    as_user: Client, context: Context, harness: Harness
) -> None:
    job_id = harness.submit(project=OURS)
    eve = as_user(add_user(context, "eve", cluster=ClusterRole.OPERATOR))
    named = [each["name"] for each in eve.get(f"{API}/projects").json()["items"]]
    assert named == ["default", OURS, THEIRS]
    assert eve.get(f"{API}/jobs/{job_id}").status_code == 403
    changed = eve.patch(f"{API}/projects/{OURS}", json={"max_slots": 4})
    assert changed.json()["max_slots"] == 4
    assert put(eve, "eve", "maintainer").status_code == 403


def test_an_admin_is_a_maintainer_everywhere(
    as_user: Client, context: Context, harness: Harness
) -> None:
    job_id = harness.submit(project=OURS)
    root = as_user(add_user(context, "root", cluster=ClusterRole.ADMIN))
    assert root.get(f"{API}/jobs/{job_id}").status_code == 200
    assert put(root, "root", "viewer").status_code == 200
    assert root.get(f"{API}/projects/{OURS}").json()["role"] == "maintainer"


def test_everyone_gets_a_role(as_user: Client, context: Context, harness: Harness) -> None:
    job_id = harness.submit(project=OURS)
    ada = as_user(add_user(context, "ada", {OURS: "maintainer"}))
    bob = as_user(add_user(context, "bob"))
    assert bob.get(f"{API}/jobs/{job_id}").status_code == 403
    given = ada.put(f"{API}/projects/{OURS}/everyone", json={"role": "viewer"})
    assert given.json()["everyone"] == "viewer"
    assert bob.get(f"{API}/jobs/{job_id}").status_code == 200
    assert bob.post(f"{API}/jobs/{job_id}/stop").status_code == 403
    assert members_of(bob) == {"ada": "maintainer"}
    ada.put(f"{API}/projects/{OURS}/everyone", json={"role": None})
    assert bob.get(f"{API}/jobs/{job_id}").status_code == 403


@BRINGS_CODE
@pytest.mark.parametrize("way", ["member", "everyone"])
def test_a_lost_role_ends_commands(
    as_user: Client, context: Context, harness: Harness, way: str
) -> None:
    ada = as_user(add_user(context, "ada", {OURS: "maintainer"}))
    token = add_user(context, "bob")
    if way == "member":
        put(ada, "bob", "member")
    else:
        ada.put(f"{API}/projects/{OURS}/everyone", json={"role": "member"})
    bob = authenticate_token(context, token).actor
    harness.add_node()
    job_id = harness.submit(project=OURS)
    harness.place()
    (supervisor,) = harness.claim_all(job_id)
    supervisor.train()
    give_to(context, job_id, bob.user_id)
    shell = open_shell(context, job_id, ShellRequest(argv=("ls",)), actor=bob)
    if way == "member":
        assert put(ada, "bob", "member").status_code == 200
        assert not closed(context, shell.id), "a repeat ends nothing"
        put(ada, "bob", "viewer")
    else:
        ada.put(f"{API}/projects/{OURS}/everyone", json={"role": "viewer"})
    assert closed(context, shell.id)


@BRINGS_CODE
@pytest.mark.parametrize("everyone", [None, "viewer"])
def test_a_lost_role_ends_no_commands_in_other_projects(
    as_user: Client, context: Context, harness: Harness, everyone: str | None
) -> None:
    roles = {OURS: "member", THEIRS: "member"}
    ada = as_user(add_user(context, "ada", {OURS: "maintainer"}))
    bob = authenticate_token(context, add_user(context, "bob", roles)).actor
    harness.add_node(slots=4)
    opened = {}
    for project in (THEIRS, OURS, THEIRS):
        job_id, _ = harness.running(project=project)
        give_to(context, job_id, bob.user_id)
        opened[job_id] = open_shell(context, job_id, ShellRequest(argv=("ls",)), actor=bob).id
    ada.put(f"{API}/projects/{OURS}/everyone", json={"role": "member"})
    ada.put(f"{API}/projects/{OURS}/everyone", json={"role": everyone})
    assert [closed(context, each) for each in opened.values()] == [False] * 3
    ada.delete(f"{API}/projects/{OURS}/members/bob")
    assert [closed(context, each) for each in opened.values()] == [False, True, False]


@BRINGS_CODE
def test_a_lesser_role_in_the_cluster_ends_commands(
    as_user: Client,
    context: Context,
    harness: Harness,
    admin: TestClient,  # noqa: F811 - the fixture above
) -> None:
    as_user(token := add_user(context, "root", cluster=ClusterRole.ADMIN))
    root = authenticate_token(context, token).actor
    harness.add_node()
    job_id, _ = harness.running(project=OURS)
    give_to(context, job_id, root.user_id)
    shell = open_shell(context, job_id, ShellRequest(argv=("ls",)), actor=root)
    user = f"{API}/users/{root.user_id}"
    assert admin.patch(user, json={"email": "root@example.org"}).status_code == 200
    assert not closed(context, shell.id)
    assert admin.patch(user, json={"role": "user"}).status_code == 200
    assert closed(context, shell.id)


def give_to(context: Context, job_id: str, user_id: str | None) -> None:
    with context.database.write() as connection:
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(owner_id=user_id))


def closed(context: Context, shell_id: str) -> bool:
    with context.database.read() as connection:
        return bool(connection.scalar(select(shells.c.closed).where(shells.c.id == shell_id)))


@pytest.mark.parametrize(
    ("user", "role", "status"), [("admin", "viewer", 409), ("nobody", "viewer", 404)]
)
def test_some_users_are_no_members(
    as_user: Client, context: Context, user: str, role: str, status: int
) -> None:
    ada = as_user(add_user(context, "ada", {OURS: "maintainer"}))
    assert put(ada, user, role).status_code == status
    assert put(ada, "ada", "owner").status_code == 422
    assert members_of(ada) == {"ada": "maintainer"}


def test_a_narrow_token_gives_no_role_that_it_lacks(as_user: Client, context: Context) -> None:
    scopes = (Permission.MEMBERS_WRITE, Permission.JOBS_READ, Permission.PROJECTS_READ)
    narrow = as_user(add_user(context, "eve", {OURS: "maintainer"}, scopes=scopes))
    add_user(context, "bob")
    assert put(narrow, "bob", "maintainer").status_code == 403
    assert put(narrow, "bob", "member").status_code == 403
    everyone = f"{API}/projects/{OURS}/everyone"
    assert narrow.put(everyone, json={"role": "member"}).status_code == 403
    accounts = f"{API}/projects/{OURS}/service-accounts"
    assert narrow.post(accounts, json={"name": "nightly"}).status_code == 403
    assert put(narrow, "bob", "viewer").status_code == 200


def test_a_viewer_changes_the_own_access(as_user: Client, context: Context) -> None:
    viewer = as_user(add_user(context, "ada", {OURS: "viewer"}))
    assert viewer.post(f"{API}/tokens", json={"name": "laptop"}).status_code == 201
    most = tuple(held_by_user(ClusterRole.USER))
    scoped = as_user(add_user(context, "eve", {OURS: "maintainer"}, scopes=most))
    assert scoped.post(f"{API}/tokens", json={"name": "copy"}).status_code == 403


def test_an_operator_without_a_role_reads_no_members(as_user: Client, context: Context) -> None:
    add_user(context, "ada", {OURS: "maintainer"})
    eve = as_user(add_user(context, "eve", cluster=ClusterRole.OPERATOR))
    assert eve.get(f"{API}/projects/{OURS}").status_code == 200
    refused = eve.get(f"{API}/projects/{OURS}/members")
    assert refused.status_code == 403
    assert refused.json()["detail"].endswith("the least role with it is viewer")
