"""Attacks: nothing gives more permissions than its maker has, and nothing outlives its right."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select

from server.api.accounts.queries import user_view
from server.api.auth.admin import replace_admin_token
from server.api.auth.service import create_token
from server.core.context import Context
from server.core.database.tables import tokens
from server.core.people.user_tables import users
from tests.server.api.accounts.people import API, ORIGIN, PASSWORD, URL, Member, invited, joined
from tests.server.api.in_process import TestClient
from tests.server.clock import FakeClock
from trainyard.protocol.rest.access import Permission, TokenRequest


@pytest.fixture
def ada(app: FastAPI, admin: TestClient) -> Member:
    return joined(app, admin, "ada")


@pytest.fixture
def root(app: FastAPI, admin: TestClient) -> Member:
    """A user with the role admin."""
    return joined(app, admin, "root", role="admin")


def works(anonymous: TestClient, code: str) -> bool:
    reply = anonymous.post(f"{API}/auth/invitation/check", json={"code": code})
    assert reply.status_code in {200, 401}, reply.text
    return reply.status_code == 200


def names(context: Context) -> set[str]:
    with context.database.read() as connection:
        return set(connection.scalars(select(users.c.name)))


def test_a_user_has_only_the_permissions_of_its_role(ada: Member, admin: TestClient) -> None:
    listed = set(ada.browser.get(f"{API}/auth/session").json()["permissions"])
    assert listed == {
        "jobs:read",
        "jobs:write",
        "code:run",
        "shell:run",
        "projects:read",
        "secrets:use",
        "nodes:read",
        "sources:read",
    }
    header = ada.token()
    refused = ada.browser.get(f"{API}/users", headers=header).json()["detail"]
    assert "this needs users:admin; the token 'laptop' of ada has" in refused
    assert refused.endswith("; the least role with it is admin")
    assert "the session of ada has" in ada.browser.get(f"{API}/users").json()["detail"]
    for path in ("/users", "/tokens?all=true"):
        assert ada.browser.get(f"{API}{path}").status_code == 403
        assert ada.browser.get(f"{API}{path}", headers=header).status_code == 403
    for scopes in (["users:admin"], ["jobs:read", "tokens:admin"], ["jobs:delete"]):
        body = {"name": "more", "scopes": scopes}
        refused = ada.browser.post(f"{API}/tokens", json=body, headers=ORIGIN)
        assert refused.status_code == 403, "also if the role may grow later"
        assert refused.json()["errors"][0]["pointer"] == "/scopes"
    for kind in ("join", "login"):
        body = {"name": "more", "kind": kind}
        assert ada.browser.post(f"{API}/tokens", json=body, headers=ORIGIN).status_code == 403
    del admin


def test_a_token_loses_what_its_user_loses(
    app: FastAPI, admin: TestClient, anonymous: TestClient
) -> None:
    bob = joined(app, admin, "bob", role="operator")
    header = bob.token(scopes=["nodes:write", "jobs:read"])
    assert granted(anonymous, header) == {"nodes:write", "jobs:read"}
    admin.patch(f"{API}/users/{bob.id}", json={"role": "user"})
    assert granted(anonymous, header) == {"jobs:read"}
    assert "nodes:write" not in bob.browser.get(f"{API}/auth/session").json()["permissions"]


def granted(client: TestClient, header: dict[str, str]) -> set[str]:
    return set(client.get(f"{API}/auth/session", headers=header).json()["permissions"])


def test_an_admin_without_the_scope_cannot_touch_users(
    root: Member, anonymous: TestClient, context: Context
) -> None:
    plain = root.token()
    assert "users:admin" not in granted(anonymous, plain)
    body = {"name": "mallory", "role": "admin"}
    assert anonymous.post(f"{API}/users", json=body, headers=plain).status_code == 403
    narrow = root.token("narrow", scopes=["users:admin", "jobs:read"])
    refused = anonymous.post(f"{API}/users", json={"name": "mallory"}, headers=narrow)
    assert refused.status_code == 403
    assert refused.json()["errors"][0]["pointer"] == "/role"
    assert "mallory" not in names(context)


def test_a_maker_invites_only_users_within_its_permissions(
    app: FastAPI, admin: TestClient, anonymous: TestClient, root: Member, context: Context
) -> None:
    scopes = [each for each in Permission if each != Permission.SOURCES_WRITE]
    maker = root.token("maker", scopes=scopes)
    victim = joined(app, admin, "victim", role="admin")
    refused = anonymous.post(f"{API}/users", json={"name": "m", "role": "admin"}, headers=maker)
    assert refused.status_code == 403
    assert "this needs sources:write" in refused.json()["detail"]
    path = f"{API}/users/{victim.id}"
    assert anonymous.post(f"{path}/invitation", headers=maker).status_code == 403
    for change in ({"email": "x@y"}, {"state": "disabled"}, {"role": "user"}):
        assert anonymous.patch(path, json=change, headers=maker).status_code == 403
    made = anonymous.post(f"{API}/users", json={"name": "m"}, headers=maker)
    assert made.status_code == 201, made.text
    raised = {"role": "admin"}
    user = made.json()["user"]["id"]
    assert anonymous.patch(f"{API}/users/{user}", json=raised, headers=maker).status_code == 403
    assert victim.browser.get(f"{API}/jobs").status_code == 200
    del context


def test_the_own_role_and_state_stay(root: Member) -> None:
    for change in ({"role": "operator"}, {"state": "disabled"}):
        refused = root.browser.patch(f"{API}/users/{root.id}", json=change, headers=ORIGIN)
        assert refused.status_code == 409, refused.text
    mail = {"email": "root@example.org", "role": "admin"}
    changed = root.browser.patch(f"{API}/users/{root.id}", json=mail, headers=ORIGIN)
    assert changed.json()["email"] == "root@example.org", changed.text


def test_the_built_in_user_cannot_be_changed(admin: TestClient, anonymous: TestClient) -> None:
    (built_in,) = admin.get(f"{API}/users", params={"name": "admin"}).json()["items"]
    assert (built_in["is_built_in"], built_in["role"]) == (True, "admin")
    path = f"{API}/users/{built_in['id']}"
    for change in ({"state": "disabled"}, {"role": "user"}, {"email": "a@b"}):
        assert admin.patch(path, json=change).status_code == 409
    assert admin.post(f"{path}/invitation").status_code == 409
    body = {"current": "", "new": "a new password"}
    assert admin.put(f"{API}/auth/password", json=body).status_code == 409
    login = {"name": "admin", "password": PASSWORD}
    assert anonymous.post(f"{API}/auth/session", json=login).status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "body", "pointer"),
    [
        ("POST", "/users", {"name": "m", "state": "active"}, "/state"),
        ("POST", "/users", {"name": "m", "password": "x" * 20}, "/password"),
        ("POST", "/users", {"name": "m", "id": "0" * 26}, "/id"),
        ("POST", "/users", {"name": "Mallory"}, "/name"),
        ("POST", "/users", {"name": "scheduler"}, "/name"),
        ("POST", "/users", {"name": "admin"}, "/name"),
        ("POST", "/users", {"name": "m", "role": "root"}, "/role"),
        ("POST", "/users", {"name": "m", "email": "no address"}, "/email"),
        ("PATCH", "/users/{id}", {"name": "other"}, "/name"),
        ("PATCH", "/users/{id}", {"password": "x" * 20}, "/password"),
        ("POST", "/tokens", {"name": "m", "user_id": "0" * 26}, "/user_id"),
        ("POST", "/auth/invitation", {"code": "x", "password": "y" * 12, "role": "admin"}, "/role"),
    ],
)
def test_no_other_field_is_taken(
    admin: TestClient, ada: Member, method: str, path: str, body: dict[str, Any], pointer: str
) -> None:
    refused = admin.request(method, f"{API}{path}".replace("{id}", ada.id), json=body)
    assert refused.status_code == 422, refused.text
    assert [each["pointer"] for each in refused.json()["errors"]] == [pointer]


def test_a_name_is_never_given_twice(admin: TestClient, ada: Member) -> None:
    admin.patch(f"{API}/users/{ada.id}", json={"state": "disabled"})
    refused = admin.post(f"{API}/users", json={"name": "ada"})
    assert refused.status_code == 409
    assert "never given twice" in refused.json()["detail"]


# ---- the end of invitations ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "end",
    ["revoked", "disabled", "lowered", "lowered and raised", "rotation", "expired", "again"],
)
def test_a_code_ends_with_the_right_of_its_maker(
    app: FastAPI, admin: TestClient, anonymous: TestClient, context: Context, root: Member, end: str
) -> None:
    scopes = [*Permission]
    made = root.browser.post(
        f"{API}/tokens",
        json={"name": "maker", "scopes": scopes, "expires_in_seconds": 3600},
        headers=ORIGIN,
    ).json()
    header = {"authorization": f"Bearer {made['secret']}"}
    reply = anonymous.post(f"{API}/users", json={"name": "eve"}, headers=header).json()
    assert works(anonymous, reply["code"])
    path = f"{API}/users/{root.id}"
    match end:
        case "revoked":
            root.browser.delete(f"{API}/tokens/{made['id']}", headers=ORIGIN)
        case "disabled":
            admin.patch(path, json={"state": "disabled"})
        case "lowered":
            admin.patch(path, json={"role": "operator"})
        case "lowered and raised":
            for role in ("operator", "admin"):
                assert admin.patch(path, json={"role": role}).status_code == 200
        case "rotation":
            rotation = replace_admin_token(context)
            assert rotation.invitations == 1
            assert [row.name for row in rotation.makers] == ["maker"]
            assert rotation.admins == ["root"]
        case "expired":
            clock = context.clock
            assert isinstance(clock, FakeClock)
            clock.advance(3600)
        case _:
            assert end == "again"
            admin.post(f"{API}/users/{reply['user']['id']}/invitation")
    assert not works(anonymous, reply["code"])
    if end != "again":
        with context.database.read() as connection:
            view = user_view(context, connection, reply["user"]["id"])
        assert (view.invited_until is None) == (end != "expired")
    body = {"code": reply["code"], "password": PASSWORD}
    assert anonymous.post(f"{API}/auth/invitation", json=body).status_code == 401
    del app


def test_a_new_admin_token_ends_every_invitation(
    admin: TestClient, anonymous: TestClient, context: Context, root: Member
) -> None:
    codes = [invited(admin, "eve")["code"]]
    by_session = root.browser.post(f"{API}/users", json={"name": "mia"}, headers=ORIGIN)
    codes.append(by_session.json()["code"])
    assert all(works(anonymous, each) for each in codes)
    assert replace_admin_token(context).invitations == 2
    assert not any(works(anonymous, each) for each in codes)
    assert root.browser.get(f"{API}/users").status_code == 200, "users keep their sessions"


@pytest.mark.parametrize("change", [{"role": "operator"}, {"state": "disabled"}])
def test_a_code_ends_with_a_change_of_its_user(
    admin: TestClient, anonymous: TestClient, clock: FakeClock, change: dict[str, str]
) -> None:
    made = invited(admin, "eve")
    assert works(anonymous, made["code"])
    admin.patch(f"{API}/users/{made['user']['id']}", json=change)
    assert not works(anonymous, made["code"])
    assert admin.get(f"{API}/users/{made['user']['id']}").json()["invited_until"] is None
    other = invited(admin, "mia")
    clock.advance(7 * 86_400)
    assert not works(anonymous, other["code"])


def test_a_reset_ends_sessions_only_with_its_use(
    app: FastAPI, admin: TestClient, ada: Member
) -> None:
    code = admin.post(f"{API}/users/{ada.id}/invitation").json()["code"]
    assert ada.browser.get(f"{API}/jobs").status_code == 200
    other = TestClient(app, base_url=URL)
    body = {"code": code, "password": "another password"}
    assert other.post(f"{API}/auth/invitation", json=body).status_code == 201
    assert ada.browser.get(f"{API}/jobs").status_code == 401
    old = {"name": "ada", "password": PASSWORD}
    assert other.post(f"{API}/auth/session", json=old).status_code == 401


# ---- disabled users ------------------------------------------------------------------------------


def test_a_disabled_user_has_no_access_for_good(
    admin: TestClient, anonymous: TestClient, ada: Member
) -> None:
    header = ada.token()
    for state, status in (("disabled", 401), ("active", 401)):
        changed = admin.patch(f"{API}/users/{ada.id}", json={"state": state})
        assert changed.json()["state"] == state
        assert anonymous.get(f"{API}/jobs", headers=header).status_code == status
        assert ada.browser.get(f"{API}/jobs").status_code == status
        login = {"name": "ada", "password": PASSWORD}
        found = anonymous.post(f"{API}/auth/session", json=login, headers=ORIGIN).status_code
        assert found == (401 if state == "disabled" else 201)


def test_others_tokens_are_not_seen_and_not_revoked(
    admin: TestClient, anonymous: TestClient, ada: Member, app: FastAPI, context: Context
) -> None:
    bob = joined(app, admin, "bob")
    header = ada.token()
    (listed,) = ada.browser.get(f"{API}/tokens").json()["items"]
    assert (listed["name"], listed["user"]) == ("laptop", "ada")
    assert bob.browser.get(f"{API}/tokens").json()["items"] == []
    path = f"{API}/tokens/{listed['id']}"
    assert bob.browser.delete(path, headers=ORIGIN).status_code == 404
    assert anonymous.get(f"{API}/jobs", headers=header).status_code == 200
    bob.token()  # the same name, of another user
    every = admin.get(f"{API}/tokens", params={"all": "true"}).json()["items"]
    assert {(each["user"], each["name"]) for each in every} >= {
        ("ada", "laptop"),
        ("bob", "laptop"),
        ("admin", "admin"),
    }
    assert admin.delete(path).status_code == 204
    assert anonymous.get(f"{API}/jobs", headers=header).status_code == 401
    old = create_token(context, TokenRequest(name="old"))[1]
    refused = anonymous.get(f"{API}/tokens", headers={"authorization": f"Bearer {old}"})
    assert refused.status_code == 403, "a token of the built-in user keeps what it had"
    with context.database.read() as connection:
        assert connection.scalar(select(tokens.c.user_id).where(tokens.c.name == "old"))


def test_sessions_of_others_cannot_be_ended(
    app: FastAPI, admin: TestClient, anonymous: TestClient, ada: Member, api_token: str
) -> None:
    bob = joined(app, admin, "bob")
    (mine,) = ada.browser.get(f"{API}/auth/sessions").json()["items"]
    path = f"{API}/auth/sessions/{mine['id']}"
    assert bob.browser.delete(path, headers=ORIGIN).status_code == 404
    assert admin.delete(path).status_code == 404
    anonymous.post(f"{API}/auth/session", json={"token": api_token})
    assert admin.get(f"{API}/auth/sessions").json()["items"] == [], "of another token"
    assert len(anonymous.get(f"{API}/auth/sessions").json()["items"]) == 1
    assert ada.browser.delete(path, headers=ORIGIN).status_code == 204
    assert ada.browser.get(f"{API}/jobs").status_code == 401
