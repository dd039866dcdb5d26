"""Replies that no valid issuer sends: each is refused, and no session opens."""

from __future__ import annotations

import json
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from fastapi import FastAPI
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, OKPKey
from sqlalchemy import select

from server.api.sso import issuer_calls, issuer_keys
from server.api.sso.faults import LoginError
from server.api.sso.issuer_calls import MAX_BYTES, MAX_CALLS
from server.core.context import Context
from server.core.people.user_tables import users
from tests.server.api.in_process import TestClient
from tests.server.api.sso.issuers import BASE, OIDC, ShiftedClock
from tests.server.api.sso.wrong_issuer import (
    CLIENT_ID,
    WrongIssuer,
    is_logged_in,
    log_in,
    new_key,
    wrong_issuer,
)

OTHER = new_key("first")
"""A key of an attacker with the id of the issuer's key."""


@pytest.fixture
def issuer() -> Iterator[WrongIssuer]:
    with wrong_issuer() as issuer:
        yield issuer


@pytest.fixture
def issuer_url(issuer: WrongIssuer) -> str:
    return issuer.url


@pytest.fixture
def browser(app: FastAPI) -> TestClient:
    return TestClient(app, base_url=BASE, client=("192.0.2.1", 5), follow_redirects=False)


def test_a_valid_reply_opens_a_session(issuer: WrongIssuer, browser: TestClient) -> None:
    assert log_in(issuer, browser, session_state="of Keycloak") == "/queue"
    assert is_logged_in(browser)
    (form,) = issuer.forms
    assert form["authorization"].startswith("Basic ")
    assert len(form["code_verifier"]) == 64
    assert "client_secret" not in form


# Constants, so that the names of the tests do not change.
PAST, FUTURE = 1_600_000_000, 4_000_000_000


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"iss": "https://other.example.com"},
        {"iss": None},
        {"aud": "another-client"},
        {"aud": ["another-client"]},
        {"aud": None},
        {"aud": [CLIENT_ID, "another-client"]},
        {"aud": [CLIENT_ID, "another-client"], "azp": "another-client"},
        {"azp": "another-client"},
        {"exp": PAST},
        {"exp": None},
        {"exp": "never"},
        {"exp": float("nan")},
        {"iat": FUTURE},
        {"iat": None},
        {"nbf": FUTURE},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": "x" * 256},
        {"sub": "another"},
    ],
    ids=str,
)
def test_an_id_token_with_a_wrong_claim_is_refused(
    issuer: WrongIssuer, browser: TestClient, context: Context, claims: dict[str, Any]
) -> None:
    issuer.claims = claims
    assert log_in(issuer, browser) == "/login?error=invalid"
    assert not is_logged_in(browser)
    with context.database.read() as connection:
        assert connection.scalars(select(users.c.name)).all() == ["admin"]


@pytest.mark.parametrize(("seconds", "ends"), [(-30, True), (-90, False)])
def test_clocks_may_differ_by_a_minute(
    issuer: WrongIssuer, browser: TestClient, seconds: int, ends: bool
) -> None:
    issuer.claims = {"exp": int(time.time()) + seconds}
    assert (log_in(issuer, browser) == "/queue") is ends


def unsigned(claims: dict[str, Any]) -> str:
    parts = (json.dumps(each).encode() for each in ({"alg": "none"}, claims))
    return ".".join(urlsafe_b64encode(each).decode().rstrip("=") for each in parts) + "."


def by_secret_of_key(claims: dict[str, Any]) -> str:
    """Sign with HS256 and the public key as the secret."""
    key = OctKey.import_key(OTHER.as_pem(private=False).decode().replace("-----", ""))
    return jwt.encode({"alg": "HS256", "kid": "first"}, claims, key, algorithms=["HS256"])


def by_another_key(claims: dict[str, Any]) -> str:
    return jwt.encode({"alg": "RS256", "kid": "first"}, claims, OTHER, algorithms=["RS256"])


def by_embedded_key(claims: dict[str, Any]) -> str:
    header = {"alg": "RS256", "kid": "first", "jwk": OTHER.as_dict(private=False)}
    return jwt.encode(header, claims, OTHER, algorithms=["RS256"])


def with_illegal_algorithm(claims: dict[str, Any]) -> str:
    return jwt.encode({"alg": "RS512", "kid": "first"}, claims, OTHER, algorithms=["RS512"])


@pytest.mark.parametrize(
    "sign",
    [
        unsigned,
        by_secret_of_key,
        by_another_key,
        by_embedded_key,
        with_illegal_algorithm,
        lambda _: "no token",
        lambda _: "a.b.c",
        lambda _: "\u00e9",
    ],
)
def test_a_token_without_a_legal_signature_is_refused(
    issuer: WrongIssuer, browser: TestClient, sign: Callable[[dict[str, Any]], str]
) -> None:
    issuer.sign = sign
    assert log_in(issuer, browser) == "/login?error=invalid"
    assert not is_logged_in(browser)


@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (ECKey.generate_key("P-256", {"kid": "other"}), "ES256"),
        (OKPKey.generate_key("Ed25519", {"kid": "other"}), "EdDSA"),
        (new_key("other"), "PS256"),
    ],
    ids=["ES256", "EdDSA", "PS256"],
)
def test_legal_signatures(
    issuer: WrongIssuer, browser: TestClient, key: Any, algorithm: str
) -> None:
    issuer.keys = [key]
    issuer.sign = lambda claims: issuer.signed(claims, alg=algorithm)
    assert log_in(issuer, browser) == "/queue"


# ---- keys ----------------------------------------------------------------------------------------


def test_a_new_key_is_read_once_a_minute(
    issuer: WrongIssuer, browser: TestClient, clock: ShiftedClock
) -> None:
    assert log_in(issuer, browser) == "/queue"
    issuer.keys.append(new_key("second"))
    clock.advance(61)
    assert log_in(issuer, browser) == "/queue"
    assert issuer.requests.count("/keys") == 2
    clock.advance(61)
    issuer.sign = lambda claims: issuer.signed(claims, kid="unknown")
    assert [log_in(issuer, browser) for _ in range(5)] == ["/login?error=invalid"] * 5
    assert issuer.requests.count("/keys") == 3


def test_a_withdrawn_key_is_refused_after_an_hour(
    issuer: WrongIssuer, browser: TestClient, clock: ShiftedClock
) -> None:
    withdrawn = issuer.keys[0]
    assert log_in(issuer, browser) == "/queue"
    issuer.keys = [new_key("second")]
    issuer.sign = lambda claims: jwt.encode(
        {"alg": "RS256", "kid": withdrawn.kid}, claims, withdrawn, algorithms=["RS256"]
    )
    clock.advance(3601)
    assert log_in(issuer, browser) == "/login?error=invalid"


def test_keys_of_unknown_kinds_are_ignored(issuer: WrongIssuer, browser: TestClient) -> None:
    listed = [{"kty": "unknown"}, 7, {}, issuer.keys[0].as_dict(private=False)]
    issuer.replies["/keys"] = {"keys": listed}
    assert log_in(issuer, browser) == "/queue"


# ---- other replies -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "reply", "fault"),
    [
        ("/token", 500, "issuer_down"),
        ("/token", 400, "invalid"),
        ("/token", {"error": "<script>alert(1)</script>"}, "invalid"),
        ("/token", {"access_token": "a"}, "invalid"),
        ("/token", {"access_token": "a", "id_token": 7}, "invalid"),
        ("/token", [], "invalid"),
        ("/token", b"\xff", "invalid"),
        ("/token", b" " * (MAX_BYTES + 1), "invalid"),
        ("/keys", 503, "issuer_down"),
        ("/keys", {"keys": "none"}, "invalid"),
        ("/keys", b"[" * 100_000, "invalid"),
        ("/me", 401, "invalid"),
        ("/me", {"sub": "another"}, "invalid"),
        ("/me", b" " * (MAX_BYTES + 1), "invalid"),
        ("/.well-known/openid-configuration", 404, "invalid"),
        ("/.well-known/openid-configuration", {"issuer": "https://x"}, "invalid"),
        ("/.well-known/openid-configuration", b"<html>", "invalid"),
    ],
)
def test_a_reply_that_is_not_valid_opens_no_session(
    issuer: WrongIssuer, browser: TestClient, path: str, reply: Any, fault: str
) -> None:
    issuer.replies[path] = reply
    assert log_in(issuer, browser) == f"/login?error={fault}"
    assert not is_logged_in(browser)


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://other.example.com"},
        {"token_endpoint": "http://other.example.com/token"},
        {"jwks_uri": "file:///etc/passwd"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"token_endpoint": None},
    ],
)
def test_metadata_that_is_not_valid_is_refused(
    issuer: WrongIssuer, browser: TestClient, metadata: dict[str, Any]
) -> None:
    issuer.metadata = metadata
    assert log_in(issuer, browser) == "/login?error=invalid"


def test_a_redirect_of_the_issuer_is_not_followed(issuer: WrongIssuer, browser: TestClient) -> None:
    def redirect(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(307)
        handler.send_header("location", f"{issuer.url}/elsewhere")
        handler.send_header("content-length", "0")
        handler.end_headers()

    issuer.replies["/token"] = redirect
    assert log_in(issuer, browser) == "/login?error=invalid"
    assert "/elsewhere" not in issuer.requests


def test_a_slow_issuer_ends_the_login(
    issuer: WrongIssuer, browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part comes in time, and the whole does not."""

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-length", "1000")
        handler.end_headers()
        try:
            for _ in range(1000):
                handler.wfile.write(b" ")
                handler.wfile.flush()
                time.sleep(0.01)
        except OSError:
            return

    monkeypatch.setattr(issuer_calls, "CALL_SECONDS", 0.2)
    issuer.replies["/token"] = drip
    begin = time.monotonic()
    assert log_in(issuer, browser) == "/login?error=issuer_down"
    assert time.monotonic() - begin < 5


def test_slow_headers_end_the_login(
    issuer: WrongIssuer, browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.flush_headers()
        try:
            for _ in range(1000):
                handler.wfile.write(b"x-header: 1\r\n")
                handler.wfile.flush()
                time.sleep(0.01)
        except OSError:
            return

    monkeypatch.setattr(issuer_calls, "CALL_SECONDS", 0.2)
    issuer.replies["/token"] = drip
    begin = time.monotonic()
    assert log_in(issuer, browser) == "/login?error=issuer_down"
    assert time.monotonic() - begin < 5


def test_a_changed_key_without_id_is_read_again(
    issuer: WrongIssuer, browser: TestClient, clock: ShiftedClock
) -> None:
    def without_id(key: Any) -> dict[str, Any]:
        return {name: value for name, value in key.as_dict(private=False).items() if name != "kid"}

    def sign(claims: dict[str, Any]) -> str:
        return jwt.encode({"alg": "RS256"}, claims, issuer.keys[-1], algorithms=["RS256"])

    issuer.sign = sign
    issuer.replies["/keys"] = {"keys": [without_id(issuer.keys[-1])]}
    assert log_in(issuer, browser) == "/queue"
    issuer.keys = [new_key("second")]
    issuer.replies["/keys"] = {"keys": [without_id(issuer.keys[-1])]}
    clock.advance(61)
    assert log_in(issuer, browser) == "/queue"


def test_keys_that_cannot_be_read_are_requested_seldom(
    issuer: WrongIssuer, browser: TestClient
) -> None:
    issuer.replies["/keys"] = 503
    assert {log_in(issuer, browser) for _ in range(5)} == {"/login?error=issuer_down"}
    assert issuer.requests.count("/keys") == 1


@pytest.mark.parametrize(("age", "fault"), [(61, "invalid"), (3601, "busy")])
def test_no_login_waits_long_for_keys_that_another_one_reads(
    app: FastAPI,
    issuer: WrongIssuer,
    browser: TestClient,
    clock: ShiftedClock,
    monkeypatch: pytest.MonkeyPatch,
    age: int,
    fault: str,
) -> None:
    """Anyone can send a token with an unknown key, so this must not occupy the threads."""
    is_read, may_end = threading.Event(), threading.Event()

    def slow(handler: BaseHTTPRequestHandler) -> None:
        is_read.set()
        may_end.wait(4)
        handler.send_error(503)

    assert log_in(issuer, browser) == "/queue"
    clock.advance(age)
    monkeypatch.setattr(issuer_keys, "KEYS_WAIT_SECONDS", 0.1)
    issuer.replies["/keys"] = slow
    issuer.sign = lambda claims: issuer.signed(claims, kid="unknown")
    other = TestClient(app, base_url=BASE, client=("192.0.2.2", 5), follow_redirects=False)
    reader = threading.Thread(target=log_in, args=(issuer, other))
    reader.start()
    assert is_read.wait(4)
    begin = time.monotonic()
    assert log_in(issuer, browser) == f"/login?error={fault}"
    assert time.monotonic() - begin < 2
    may_end.set()
    reader.join()


def test_logout_tokens_that_are_not_valid_are_bounded(
    issuer: WrongIssuer, browser: TestClient
) -> None:
    path = f"{OIDC}/backchannel-logout"
    found = [browser.post(path, data={"logout_token": "x"}).status_code for _ in range(11)]
    assert found == [400] * 10 + [429]
    many = {f"field{number}": "x" for number in range(11)}
    assert browser.post(path, data=many).status_code in (400, 429)


def test_calls_at_once_are_bounded(app: FastAPI, issuer: WrongIssuer, browser: TestClient) -> None:
    calls = app.state.issuer._calls
    for _ in range(MAX_CALLS):
        assert calls._free.acquire(blocking=False)
    assert log_in(issuer, browser) == "/login?error=busy"
    with pytest.raises(LoginError, match="in progress"):
        app.state.issuer._keys.present(f"{issuer.url}/keys")
    assert issuer.requests == []
    for _ in range(MAX_CALLS):
        calls._free.release()
    assert log_in(issuer, browser) == "/queue"
