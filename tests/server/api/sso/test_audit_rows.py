"""Rows of the audit log for logins through the issuer."""

from __future__ import annotations

from collections.abc import Callable

from server.core.context import Context
from tests.server.api.in_process import TestClient
from tests.server.api.sso.issuers import CALLBACK, OIDC, ORIGIN, Person
from tests.server.api.sso.test_linking import GIVEN, password_user
from tests.server.core.audit.entries import emptied

Persons = Callable[..., Person]


def test_a_login_has_a_row_and_a_refused_one_has_none(person: Persons, context: Context) -> None:
    ada = person("ada")
    ada.log_in()
    (row,) = [each for each in emptied(context) if each["operation"] == "access_end_issuer_login"]
    assert (row["user"], row["outcome"], row["address"]) == ("ada", "changed", "192.0.2.1")
    assert row["session_id"]
    ada.browser.get(CALLBACK, params={"state": "x", "code": "y"})
    assert emptied(context) == []


def test_a_link_has_a_row_of_its_user(person: Persons, admin: TestClient, context: Context) -> None:
    ada = person("ada-at-issuer")
    password_user(ada, admin, "ada")
    begun = ada.browser.post(f"{OIDC}/link", json=GIVEN, headers=ORIGIN)
    emptied(context)
    ada.end(ada.confirm(begun.json()["url"]))
    (row,) = emptied(context)
    assert (row["operation"], row["user"]) == ("access_end_issuer_login", "ada")
