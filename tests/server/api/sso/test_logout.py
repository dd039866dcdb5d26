"""Logouts: by logout tokens of the issuer, and by its page."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from tests.server.api.in_process import TestClient
from tests.server.api.sso.issuers import BASE, OIDC, ORIGIN, ShiftedClock, query_of
from tests.server.api.sso.wrong_issuer import (
    CLIENT_ID,
    WrongIssuer,
    is_logged_in,
    log_in,
    wrong_issuer,
)

PAST = 1_600_000_000
"""Constant, so that the names of the tests do not change."""
LOGOUT = "http://schemas.openid.net/event/backchannel-logout"
BACKCHANNEL = f"{OIDC}/backchannel-logout"


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


def logout_token(issuer: WrongIssuer, **changes: Any) -> str:
    now = int(time.time())
    valid = {
        "iss": issuer.url,
        "aud": CLIENT_ID,
        "iat": now,
        "exp": now + 120,
        "jti": "once",
        "sub": "one",
        "events": {LOGOUT: {}},
    }
    claims = {name: each for name, each in (valid | changes).items() if each is not None}
    return issuer.signed(claims)


def test_a_logout_token_ends_sessions_once(
    issuer: WrongIssuer, browser: TestClient, app: FastAPI, clock: ShiftedClock
) -> None:
    assert log_in(issuer, browser) == "/queue"
    token = logout_token(issuer)
    anyone = TestClient(app, base_url=BASE)
    assert anyone.post(BACKCHANNEL, data={"logout_token": token}).status_code == 204
    assert not is_logged_in(browser)
    clock.advance(90)
    assert log_in(issuer, browser) == "/queue"
    assert anyone.post(BACKCHANNEL, data={"logout_token": token}).status_code == 204
    assert is_logged_in(browser), "the replayed token is older than the session"


def test_a_logout_of_a_session_ends_this_one(
    issuer: WrongIssuer, browser: TestClient, app: FastAPI
) -> None:
    other = TestClient(app, base_url=BASE, client=("192.0.2.2", 5), follow_redirects=False)
    for each, sid in ((browser, "a"), (other, "b")):
        issuer.claims = {"sid": sid}
        assert log_in(issuer, each) == "/queue"
    token = logout_token(issuer, sid="b")
    assert browser.post(BACKCHANNEL, data={"logout_token": token}).status_code == 204
    assert (is_logged_in(browser), is_logged_in(other)) == (True, False)


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://other.example.com"},
        {"aud": "another-client"},
        {"events": None},
        {"events": {}},
        {"events": {LOGOUT: True}},
        {"nonce": "x"},
        {"jti": None},
        {"iat": None},
        {"iat": PAST},
        {"exp": PAST},
        {"sub": None},
        {"sub": 7},
        {"sid": 7},
    ],
    ids=str,
)
def test_a_logout_token_that_is_not_valid_ends_nothing(
    issuer: WrongIssuer, browser: TestClient, changes: dict[str, Any]
) -> None:
    assert log_in(issuer, browser) == "/queue"
    token = logout_token(issuer, **changes)
    assert browser.post(BACKCHANNEL, data={"logout_token": token}).status_code == 400
    assert is_logged_in(browser)


def test_an_id_token_is_no_logout_token(issuer: WrongIssuer, browser: TestClient) -> None:
    assert log_in(issuer, browser) == "/queue"
    for form in ({"logout_token": issuer.id_token()}, {"logout_token": ""}, {}, {"token": "x"}):
        assert browser.post(BACKCHANNEL, data=form).status_code == 400
    assert is_logged_in(browser)


def test_a_logout_here_names_the_page_of_the_issuer(
    issuer: WrongIssuer, browser: TestClient
) -> None:
    assert log_in(issuer, browser) == "/queue"
    assert browser.post(f"{OIDC}/logout").status_code == 403, "a page of another site"
    reply = browser.post(f"{OIDC}/logout", headers=ORIGIN)
    assert reply.status_code == 200, reply.text
    page = reply.json()["url"]
    assert page.startswith(f"{issuer.url}/end?tenant=1&")
    assert query_of(page)["post_logout_redirect_uri"] == f"{BASE}/login"
    assert query_of(page)["client_id"] == CLIENT_ID
    assert not is_logged_in(browser)
