"""Service accounts of projects: their tokens, their roles and their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select

from server.api.auth.service import revoke_token
from server.core.context import Context
from server.core.database.tables import events
from tests.actors import authenticate_token
from tests.server.api.conftest import BASE_URL, admin, admin_token, anonymous, app  # noqa: F401
from tests.server.api.in_process import TestClient
from tests.server.harness import Harness
from tests.server.members import OURS, THEIRS, add_projects, add_user
from trainyard.protocol.rest.access import Permission

API = "/api/v1"
Client = Callable[[str], TestClient]
NIGHTLY = f"nightly@{OURS}"


@pytest.fixture
def as_user(app: FastAPI, context: Context) -> Client:  # noqa: F811 - the fixture above
    """Make a client with a token."""
    add_projects(context)

    def client(token: str) -> TestClient:
        headers = {"authorization": f"Bearer {token}"}
        return TestClient(app, base_url=BASE_URL, headers=headers)

    return client


def put(client: TestClient, user: str, role: str, project: str = OURS) -> Any:
    return client.put(f"{API}/projects/{project}/members/{user}", json={"role": role})


def account(client: TestClient, name: str = "nightly", project: str = OURS, **body: Any) -> Any:
    return client.post(f"{API}/projects/{project}/service-accounts", json={"name": name, **body})


def token_of(client: TestClient, name: str = NIGHTLY, **body: Any) -> Any:
    path = f"{API}/projects/{OURS}/service-accounts/{name}/tokens"
    return client.post(path, json={"name": "ci", **body})


def test_a_service_account_works_in_its_project_alone(
    as_user: Client, context: Context, harness: Harness
) -> None:
    other = harness.submit(project=THEIRS)
    ada = as_user(add_user(context, "ada", {OURS: "maintainer"}))
    ada.put(f"{API}/projects/{OURS}/everyone", json={"role": "maintainer"})
    assert account(ada).status_code == 201
    nightly = as_user(token_of(ada).json()["secret"])
    made = nightly.post(f"{API}/jobs", json={"project": OURS})
    assert made.status_code == 201, made.text
    assert made.json()["owner"] == NIGHTLY
    assert nightly.get(f"{API}/jobs/{other}").status_code == 404
    assert nightly.delete(f"{API}/jobs/{made.json()['id']}").status_code == 403, "not everyone"
    assert nightly.post(f"{API}/tokens", json={"name": "more"}).status_code == 403
    assert nightly.get(f"{API}/tokens").status_code == 403
    session = nightly.get(f"{API}/auth/session").json()
    assert session["user"]["name"] == NIGHTLY
    assert "members:write" not in session["permissions"]


def test_the_end_of_an_account_is_for_good(as_user: Client, context: Context) -> None:
    ada = as_user(add_user(context, "ada", {OURS: "maintainer", THEIRS: "maintainer"}))
    account(ada)
    nightly = as_user(token_of(ada).json()["secret"])
    assert account(ada).status_code == 409
    assert account(ada, project=THEIRS).status_code == 201, "each project has its own names"
    assert put(ada, NIGHTLY, "maintainer").status_code == 409
    other, unknown = put(ada, NIGHTLY, "viewer", THEIRS), put(ada, "eve@ours", "viewer", THEIRS)
    assert (other.status_code, unknown.status_code) == (404, 404)
    assert other.json()["detail"] == unknown.json()["detail"].replace("eve@ours", NIGHTLY)
    assert ada.delete(f"{API}/projects/{OURS}/members/{NIGHTLY}").status_code == 409
    assert put(ada, NIGHTLY, "viewer").status_code == 200
    accounts = f"{API}/projects/{OURS}/service-accounts"
    assert [each["role"] for each in ada.get(accounts).json()["items"]] == ["viewer"]
    assert ada.delete(f"{accounts}/{NIGHTLY}").status_code == 204
    assert ada.delete(f"{accounts}/{NIGHTLY}").status_code == 404
    assert token_of(ada).status_code == 404
    assert nightly.get(f"{API}/auth/session").status_code == 401
    assert ada.get(accounts).json()["items"] == []
    assert account(ada).status_code == 409


def test_a_token_of_an_account_has_at_most_the_makers_permissions(
    as_user: Client, context: Context
) -> None:
    ada = as_user(add_user(context, "ada", {OURS: "maintainer"}))
    account(ada)
    scopes = (Permission.MEMBERS_WRITE, Permission.JOBS_READ)
    narrow = as_user(add_user(context, "eve", {OURS: "maintainer"}, scopes=scopes))
    assert token_of(narrow).status_code == 403
    assert token_of(narrow, scopes=["jobs:write"]).status_code == 403
    assert token_of(narrow, scopes=["jobs:read"]).status_code == 201


def test_a_deleted_project_ends_its_accounts(
    as_user: Client,
    context: Context,
    admin: TestClient,  # noqa: F811 - the fixture above
) -> None:
    ada = as_user(add_user(context, "ada", {OURS: "maintainer"}))
    account(ada)
    nightly = as_user(token_of(ada).json()["secret"])
    assert admin.delete(f"{API}/projects/{OURS}").status_code == 204
    assert nightly.get(f"{API}/auth/session").status_code == 401
    assert ada.get(f"{API}/auth/session").json()["permissions"] == ["nodes:read", "sources:read"]


def test_an_admin_gives_an_account_no_password_and_no_role(
    as_user: Client,
    context: Context,
    admin: TestClient,  # noqa: F811 - the fixture above
) -> None:
    ada = as_user(add_user(context, "ada", {OURS: "maintainer"}))
    account(ada)
    listed = {each["name"]: each for each in admin.get(f"{API}/users").json()["items"]}
    user = listed[NIGHTLY]
    assert (user["kind"], user["project"]) == ("service", OURS)
    path = f"{API}/users/{user['id']}"
    assert admin.post(f"{path}/invitation").status_code == 409
    assert admin.patch(path, json={"role": "operator"}).status_code == 409
    assert admin.patch(path, json={"state": "disabled"}).status_code == 200


def test_a_disabled_account_is_enabled_or_ended(
    as_user: Client,
    context: Context,
    admin: TestClient,  # noqa: F811 - the fixture above
) -> None:
    ada = as_user(add_user(context, "ada", {OURS: "maintainer"}))
    account(ada)
    (user,) = admin.get(f"{API}/users", params={"name": NIGHTLY}).json()["items"]
    path, ended = f"{API}/users/{user['id']}", f"{API}/projects/{OURS}/service-accounts/{NIGHTLY}"
    assert admin.patch(path, json={"state": "disabled"}).status_code == 200
    assert token_of(ada).status_code == 409
    (listed,) = ada.get(f"{API}/projects/{OURS}/service-accounts").json()["items"]
    assert listed["state"] == "disabled"
    assert admin.patch(path, json={"state": "active"}).status_code == 200
    assert token_of(ada).status_code == 201
    disabled = admin.patch(path, json={"state": "disabled"})
    assert disabled.status_code == 200
    assert not disabled.json()["has_ended"]
    assert ada.delete(ended).status_code == 204
    assert admin.patch(path, json={"state": "active"}).status_code == 409, "it has ended for good"
    (listed,) = admin.get(f"{API}/users", params={"name": NIGHTLY}).json()["items"]
    assert listed["has_ended"]


def test_tokens_of_an_account_belong_to_the_project(as_user: Client, context: Context) -> None:
    ada = as_user(token := add_user(context, "ada", {OURS: "maintainer"}))
    bob = as_user(add_user(context, "bob", {OURS: "maintainer"}))
    account(ada)
    nightly = as_user(token_of(ada).json()["secret"])
    revoke_token(context, str(authenticate_token(context, token).token_id))
    assert nightly.get(f"{API}/jobs").status_code == 200, "it does not end with its maker's token"
    tokens = f"{API}/projects/{OURS}/service-accounts/{NIGHTLY}/tokens"
    (listed,) = bob.get(tokens).json()["items"]
    assert (listed["name"], listed["secret"]) == ("ci", None)
    account(bob, "weekly")
    other = tokens.replace("nightly", "weekly")
    assert bob.delete(f"{other}/{listed['id']}").status_code == 404
    assert bob.delete(f"{tokens}/{listed['id']}").status_code == 204
    assert bob.delete(f"{tokens}/{listed['id']}").status_code == 404
    assert nightly.get(f"{API}/jobs").status_code == 401
    with context.database.read() as connection:
        kind = events.c.kind == "service_token_changed"
        told = connection.scalars(select(events.c.message).where(kind).order_by(events.c.id)).all()
    assert told == [
        f"the token 'ci' of {NIGHTLY} was created",
        f"the token 'ci' of {NIGHTLY} was revoked",
    ]


def test_an_account_opens_no_session(as_user: Client, context: Context, app: FastAPI) -> None:  # noqa: F811 - the fixture above
    ada = as_user(add_user(context, "ada", {OURS: "maintainer"}))
    account(ada)
    body = {"token": token_of(ada).json()["secret"]}
    refused = TestClient(app, base_url="http://127.0.0.1:8470").post(
        f"{API}/auth/session", json=body
    )
    assert refused.status_code == 403
    assert "opens no sessions" in refused.json()["detail"]


def test_a_project_has_a_bounded_number_of_accounts(
    as_user: Client, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.api.accounts.service_accounts.MAX_ACCOUNTS", 2)
    ada = as_user(add_user(context, "ada", {OURS: "maintainer"}))
    for name in ("one", "two"):
        assert account(ada, name).status_code == 201
    ended = f"{API}/projects/{OURS}/service-accounts/one@{OURS}"
    assert ada.delete(ended).status_code == 204
    assert account(ada, "three").status_code == 409, "ended ones included"
    assert account(ada, "n" * 64).status_code == 422
