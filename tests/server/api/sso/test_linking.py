"""Users are linked to identities: by themselves, or by an invitation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fastapi import FastAPI
from sqlalchemy import select

from server.core.context import Context
from server.core.people.identity_tables import identities
from server.core.people.user_tables import users
from tests.server.api.in_process import TestClient
from tests.server.api.sso.issuers import API, OIDC, ORIGIN, Person

Persons = Callable[..., Person]
GIVEN = {"password": "correct horse battery"}


def test_a_user_links_the_own_identity(
    person: Persons, admin: TestClient, app: FastAPI, context: Context
) -> None:
    ada = person("ada-at-issuer")
    user_id = password_user(ada, admin, "ada")
    begun = ada.browser.post(f"{OIDC}/link", json=GIVEN, headers=ORIGIN)
    assert begun.status_code == 200, begun.text
    assert ada.end(ada.confirm(begun.json()["url"])) == "/profile"
    assert ada.session()["kind"] == "password", "the session goes on"
    again = Person(app, "ada-at-issuer")
    again.log_in()
    again.at_issuer.close()
    assert again.session()["user"]["id"] == user_id
    with context.database.read() as connection:
        assert len(connection.scalars(select(identities.c.subject)).all()) == 1


def test_a_taken_identity_is_not_linked_again(person: Persons, admin: TestClient) -> None:
    owner = person("shared")
    owner.log_in()
    thief = person("thief")
    password_user(thief, admin, "bob")
    begun = thief.browser.post(f"{OIDC}/link", json=GIVEN, headers=ORIGIN)
    address = thief.confirm(begun.json()["url"], person="shared")
    assert thief.end(address) == "/profile?error=taken"


def test_an_identity_is_not_linked_after_the_session_has_ended(
    person: Persons, admin: TestClient
) -> None:
    ada = person("late")
    password_user(ada, admin, "ada")
    begun = ada.browser.post(f"{OIDC}/link", json=GIVEN, headers=ORIGIN)
    address = ada.confirm(begun.json()["url"])
    assert ada.browser.delete(f"{API}/auth/session", headers=ORIGIN).status_code == 204
    assert ada.end(address) == "/profile?error=ended"


def test_a_page_of_another_site_cannot_link(person: Persons, admin: TestClient) -> None:
    ada = person("ada")
    password_user(ada, admin, "ada")
    for headers in ({}, {"origin": "https://evil.example.com"}):
        assert ada.browser.post(f"{OIDC}/link", headers=headers).status_code == 403


def test_an_invitation_is_accepted_through_the_issuer(
    person: Persons, admin: TestClient, context: Context, app: FastAPI
) -> None:
    made = admin.post(f"{API}/users", json={"name": "invited", "role": "operator"}).json()
    ada = person("someone")
    begun = ada.browser.post(f"{OIDC}/invitation", json={"code": made["code"]}, headers=ORIGIN)
    assert begun.status_code == 200, begun.text
    assert made["code"] not in begun.json()["url"]
    address = ada.confirm(begun.json()["url"])
    assert ada.end(address) == "/jobs"
    user = ada.session()["user"]
    assert (user["id"], user["role"]) == (made["user"]["id"], "operator")
    check = ada.browser.post(
        f"{API}/auth/invitation/check", json={"code": made["code"]}, headers=ORIGIN
    )
    assert check.status_code == 401, "it is used up"
    again = Person(app, "someone")
    again.log_in()
    again.at_issuer.close()
    assert again.session()["user"]["id"] == user["id"]
    with context.database.read() as connection:
        assert connection.scalar(select(users.c.password).where(users.c.id == user["id"])) is None


def test_an_invitation_that_ends_meanwhile_links_nothing(
    person: Persons, admin: TestClient
) -> None:
    made = admin.post(f"{API}/users", json={"name": "invited"}).json()
    ada = person("someone")
    begun = ada.browser.post(f"{OIDC}/invitation", json={"code": made["code"]}, headers=ORIGIN)
    address = ada.confirm(begun.json()["url"])
    user = f"{API}/users/{made['user']['id']}"
    assert admin.post(f"{user}/invitation").status_code == 201
    assert ada.end(address) == "/login?error=ended"
    assert not ada.is_logged_in()


def test_a_reset_removes_an_identity_that_a_thief_linked(
    person: Persons, admin: TestClient
) -> None:
    thief = person("thief")
    user_id = password_user(thief, admin, "ada")
    begun = thief.browser.post(f"{OIDC}/link", json=GIVEN, headers=ORIGIN)
    assert thief.end(thief.confirm(begun.json()["url"])) == "/profile"
    made = admin.post(f"{API}/users/{user_id}/invitation").json()
    ada = person("ada")
    begun = ada.browser.post(f"{OIDC}/invitation", json={"code": made["code"]}, headers=ORIGIN)
    assert ada.end(ada.confirm(begun.json()["url"])) == "/jobs"
    assert ada.session()["user"]["id"] == user_id
    assert not thief.is_logged_in()
    thief.log_in()
    assert thief.session()["user"]["id"] != user_id


def password_user(one: Person, admin: TestClient, name: str) -> str:
    """Create a user with a password, and log the person's browser in; return the user's id."""
    made = admin.post(f"{API}/users", json={"name": name}).json()
    body = {"code": made["code"], **GIVEN}
    accepted = one.browser.post(f"{API}/auth/invitation", json=body, headers=ORIGIN)
    assert accepted.status_code == 201, accepted.text
    return str(made["user"]["id"])


def test_a_link_needs_the_password(person: Persons, admin: TestClient) -> None:
    """Whoever has stolen a session does not know it."""
    ada = person("thief")
    password_user(ada, admin, "ada")
    link = f"{OIDC}/link"
    assert ada.browser.post(link, headers=ORIGIN).status_code == 422
    wrong = {"password": "wrong horse battery"}
    assert ada.browser.post(link, json=wrong, headers=ORIGIN).status_code == 401
    assert ada.browser.post(link, json=GIVEN, headers=ORIGIN).status_code == 200


def test_a_token_links_nothing(person: Persons, admin: TestClient) -> None:
    """A leaked token must not become the whole account."""
    ada, thief = person("ada"), person("thief")
    password_user(ada, admin, "ada")
    made = ada.browser.post(f"{API}/tokens", json={"name": "x"}, headers=ORIGIN).json()
    opened = thief.browser.post(
        f"{API}/auth/session", json={"token": made["secret"]}, headers=ORIGIN
    )
    assert opened.status_code == 201
    for method in ("POST", "DELETE"):
        body = GIVEN if method == "POST" else None
        refused = thief.browser.request(method, f"{OIDC}/link", json=body, headers=ORIGIN)
        assert refused.status_code == 409, refused.text


@pytest.mark.parametrize("by_admin", [True, False])
def test_an_unlinked_identity_logs_in_no_more(
    person: Persons, admin: TestClient, app: FastAPI, by_admin: bool
) -> None:
    ada, thief = person("ada"), person("thief")
    user_id = password_user(ada, admin, "ada")
    begun = ada.browser.post(f"{OIDC}/link", json=GIVEN, headers=ORIGIN)
    assert ada.end(ada.confirm(begun.json()["url"], person="thief")) == "/profile"
    thief.log_in()
    assert thief.session()["user"]["id"] == user_id
    made = thief.browser.post(f"{API}/tokens", json={"name": "x"}, headers=ORIGIN).json()
    if by_admin:
        assert admin.delete(f"{API}/users/{user_id}/identity").status_code == 204
        assert admin.delete(f"{API}/users/{user_id}/identity").status_code == 404
    else:
        assert ada.browser.delete(f"{OIDC}/link", headers=ORIGIN).status_code == 204
        assert ada.browser.delete(f"{OIDC}/link", headers=ORIGIN).status_code == 404
    assert ada.is_logged_in()
    assert not thief.is_logged_in()
    header = {"authorization": f"Bearer {made['secret']}"}
    assert TestClient(app, headers=header).get(f"{API}/auth/session").status_code == 401
    thief.log_in()
    assert thief.session()["user"]["id"] != user_id


def test_a_person_without_password_unlinks_nothing(person: Persons) -> None:
    ada = person("ada")
    ada.log_in()
    assert ada.browser.delete(f"{OIDC}/link", headers=ORIGIN).status_code == 409
