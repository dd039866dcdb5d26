"""Logins through a real issuer, and attacks on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select

from server.api.auth.dependencies import SESSION_COOKIE
from server.api.issuer_logins.endpoints import LOGIN_COOKIE
from server.api.issuer_logins.pending import MAX_OF_ADDRESS
from server.core.context import Context
from server.core.people.identity_tables import REFRESH_TOKEN, identities, pending_logins
from server.core.people.user_tables import sessions, users
from tests.server.api.in_process import TestClient
from tests.server.api.sso.issuers import (
    API,
    BASE,
    CALLBACK,
    LOGIN,
    OIDC,
    Person,
    ShiftedClock,
    TestIssuer,
    query_of,
    with_query,
)

Persons = Callable[..., Person]


def test_a_login_opens_a_session_of_a_new_user(person: Persons, context: Context) -> None:
    ada = person("ada", email="ada@example.com", email_verified=True)
    page = ada.begin("/jobs?project=vision")
    asked = query_of(page)
    assert asked["code_challenge_method"] == "S256"
    assert {*asked} >= {"state", "nonce", "code_challenge"}
    address = ada.confirm(page)
    assert query_of(address)["iss"] == context.settings.oidc_issuer
    ended = ada.browser.get(address.removeprefix(BASE))
    assert (ended.status_code, ended.headers["location"]) == (302, "/jobs?project=vision")
    cookies = ended.headers.get_list("set-cookie")
    (new,) = [each for each in cookies if each.startswith(SESSION_COOKIE)]
    assert "HttpOnly" in new
    assert "SameSite=strict" in new
    assert any(each.startswith(f'{LOGIN_COOKIE}=""') for each in cookies)
    session = ada.session()
    assert (session["kind"], session["user"]["name"]) == ("issuer", "ada")
    assert session["user"]["email"] == "ada@example.com"
    assert session["user"]["issuer"] == context.settings.oidc_issuer
    assert not session["user"]["has_password"]


def test_a_second_login_finds_the_user_by_issuer_and_subject(
    person: Persons, real_issuer: TestIssuer, app: FastAPI
) -> None:
    first = person("bob")
    first.log_in()
    real_issuer.put("bob", preferred_username="robert")
    second = Person(app, "bob")
    second.log_in()
    second.at_issuer.close()
    assert second.session()["user"] == first.session()["user"]


def test_a_name_that_is_taken_or_illegal_gets_another(
    person: Persons, real_issuer: TestIssuer
) -> None:
    names = []
    for number, given in enumerate(["admin", "Eve@example.com", "eve", "../../x", "", None]):
        one = person(f"named-{number}")
        claims = {} if given is None else {"preferred_username": given}
        real_issuer.put(f"named-{number}", **claims)
        one.log_in()
        names.append(one.session()["user"]["name"])
    assert names == ["admin-2", "eve", "eve-2", "x", "user", "user-2"]


@pytest.mark.parametrize("verified", [None, False, "true"])
def test_an_address_joins_no_accounts(person: Persons, admin: TestClient, verified: object) -> None:
    made = admin.post(f"{API}/users", json={"name": "carla", "email": "carla@example.com"})
    claims: dict[str, Any] = {} if verified is None else {"email_verified": verified}
    thief = person("thief", email="carla@example.com", **claims)
    thief.log_in()
    user = thief.session()["user"]
    assert user["id"] != made.json()["user"]["id"]
    assert user["email"] is None


def test_a_verified_address_joins_no_accounts_either(person: Persons, admin: TestClient) -> None:
    made = admin.post(f"{API}/users", json={"name": "carla", "email": "carla@example.com"})
    other = person("other", email="carla@example.com", email_verified=True)
    other.log_in()
    assert other.session()["user"]["id"] != made.json()["user"]["id"]


# ---- attacks -------------------------------------------------------------------------------------


def test_a_state_of_another_browser_is_refused(person: Persons) -> None:
    """Login CSRF: an attacker sends the own callback address to a victim."""
    attacker, victim = person("mallory"), person("victim")
    address = attacker.confirm(attacker.begin())
    assert victim.end(address) == "/login?error=state"
    victim.begin()
    assert victim.end(address) == "/login?error=state"
    assert not victim.is_logged_in()
    assert attacker.end(address) == "/queue", "a stranger does not use it up"


@pytest.mark.parametrize("state", ["", "x" * 43, "\u00e9", "%00"])
def test_a_wrong_state_is_refused(person: Persons, state: str) -> None:
    ada = person("ada")
    address = with_query(ada.confirm(ada.begin()), state=state)
    assert ada.end(address) == "/login?error=state"
    assert not ada.is_logged_in()


def test_a_login_ends_once(person: Persons, context: Context) -> None:
    ada = person("ada")
    page = ada.begin()
    cookie = ada.browser.cookies[LOGIN_COOKIE]
    address = ada.confirm(page)
    assert ada.end(address) == "/queue"
    ada.browser.cookies.set(LOGIN_COOKIE, cookie)
    assert ada.end(address) == "/login?error=state"
    with context.database.read() as connection:
        assert len(connection.scalars(select(sessions.c.id)).all()) == 1
        assert connection.scalars(select(pending_logins.c.state_hash)).all() == []


def test_a_replayed_code_is_refused_by_the_issuer(person: Persons) -> None:
    ada, other = person("ada"), person("eve")
    address = ada.confirm(ada.begin())
    code = query_of(address)["code"]
    assert ada.end(address) == "/queue"
    # The code in another login: PKCE and the single use of the code refuse it.
    replayed = with_query(other.confirm(other.begin()), code=code)
    assert other.end(replayed) == "/login?error=invalid"
    assert not other.is_logged_in()


def test_a_stolen_code_is_refused_without_the_verifier(person: Persons) -> None:
    ada, thief = person("ada"), person("thief")
    stolen = query_of(ada.confirm(ada.begin()))["code"]
    address = with_query(thief.confirm(thief.begin()), code=stolen)
    assert thief.end(address) == "/login?error=invalid"
    assert not thief.is_logged_in()


@pytest.mark.parametrize("iss", ["https://other.example.com", "", None])
def test_a_response_of_another_issuer_is_refused(person: Persons, iss: str | None) -> None:
    ada = person("ada")
    address = with_query(ada.confirm(ada.begin()), iss=iss)
    assert ada.end(address) == "/login?error=invalid"
    assert not ada.is_logged_in()


def test_a_login_expires(person: Persons, clock: ShiftedClock) -> None:
    ada = person("ada")
    address = ada.confirm(ada.begin())
    clock.advance(601)
    assert ada.end(address) == "/login?error=state"


def test_a_cancelled_login_shows_no_text_of_the_issuer(person: Persons) -> None:
    ada = person("ada")
    address = ada.confirm(ada.begin(), person="")
    assert query_of(address)["error_description"] == "<b>cancelled</b>"
    assert ada.end(address) == "/login?error=denied"


@pytest.mark.parametrize(
    "path",
    [
        "//evil.example.com",
        "/\\evil.example.com",
        "https://evil.example.com",
        "/\t/evil.example.com",
        "evil",
        "javascript:alert(1)",
        "/" + "x" * 600,
    ],
)
def test_a_login_opens_pages_of_this_site_alone(anonymous: TestClient, path: str) -> None:
    refused = anonymous.get(LOGIN, params={"next": path}, follow_redirects=False)
    assert refused.status_code == 422
    assert "evil" not in refused.text


def test_a_session_is_new(person: Persons, app: FastAPI) -> None:
    """Session fixation: the login keeps no cookie that the browser had."""
    ada = person("ada")
    ada.browser.cookies.set(SESSION_COOKIE, "x" * 43)
    ended = ada.browser.get(ada.confirm(ada.begin()).removeprefix(BASE))
    (new,) = [
        each
        for each in ended.headers.get_list("set-cookie")
        if each.startswith(f"{SESSION_COOKIE}=")
    ]
    assert "x" * 43 not in new
    fixed = {"cookie": f"{SESSION_COOKIE}={'x' * 43}"}
    stranger = TestClient(app, base_url=BASE, headers=fixed)
    assert stranger.get(f"{API}/auth/session").status_code == 401


def test_no_secret_lies_in_the_database_or_a_log(
    person: Persons, context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    ada = person("ada")
    page = ada.begin()
    cookie, asked = ada.browser.cookies[LOGIN_COOKIE], query_of(page)
    with context.database.read() as connection:
        stored = repr(connection.execute(select(pending_logins)).all())
    for secret in (cookie, asked["state"], asked["nonce"]):
        assert secret not in stored
    address = ada.confirm(page)
    ada.end(address)
    with context.database.read() as connection:
        sealed = connection.scalar(select(identities.c.refresh_token))
        assert sealed is not None
        token = context.secrets.open_text(sealed, purpose=REFRESH_TOKEN)
    assert token
    assert token not in sealed
    for secret in (cookie, query_of(address)["code"], token):
        assert secret not in caplog.text


def test_logins_in_progress_of_an_address_are_bounded(app: FastAPI, real_issuer: object) -> None:
    del real_issuer
    flood = TestClient(app, base_url=BASE, client=("198.51.100.7", 5), follow_redirects=False)
    found = [flood.get(LOGIN).headers["location"] for _ in range(MAX_OF_ADDRESS + 1)]
    assert found[-1] == "/login?error=busy"
    assert "/login?error" not in found[-2]
    other = TestClient(app, base_url=BASE, client=("198.51.100.8", 5), follow_redirects=False)
    assert "/login?error" not in other.get(LOGIN).headers["location"]


def test_logins_in_progress_of_a_site_are_bounded(app: FastAPI, real_issuer: object) -> None:
    """A customer with a /56 has 256 addresses that count as one, enough for all places."""
    del real_issuer

    def begun(address: str) -> str:
        client = (address, 5)
        browser = TestClient(app, base_url=BASE, client=client, follow_redirects=False)
        return browser.get(LOGIN).headers["location"]

    found = [begun(f"2001:db8:0:{number:x}::1") for number in range(MAX_OF_ADDRESS + 1)]
    assert found[-1] == "/login?error=busy"
    assert "/login?error" not in found[-2]
    assert "/login?error" not in begun("2001:db8:1::1")


def test_a_disabled_user_cannot_log_in(person: Persons, admin: TestClient) -> None:
    ada = person("ada")
    ada.log_in()
    user_id = ada.session()["user"]["id"]
    disabled = admin.patch(f"{API}/users/{user_id}", json={"state": "disabled"})
    assert disabled.status_code == 200
    assert not ada.is_logged_in()
    assert ada.log_in() == "/login?error=disabled"
    assert not ada.is_logged_in()


# ---- an issuer that is down ----------------------------------------------------------------------


def test_sessions_go_on_without_the_issuer(
    person: Persons, real_issuer: TestIssuer, clock: ShiftedClock
) -> None:
    ada, bob = person("ada"), person("bob")
    ada.log_in()
    address = bob.confirm(bob.begin())
    clock.advance(3700)  # the metadata is read again
    bob.browser.get(LOGIN)
    with real_issuer.down():
        assert ada.is_logged_in()
        assert ada.browser.get(f"{API}/jobs").status_code == 200
        late = person_at(bob, clock)
        assert late == "/login?error=issuer_down"
    assert query_of(address)["code"]


def person_at(one: Person, clock: ShiftedClock) -> str:
    """Begin a login after the lifetime of the metadata; return where the browser is sent."""
    clock.advance(3700)
    return one.browser.get(LOGIN).headers["location"]


def test_a_login_that_began_before_the_issuer_went_down_gets_a_page(
    person: Persons, real_issuer: TestIssuer
) -> None:
    ada = person("ada")
    address = ada.confirm(ada.begin())
    with real_issuer.down():
        assert ada.end(address) == "/login?error=issuer_down"
    assert not ada.is_logged_in()


class TestSignUp:
    """Who gets a user by the first login."""

    @pytest.fixture(params=["invited", "groups"])
    def oidc(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        return {"oidc_sign_up": request.param}

    def test_others_get_no_user(self, person: Persons, context: Context) -> None:
        ada = person("ada", groups=["unknown-group"])
        assert ada.log_in() == "/login?error=sign_up"
        with context.database.read() as connection:
            assert connection.scalars(select(users.c.name)).all() == ["admin"]
            assert connection.scalars(select(identities.c.subject)).all() == []


def test_without_an_issuer_there_is_no_login(admin: TestClient, app: FastAPI) -> None:
    app.state.issuer = None
    for method, path in (("GET", LOGIN), ("GET", CALLBACK), ("POST", f"{OIDC}/logout")):
        assert admin.request(method, path).status_code == 404


def test_the_ways_to_log_in_name_the_issuer(anonymous: TestClient) -> None:
    ways = json.loads(anonymous.get(f"{API}/auth/ways").text)["ways"]
    assert ways[0] == {"kind": "issuer", "name": "single sign-on"}
    assert {each["kind"] for each in ways} == {"issuer", "token"}
