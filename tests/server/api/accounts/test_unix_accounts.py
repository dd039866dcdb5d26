"""Attacks on the Unix account of a user: only an admin sets it, and never for itself."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select, update

from server.core.context import Context
from server.core.database.tables import jobs
from server.core.subject import ADMIN_USER_ID
from tests.server.api.accounts.people import API, ORIGIN, Member, joined
from tests.server.api.conftest import BASE_URL
from tests.server.api.in_process import TestClient
from tests.server.core.audit.entries import emptied, waiting
from tests.server.harness import Harness
from tests.server.members import OURS, add_projects, add_user
from trainyard.protocol.rest.access import Permission


@pytest.fixture
def ada(app: FastAPI, admin: TestClient) -> Member:
    return joined(app, admin, "ada")


def give(client: TestClient, user_id: str, account: str | None, **headers: str) -> Any:
    body = {"unix_account": account}
    return client.patch(f"{API}/users/{user_id}", json=body, headers=headers)


def test_an_admin_gives_a_user_an_account_and_removes_it(admin: TestClient, ada: Member) -> None:
    assert admin.get(f"{API}/users/{ada.id}").json()["unix_account"] is None
    assert give(admin, ada.id, "ada").json()["unix_account"] == "ada"
    assert give(admin, ada.id, "ada").status_code == 200, "a repeat changes nothing"
    assert give(admin, ada.id, None).json()["unix_account"] is None


def test_nobody_else_sets_it(
    app: FastAPI, admin: TestClient, ada: Member, anonymous: TestClient
) -> None:
    root = joined(app, admin, "root", role="admin")
    refused = give(root.browser, root.id, "ceo", **ORIGIN)
    assert refused.status_code == 409
    assert "the own role, state and Unix account" in refused.json()["detail"]
    assert give(ada.browser, ada.id, "ada", **ORIGIN).status_code == 403
    operator = joined(app, admin, "oscar", role="operator")
    assert give(operator.browser, ada.id, "ada", **ORIGIN).status_code == 403
    narrow = root.token("narrow", scopes=[Permission.USERS_ADMIN])
    assert give(anonymous, ada.id, "ada", **narrow).status_code == 403
    for path in ("/users", "/auth/invitation"):
        body = {"name": "m", "code": "x", "password": "y" * 12, "unix_account": "ceo"}
        refused = admin.post(f"{API}{path}", json=body)
        assert refused.status_code == 422, "an invitation gives no account"
        assert "/unix_account" in {each["pointer"] for each in refused.json()["errors"]}
    assert admin.get(f"{API}/users/{ada.id}").json()["unix_account"] is None


def test_the_audit_log_has_each_account_before_and_after(
    admin: TestClient, ada: Member, context: Context
) -> None:
    emptied(context)
    for account in ("ada", "ceo", "ceo", None):
        assert give(admin, ada.id, account).status_code == 200
    rows = [row for row in waiting(context) if row["operation"] == "users_change"]
    values = [(row.get("before"), row.get("after")) for row in rows]
    assert values == [
        ({"name": "ada", "unix_account": None}, {"unix_account": "ada"}),
        ({"name": "ada", "unix_account": "ada"}, {"unix_account": "ceo"}),
        (None, None),
        ({"name": "ada", "unix_account": "ceo"}, {"unix_account": None}),
    ]
    assert {row["object"] for row in rows} == {f"users/{ada.id}"}


@pytest.mark.parametrize("account", ["", "0", "-ada", "a b", "a:b", "../a", "ä", "a\n", "a" * 33])
def test_an_illegal_name_is_refused(admin: TestClient, ada: Member, account: str) -> None:
    refused = give(admin, ada.id, account)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "/unix_account"


def test_an_account_runs_the_jobs_of_one_user(app: FastAPI, admin: TestClient, ada: Member) -> None:
    bob = joined(app, admin, "bob")
    assert give(admin, ada.id, "ada").status_code == 200
    refused = give(admin, bob.id, "ada")
    assert refused.status_code == 409
    assert "unix_account='ada' belongs to another user" in refused.json()["detail"]
    assert give(admin, ada.id, None).status_code == 200
    assert give(admin, bob.id, "ada").status_code == 200


def test_the_built_in_user_has_none(admin: TestClient) -> None:
    refused = give(admin, ADMIN_USER_ID, "operator")
    assert refused.status_code == 409, "each of its tokens may stand for another person"
    assert "is the built-in user of the admin token" in refused.json()["detail"]


def test_only_an_admin_makes_tokens_of_a_service_account_with_one(
    app: FastAPI, admin: TestClient, context: Context
) -> None:
    add_projects(context)
    token = add_user(context, "eve", {OURS: "maintainer"})
    eve = TestClient(app, base_url=BASE_URL, headers={"authorization": f"Bearer {token}"})
    accounts = f"{API}/projects/{OURS}/service-accounts"
    made = eve.post(accounts, json={"name": "nightly", "role": "member"})
    assert made.status_code == 201, made.text
    name = made.json()["name"]
    (listed,) = admin.get(f"{API}/users", params={"name": name}).json()["items"]
    assert give(admin, listed["id"], "nightly").json()["unix_account"] == "nightly"
    tokens, body = f"{accounts}/{name}/tokens", {"name": "ci", "scopes": ["jobs:read"]}
    refused = eve.post(tokens, json=body)
    assert refused.status_code == 403
    assert "has a Unix account, so only" in refused.json()["detail"]
    assert admin.post(tokens, json=body).status_code == 201


def test_no_more_users_have_accounts_than_a_node_answers_for(
    app: FastAPI, admin: TestClient, ada: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = joined(app, admin, "bob")
    monkeypatch.setattr("server.core.people.unix_accounts.MAX_ACCOUNTS", 1)
    assert give(admin, ada.id, "ada").status_code == 200
    assert give(admin, ada.id, "ada2").status_code == 200, "it replaces the own account"
    refused = give(admin, bob.id, "bob")
    assert refused.status_code == 409
    assert "1 other users have Unix accounts" in refused.json()["detail"]


def test_queued_jobs_get_a_new_demand(
    context: Context, harness: Harness, admin: TestClient, ada: Member
) -> None:
    job_id = harness.submit()
    with context.database.write() as connection:
        connection.execute(update(jobs).values(demand="0" * 64, owner_id=ada.id))
    assert give(admin, ada.id, "ada").status_code == 200
    with context.database.read() as connection:
        assert connection.scalar(select(jobs.c.demand).where(jobs.c.id == job_id)) is None
