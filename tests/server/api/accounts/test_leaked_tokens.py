"""Leaked tokens and lost roles: nothing copies itself, and nothing is too much to end."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from sqlalchemy import func, insert, select

from server.api.auth.service import MAX_TOKENS
from server.core.context import Context
from server.core.database.engine import batches
from server.core.database.tables import tokens
from tests.server.api.accounts.people import API, ORIGIN, URL, joined
from tests.server.api.in_process import TestClient


def test_join_tokens_end_with_the_role_of_their_user(
    app: FastAPI, admin: TestClient, anonymous: TestClient
) -> None:
    root = joined(app, admin, "root", role="admin")
    made = root.browser.post(
        f"{API}/tokens", json={"name": "nodes", "kind": "join"}, headers=ORIGIN
    )
    header = {"authorization": f"Bearer {made.json()['secret']}"}
    register = f"{API}/workers/register"
    assert anonymous.post(register, headers=header).status_code == 422  # there is no body
    assert admin.patch(f"{API}/users/{root.id}", json={"role": "user"}).status_code == 200
    assert anonymous.post(register, headers=header).status_code == 401
    assert admin.patch(f"{API}/users/{root.id}", json={"role": "admin"}).status_code == 200
    assert anonymous.post(register, headers=header).status_code == 401, "it is revoked for good"


@pytest.mark.parametrize("scopes", [["jobs:read"], ["jobs:read", "jobs:write", "code:run"]])
def test_a_token_with_scopes_does_not_copy_itself(
    app: FastAPI, admin: TestClient, anonymous: TestClient, scopes: list[str]
) -> None:
    eve = joined(app, admin, "eve")
    whole, leaked = eve.token("whole"), eve.token("leaked", scopes=scopes)
    theirs = {"name": "copy", "scopes": scopes}
    (session,) = anonymous.get(f"{API}/auth/sessions", headers=leaked).json()["items"]
    listed = anonymous.get(f"{API}/tokens", headers=leaked).json()["items"]
    for method, path, body in (
        ("POST", "/tokens", theirs),
        ("DELETE", f"/tokens/{listed[0]['id']}", None),
        ("DELETE", f"/auth/sessions/{session['id']}", None),
        ("PUT", "/auth/password", {"current": "x", "new": "a much better one"}),
    ):
        refused = anonymous.request(method, f"{API}{path}", json=body, headers=leaked)
        assert refused.status_code == 403, (method, path, refused.text)
        assert "token 'leaked' of eve has scopes" in refused.json()["detail"]
    made = anonymous.post(f"{API}/tokens", json=theirs, headers=whole)
    assert made.status_code == 201, made.text


def test_a_user_with_more_tokens_than_parameters_is_disabled(
    app: FastAPI, admin: TestClient, anonymous: TestClient, context: Context
) -> None:
    eve = joined(app, admin, "eve")
    header = eve.token()
    row = {"name": "old", "kind": "api", "user_id": eve.id, "created_at": context.now()}
    many = [row | {"id": context.new_id(), "hash": f"hash-{n}"} for n in range(66_000)]
    with context.database.write() as connection:
        for some in batches(many, 5000):
            connection.execute(insert(tokens), list(some))
    refused = anonymous.post(f"{API}/tokens", json={"name": "next"}, headers=header)
    assert refused.status_code == 409
    assert f"you have {MAX_TOKENS} API tokens" in refused.json()["detail"]
    disabled = admin.patch(f"{API}/users/{eve.id}", json={"state": "disabled"})
    assert disabled.status_code == 200, disabled.text
    assert anonymous.get(f"{API}/jobs", headers=header).status_code == 401
    with context.database.read() as connection:
        valid = select(func.count()).select_from(tokens)
        valid = valid.where(tokens.c.user_id == eve.id, tokens.c.revoked_at.is_(None))
        assert connection.scalar(valid) == 0


@pytest.mark.parametrize("field", ["role", "state"])
def test_null_changes_nothing_and_is_refused(app: FastAPI, admin: TestClient, field: str) -> None:
    eve = joined(app, admin, "eve")
    refused = admin.patch(f"{API}/users/{eve.id}", json={field: None})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == f"/{field}"


def test_a_token_ends_with_the_token_that_made_it(
    app: FastAPI, admin: TestClient, anonymous: TestClient
) -> None:
    ada = joined(app, admin, "ada")

    def made(client: TestClient, header: dict[str, str], **fields: object) -> dict[str, str]:
        reply = client.post(f"{API}/tokens", json=fields, headers=header)
        assert reply.status_code == 201, reply.text
        return dict(reply.json())

    def works(client: TestClient, header: dict[str, str]) -> bool:
        return client.get(f"{API}/jobs", headers=header).status_code == 200

    def bearer(token: dict[str, str]) -> dict[str, str]:
        return {"authorization": f"Bearer {token['secret']}"}

    root = made(ada.browser, ORIGIN, name="root", expires_in_seconds=3600)
    browser = TestClient(app, base_url=URL)
    session = f"{API}/auth/session"
    assert browser.post(session, json={"token": root["secret"]}).status_code == 201
    child = made(browser, ORIGIN, name="child", expires_in_seconds=7200)
    grandchild = made(anonymous, bearer(child), name="grandchild")
    short = made(anonymous, bearer(root), name="short", expires_in_seconds=60)
    sibling = made(ada.browser, ORIGIN, name="sibling")
    assert child["expires_at"] == grandchild["expires_at"] == root["expires_at"]
    assert short["expires_at"] < root["expires_at"]
    its_browser = TestClient(app, base_url=URL)
    assert its_browser.post(session, json={"token": grandchild["secret"]}).status_code == 201
    assert all(works(anonymous, bearer(each)) for each in (root, child, grandchild, short))
    assert ada.browser.delete(f"{API}/tokens/{root['id']}", headers=ORIGIN).status_code == 204
    assert not any(works(anonymous, bearer(each)) for each in (root, child, grandchild, short))
    assert not works(its_browser, {})
    assert works(anonymous, bearer(sibling))


def test_an_illegal_email_is_named_without_a_pattern(admin: TestClient) -> None:
    refused = admin.post(f"{API}/users", json={"name": "ada", "email": "ada"})
    assert refused.status_code == 422
    assert "one '@' between" in refused.text
    assert "[!-?" not in refused.text
