"""Access: every route needs a token, and each kind of token opens only its routes."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import insert, select

from server.api.auth.admin import ensure_admin_token, replace_admin_token
from server.api.auth.browser_sessions import SESSION_LIFETIME
from server.api.auth.dependencies import SESSION_COOKIE
from server.api.auth.principals import Principal, find_holders, note_uses
from server.api.auth.service import create_token, list_tokens
from server.api.auth.tokens import TokenKind, hash_token, make_token
from server.app.factory import create_app, routes_of
from server.core.context import Context
from server.core.database.tables import tokens
from server.core.errors import UnauthenticatedError
from tests.server.api.in_process import TestClient
from tests.server.clock import FakeClock
from tests.server.statements import statements
from trainyard.protocol.rest.access import TokenRequest

OPEN = {"/healthz", "/readyz", "/docs", "/docs.css", "/openapi.json"}
API = "/api/v1"
URL = "http://127.0.0.1:8470"
ORIGIN = {"origin": URL}
PUBLIC = {
    ("GET", f"{API}/auth/ways"),
    ("POST", f"{API}/auth/token"),
    ("POST", f"{API}/auth/invitation"),
    ("POST", f"{API}/auth/invitation/check"),
    ("POST", f"{API}/auth/device"),
    ("POST", f"{API}/auth/device/token"),
    ("GET", f"{API}/auth/oidc/login"),
    ("GET", f"{API}/auth/oidc/callback"),
    ("POST", f"{API}/auth/oidc/invitation"),
    ("POST", f"{API}/auth/oidc/backchannel-logout"),
}
"""Operations that need no token; a login by token also belongs to them, and answers 401 to the
requests here."""
WORKERS, PROVISIONERS = f"{API}/workers/", f"{API}/provisioners/"
SESSION = f"{API}/auth/session"


def all_routes(app: FastAPI) -> list[tuple[str, str]]:
    """Return method and path of every protected route, with unknown ids in the path."""
    found = [
        (method, re.sub(r"\{\w+\}", "0" * 26, path))
        for path, methods in routes_of(app)
        if path not in OPEN
        for method in methods
    ]
    assert len(found) > 25
    return [each for each in found if each not in PUBLIC]


def of_kind(context: Context, kind: TokenKind, *, node: str | None = None) -> dict[str, str]:
    """Store a token of a kind and return the header that carries it."""
    token = make_token(kind)
    with context.database.write() as connection:
        connection.execute(
            insert(tokens).values(
                id=context.new_id(),
                name=f"a-{kind}",
                kind=kind,
                hash=hash_token(token),
                node=node,
                created_at=context.now(),
            )
        )
    return {"authorization": f"Bearer {token}"}


def test_every_route_but_health_refuses_strangers(app: FastAPI, anonymous: TestClient) -> None:
    wrong: list[dict[str, Any]] = [
        {},
        {"authorization": "Bearer ty_api_wrong"},
        {"authorization": b"Bearer \xff"},
        {"authorization": "Basic YTpi"},
        {"cookie": f"{SESSION_COOKIE}=wrong", **ORIGIN},
    ]
    for method, path in all_routes(app):
        for headers in wrong:
            response = anonymous.request(method, path, headers=headers)
            assert response.status_code == 401, (method, path, headers, response.text)
            assert response.headers["content-type"] == "application/problem+json"
            assert response.headers["www-authenticate"] == "Bearer"
    for path in OPEN:
        assert anonymous.get(path).status_code == 200


MACHINES = (TokenKind.JOIN, TokenKind.NODE, TokenKind.LOGIN, TokenKind.SOURCE)


@pytest.mark.parametrize("kind", MACHINES)
def test_tokens_of_machines_open_no_route_of_people(
    app: FastAPI, anonymous: TestClient, context: Context, kind: TokenKind
) -> None:
    headers = of_kind(context, kind, node="node-1")
    for method, path in all_routes(app):
        if not is_of_machines(path) and (method, path) != ("POST", SESSION):
            status = anonymous.request(method, path, headers=headers).status_code
            assert status == 403, (method, path, status)
        elif has_a_token_of_its_own(path):
            assert anonymous.request(method, path, headers=headers).status_code == 401


@pytest.mark.parametrize("kind", MACHINES)
def test_provisioners_need_the_token_of_a_source_or_one_to_join_with(
    app: FastAPI, anonymous: TestClient, context: Context, kind: TokenKind
) -> None:
    headers = of_kind(context, kind, node="node-1")
    routes = [path for _, path in all_routes(app) if path.startswith(PROVISIONERS)]
    assert len(routes) == 3
    for path in routes:
        joins = kind is TokenKind.JOIN and path == f"{PROVISIONERS}register"
        wanted = 422 if joins or kind is TokenKind.SOURCE else 403  # 422: there is no body
        status = anonymous.post(path, headers=headers).status_code
        assert status == wanted, (path, status)


def test_tokens_of_people_open_no_route_of_machines(app: FastAPI, client: TestClient) -> None:
    machines = [(m, p) for m, p in all_routes(app) if is_of_machines(p)]
    assert len(machines) == 16
    for method, path in machines:
        status = client.request(method, path).status_code
        wanted = 401 if has_a_token_of_its_own(path) else 403
        assert status == wanted, (method, path, status)


def is_of_machines(path: str) -> bool:
    return path.startswith((WORKERS, PROVISIONERS))


def has_a_token_of_its_own(path: str) -> bool:
    """The token of a report stands on the attempt, that of a check on the request for its node.

    No other counts; an operation is reported by its node.
    """
    is_of_attempt = "/attempts/" in path and not path.endswith("/claim")
    return is_of_attempt or path == f"{WORKERS}check"


def test_join_tokens_do_not_claim(anonymous: TestClient, context: Context) -> None:
    headers = of_kind(context, TokenKind.JOIN)
    path = f"{API}/workers/attempts/{'0' * 26}/claim"
    assert anonymous.post(path, headers=headers).status_code == 403
    assert anonymous.post(f"{API}/workers/heartbeat", headers=headers).status_code == 403


def test_only_the_admin_handles_tokens(client: TestClient, admin: TestClient) -> None:
    body = {"name": "ci"}
    assert client.post(f"{API}/tokens", json=body).status_code == 403
    refused = client.get(f"{API}/tokens")
    assert refused.status_code == 403
    assert "admin.token of the server's state folder" in refused.json()["detail"]
    assert client.delete(f"{API}/tokens/{'0' * 26}").status_code == 403
    made = admin.post(f"{API}/tokens", json=body)
    assert made.status_code == 201, made.text
    secret = made.json()["secret"]
    assert secret.startswith("ty_api_")
    listed = admin.get(f"{API}/tokens").json()["items"]
    assert made.json()["id"] in {token["id"] for token in listed}
    assert all(token["secret"] is None for token in listed)
    headers = {"authorization": f"Bearer {secret}"}
    assert client.get(f"{API}/jobs", headers=headers).status_code == 200
    assert admin.delete(f"{API}/tokens/{made.json()['id']}").status_code == 204
    assert client.get(f"{API}/jobs", headers=headers).status_code == 401
    assert admin.delete(f"{API}/tokens/{made.json()['id']}").status_code == 404


def test_names_of_actors_cannot_be_taken(admin: TestClient, api_token: str) -> None:
    reserved = admin.post(f"{API}/tokens", json={"name": "scheduler"})
    assert reserved.status_code == 422
    assert reserved.json()["errors"][0]["pointer"] == "/name"
    assert admin.post(f"{API}/tokens", json={"name": "someone"}).status_code == 409


def test_tokens_expire(admin: TestClient, client: TestClient, clock: FakeClock) -> None:
    body = {"name": "short", "expires_in_seconds": 60}
    secret = admin.post(f"{API}/tokens", json=body).json()["secret"]
    headers = {"authorization": f"Bearer {secret}"}
    clock.advance(59)
    assert client.get(f"{API}/jobs", headers=headers).status_code == 200
    clock.advance(1)
    assert client.get(f"{API}/jobs", headers=headers).status_code == 401


def test_secrets_are_stored_as_hashes(context: Context, admin_token: str, api_token: str) -> None:
    with context.database.read() as connection:
        rows = connection.execute(select(tokens)).all()
    stored = " ".join(str(value) for row in rows for value in row)
    assert hash_token(admin_token) in stored
    for token in (admin_token, api_token):
        assert token not in stored
        assert token.split("_", 2)[2] not in stored  # the part after the kind may contain a `_`


def test_the_first_start_makes_one_admin_token(context: Context) -> None:
    path = ensure_admin_token(context)
    assert path is not None
    assert path.stat().st_mode & 0o777 == 0o600
    first = path.read_text()
    assert ensure_admin_token(context) is None
    assert path.read_text() == first
    assert [p.name for p in path.parent.glob("admin.token*")] == ["admin.token"]


def test_the_admin_token_can_be_replaced_but_not_revoked(
    admin: TestClient, context: Context
) -> None:
    (row,) = admin.get(f"{API}/tokens").json()["items"]
    assert admin.delete(f"{API}/tokens/{row['id']}").status_code == 409
    fresh = replace_admin_token(context).token
    assert admin.get(f"{API}/tokens").status_code == 401
    headers = {"authorization": f"Bearer {fresh}"}
    assert admin.get(f"{API}/tokens", headers=headers).status_code == 200


# ---- browsers ------------------------------------------------------------------------------------


def test_a_browser_logs_in_and_out(anonymous: TestClient, api_token: str) -> None:
    reply = anonymous.post(SESSION, json={"token": api_token}, headers=ORIGIN)
    assert reply.status_code == 201, reply.text
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie
    who = anonymous.get(SESSION).json()
    assert (who["name"], who["kind"]) == ("someone", "api")
    assert who["expires_at"] == reply.json()["expires_at"]
    assert anonymous.get(f"{API}/jobs").status_code == 200
    assert anonymous.delete(SESSION, headers=ORIGIN).status_code == 204
    assert anonymous.get(f"{API}/jobs").status_code == 401


def test_a_session_survives_neither_its_time_nor_its_token(
    anonymous: TestClient, admin: TestClient, clock: FakeClock
) -> None:
    made = admin.post(f"{API}/tokens", json={"name": "browser"}).json()
    anonymous.post(SESSION, json={"token": made["secret"]})
    assert anonymous.get(f"{API}/jobs").status_code == 200
    admin.delete(f"{API}/tokens/{made['id']}")
    assert anonymous.get(f"{API}/jobs").status_code == 401
    other = admin.post(f"{API}/tokens", json={"name": "browser"}).json()
    anonymous.post(SESSION, json={"token": other["secret"]})
    clock.advance(SESSION_LIFETIME / timedelta(seconds=1) - 1)
    assert anonymous.get(f"{API}/jobs").status_code == 200
    clock.advance(1)
    assert anonymous.get(f"{API}/jobs").status_code == 401


def test_a_login_code_works_once(anonymous: TestClient, admin: TestClient) -> None:
    code = admin.post(f"{API}/tokens", json={"name": "link", "kind": "login"}).json()["secret"]
    assert anonymous.post(SESSION, json={"code": code}).status_code == 201
    assert anonymous.get(SESSION).json()["kind"] == "admin"
    assert anonymous.post(SESSION, json={"code": code}).status_code == 401


def test_failed_logins_of_an_address_wait(
    app: FastAPI, anonymous: TestClient, api_token: str, clock: FakeClock
) -> None:
    for _ in range(10):
        assert anonymous.post(SESSION, json={"token": "ty_api_wrong"}).status_code == 401
    clock.advance(20)
    refused = anonymous.post(SESSION, json={"token": api_token})
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "40"
    assert "40 seconds" in refused.json()["detail"]
    other = TestClient(app, base_url=URL, client=("192.0.2.1", 5))
    assert other.post(SESSION, json={"token": api_token}).status_code == 201
    headers = {"authorization": f"Bearer {api_token}"}
    assert anonymous.get(f"{API}/jobs", headers=headers).status_code == 200
    clock.advance(40)
    assert anonymous.post(SESSION, json={"token": api_token}).status_code == 201


def test_a_login_code_expires(anonymous: TestClient, admin: TestClient, clock: FakeClock) -> None:
    code = admin.post(f"{API}/tokens", json={"name": "link", "kind": "login"}).json()["secret"]
    clock.advance(600)
    assert anonymous.post(SESSION, json={"code": code}).status_code == 401


@pytest.mark.parametrize("kind", [TokenKind.JOIN, TokenKind.NODE])
def test_a_machine_cannot_log_in(anonymous: TestClient, context: Context, kind: TokenKind) -> None:
    token = of_kind(context, kind)["authorization"].removeprefix("Bearer ")
    for body in ({"token": token}, {"code": token}):
        assert anonymous.post(SESSION, json=body).status_code == 401


@pytest.mark.parametrize(
    "origin",
    [None, "null", "http://evil.test", "https://127.0.0.1:8470", "http://127.0.0.1:8470.evil.test"],
)
def test_a_write_by_cookie_must_come_from_our_pages(
    anonymous: TestClient, api_token: str, origin: str | None
) -> None:
    anonymous.post(SESSION, json={"token": api_token})
    headers = {} if origin is None else {"origin": origin}
    refused = anonymous.post(f"{API}/jobs", json={}, headers=headers)
    assert refused.status_code == 403
    assert anonymous.get(f"{API}/jobs", headers=headers).json()["items"] == []
    assert anonymous.post(f"{API}/jobs", json={}, headers=ORIGIN).status_code == 201


def test_another_site_cannot_log_a_browser_in(anonymous: TestClient, api_token: str) -> None:
    body, headers = {"token": api_token}, {"origin": "http://evil.test"}
    assert anonymous.post(SESSION, json=body, headers=headers).status_code == 403


def test_behind_https_the_cookie_is_secure_and_the_origin_is_the_public_one(
    context: Context, api_token: str
) -> None:
    settings = context.settings.model_copy(update={"public_url": "https://yard.example/"})
    app = create_app(Context(settings, context.database, context.clock))
    with TestClient(app, base_url="https://inner.test") as browser:
        reply = browser.post(SESSION, json={"token": api_token})
        cookie = reply.headers["set-cookie"]
        assert cookie.startswith("__Host-trainyard_session=")
        assert "Secure" in cookie
        assert "Path=/" in cookie
        assert "Domain" not in cookie
        assert reply.headers["strict-transport-security"] == "max-age=31536000"
        planted = {"cookie": f"trainyard_session={cookie.partition('=')[2].partition(';')[0]}"}
        stranger = TestClient(app, base_url="https://inner.test")
        assert stranger.get(f"{API}/jobs", headers=planted).status_code == 401
        inner = {"origin": "https://inner.test"}
        assert browser.post(f"{API}/jobs", json={}, headers=inner).status_code == 403
        public = {"origin": "https://yard.example"}
        assert browser.post(f"{API}/jobs", json={}, headers=public).status_code == 201
        out = browser.delete(SESSION, headers=public)
        assert "Secure" in out.headers["set-cookie"]
        assert browser.get(f"{API}/jobs").status_code == 401


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:8470", True),
        ("127.8.9.1", True),
        ("localhost:8470", True),
        ("[::1]:8470", True),
        ("rebound.test:8470", False),
        ("192.0.2.1:8470", False),
        ("localhost.evil.test", False),
    ],
)
def test_without_a_public_url_only_pages_of_loopback_write(
    app: FastAPI, api_token: str, host: str, allowed: bool
) -> None:
    url = f"http://{host}"
    browser = TestClient(app, base_url=url)
    reply = browser.post(SESSION, json={"token": api_token}, headers={"origin": url})
    assert reply.status_code == (201 if allowed else 403), reply.text
    assert "strict-transport-security" not in reply.headers
    if not allowed:
        assert "TRAINYARD_PUBLIC_URL" in reply.json()["detail"]


def test_many_tokens_take_one_query_and_one_note_of_their_use(
    context: Context, clock: FakeClock
) -> None:
    given = [create_token(context, TokenRequest(name=f"user-{n}"))[1] for n in range(5)]
    with statements(context) as seen:
        find_holders(context, given)
    assert len([each for each in seen if not each.startswith("BEGIN")]) == 1, seen
    with statements(context) as seen:
        holders = find_holders(context, [*given, "ty_api_unknown", given[0]])
    # The second one finds who held a token that has ended.
    assert len([each for each in seen if not each.startswith("BEGIN")]) == 2, seen
    known = [each for each in holders if isinstance(each, Principal)]
    assert [each.name for each in known] == [*(f"user-{n}" for n in range(5)), "user-0"]
    assert isinstance(holders[5], UnauthenticatedError)
    assert all(each.unnoted_use for each in known)
    with statements(context) as seen:
        note_uses(context, [each.token_id or "" for each in known])
    # The first one skips tokens that other transactions hold.
    assert len([each for each in seen if not each.startswith("BEGIN")]) == 2, seen
    assert [each.last_used_at for each in list_tokens(context, after=None, limit=9)] == (
        [clock.now()] * 5
    )
    again = find_holders(context, given)
    assert not any(isinstance(each, Principal) and each.unnoted_use for each in again)
