"""Attacks through a browser: other sites, planted cookies, tokens in URLs, and fields of others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from server.core.context import Context
from tests.server.api.accounts.people import API, ORIGIN, PASSWORD, SESSION, URL, Member, joined
from tests.server.api.in_process import TestClient
from tests.server.api.published import DOCUMENT
from tests.server.statements import statements

EVIL = "https://evil.example"
FORMS = ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"]
"""Content types that a page of another site may send without asking the server first."""
OPEN = {
    ("/api/v1/auth/oidc/backchannel-logout", "post"),  # from the issuer, with a signed token
    ("/api/v1/auth/oidc/invitation", "post"),  # 404 here, without an issuer: test_linking.py
}
PUBLIC = {f"/api/v1/auth/{each}" for each in (
    "session", "token", "invitation", "invitation/check", "device", "device/token",
    "oidc/invitation",
)}  # fmt: skip
"""Paths without a login, which read the body before they compare the origin."""


def writes() -> Iterator[tuple[str, str]]:
    """Yield path and method of each operation that is not a read."""
    for path, methods in DOCUMENT["paths"].items():
        for method in methods:
            if method not in {"get", "head"} and (path, method) not in OPEN:
                yield re.sub(r"\{\w+\}", "0" * 26, path), method.upper()


@pytest.fixture
def root(app: FastAPI, admin: TestClient) -> Member:
    """An admin whose browser is logged in."""
    return joined(app, admin, "root", role="admin")


@pytest.mark.parametrize(
    "sender",
    [{"origin": EVIL}, {"origin": "null"}, {"origin": f"{URL}.evil.example"}, {}],
    ids=["other", "opaque", "longer", "none"],
)
@pytest.mark.parametrize("content_type", ["application/json", *FORMS, None])
def test_no_page_of_another_site_changes_anything(
    root: Member, context: Context, sender: dict[str, str], content_type: str | None
) -> None:
    headers = dict(sender) if content_type is None else {**sender, "content-type": content_type}
    let_through = []
    with statements(context) as seen:
        for path, method in writes():
            reply = root.browser.request(method, path, content=b"{}", headers=headers)
            if reply.status_code not in (
                {401, 403} if path not in PUBLIC else {401, 403, 415, 422}
            ):
                let_through.append((method, path, reply.status_code))
    assert let_through == []
    changes = [each for each in seen if each.startswith(("INSERT", "UPDATE", "DELETE"))]
    # The use of a session, a login without a token, the beat of the server, and the audit log.
    noted = ("last_used_at", "failed_logins", "liveness", "audit_pending")
    assert [each for each in changes if not any(name in each for name in noted)] == []
    assert root.browser.get(f"{API}/jobs").status_code == 200


@pytest.mark.parametrize("origin", [EVIL, "null"])
def test_no_page_of_another_site_logs_a_person_in(app: FastAPI, root: Member, origin: str) -> None:
    """The person would otherwise work, and store secrets, in an account of the attacker."""
    del root
    victim = TestClient(app, base_url=URL)
    body = {"name": "root", "password": PASSWORD}
    assert victim.post(SESSION, json=body, headers={"origin": origin}).status_code == 403
    assert "trainyard_session" not in victim.cookies


def test_a_planted_cookie_becomes_no_session(app: FastAPI, root: Member) -> None:
    unknown = "A" * 43
    for planted in (unknown, root.browser.cookies["trainyard_session"]):
        headers = {**ORIGIN, "cookie": f"trainyard_session={planted}"}
        body = {"name": "root", "password": PASSWORD}
        reply = TestClient(app, base_url=URL).post(SESSION, json=body, headers=headers)
        assert reply.status_code == 201
        assert planted not in reply.headers["set-cookie"]
    stranger = TestClient(app, base_url=URL)
    headers = {"cookie": f"trainyard_session={unknown}"}
    assert stranger.get(f"{API}/jobs", headers=headers).status_code == 401


@pytest.mark.parametrize("name", ["token", "access_token", "authorization", "api_key", "t"])
def test_a_token_in_a_url_is_no_login(app: FastAPI, root: Member, name: str) -> None:
    secret = root.token()["authorization"].removeprefix("Bearer ")
    stranger = TestClient(app, base_url=URL)
    for value in (secret, f"Bearer {secret}"):
        reply = stranger.get(f"{API}/jobs", params={name: value})
        assert reply.status_code in {401, 422}  # 422: no operation has such a parameter
        assert secret not in reply.text
    userinfo = URL.replace("://", f"://x:{secret}@")
    basic = TestClient(app, base_url=userinfo)
    assert basic.get(f"{API}/jobs").status_code == 401


GIVEN = {
    "is_admin": True,
    "role": "admin",
    "user_id": "0" * 26,
    "owner_id": "0" * 26,
    "permissions": ["users:admin"],
    "is_built_in": True,
}
BODIES = [
    ("POST", "/tokens", {"name": "more"}),
    ("PUT", "/auth/password", {"current": PASSWORD, "new": "another horse battery"}),
    ("POST", "/jobs", {}),
    ("POST", "/auth/device", {"host": "login-1"}),
    ("POST", "/auth/session", {"name": "ada", "password": PASSWORD}),
    ("PUT", "/users/me/secrets/hf", {"value": "abcdefgh"}),
]


@pytest.mark.parametrize(("method", "path", "body"), BODIES, ids=[path for _, path, _ in BODIES])
@pytest.mark.parametrize("field", GIVEN)
def test_a_body_sets_no_field_of_others(
    app: FastAPI, admin: TestClient, method: str, path: str, body: dict[str, Any], field: str
) -> None:
    ada = joined(app, admin, "ada")
    given = {**body, field: GIVEN[field]}
    reply = ada.browser.request(method, f"{API}{path}", json=given, headers=ORIGIN)
    assert reply.status_code == 422, reply.text
    assert f"/{field}" in {each["pointer"] for each in reply.json()["errors"]}
    session = ada.browser.get(SESSION).json()
    assert session["user"]["role"] == "user"
