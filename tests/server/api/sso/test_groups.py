"""Groups of the issuer give roles, and take them away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cryptography.fernet import Fernet
from fastapi import FastAPI
from sqlalchemy import func, select, update

from server.api.sso.faults import GrantEndedError
from server.api.sso.groups import expire_groups
from server.api.sso.issuer import Issuer
from server.api.sso.refresh import GroupKeeper, refresh_due
from server.core.context import Context
from server.core.people.identity_tables import identities, user_groups
from server.core.people.user_tables import sessions, users
from tests.server.api.in_process import TestClient
from tests.server.api.sso.issuers import (
    API,
    BASE,
    ORIGIN,
    Person,
    ShiftedClock,
    TestIssuer,
    give,
    with_query,
)
from tests.server.members import OURS, THEIRS, add_projects

Persons = Callable[..., Person]
HALF_HOUR, HOUR, DAY = 1801, 3601, 24 * 3600 + 1
GROUPS = f"{API}/projects/{OURS}/groups"


@pytest.fixture
def oidc() -> dict[str, Any]:
    return {"oidc_operator_group": "operators", "oidc_admin_group": "admins"}


@pytest.fixture
def issuer(context: Context) -> Issuer:
    return Issuer(context)


@pytest.fixture(autouse=True)
def mapped(context: Context, admin: TestClient) -> None:
    """Two projects; the group `/research/vision` has a role in one."""
    add_projects(context)
    give(admin, "/research/vision", "member")


def test_a_group_gives_its_role(person: Persons, admin: TestClient) -> None:
    ada = person("ada", groups=["/research/vision", "/other"])
    ada.log_in()
    assert ada.projects() == {OURS: "member"}
    listed = ada.browser.get(GROUPS).json()["items"]
    assert [(each["group"], each["role"]) for each in listed] == [("/research/vision", "member")]
    assert give(admin, "/other", "viewer", project=THEIRS) == 204
    assert ada.projects() == {OURS: "member", THEIRS: "viewer"}
    assert give(admin, "/other", None, project=THEIRS) == 204
    assert ada.projects() == {OURS: "member"}, "a change made here holds at once"


def test_the_greatest_role_counts(person: Persons, admin: TestClient) -> None:
    ada = person("ada", groups=["/research/vision", "leads"])
    ada.log_in()
    put = admin.put(f"{API}/projects/{OURS}/members/ada", json={"role": "viewer"})
    assert put.status_code == 200
    assert ada.projects() == {OURS: "member"}
    assert give(admin, "leads", "maintainer") == 204
    assert ada.projects() == {OURS: "maintainer"}
    assert give(ada.browser, "x", "member") == 403, "without an origin"
    body = {"group": "mine", "role": "maintainer"}
    assert ada.browser.put(GROUPS, json=body, headers=ORIGIN).status_code == 204


def test_roles_of_groups_need_the_permission(person: Persons, admin: TestClient) -> None:
    ada = person("ada", groups=["/research/vision"])
    ada.log_in()
    body = {"group": "/research/vision", "role": "maintainer"}
    refused = ada.browser.put(GROUPS, json=body, headers=ORIGIN)
    assert refused.status_code == 403
    assert "maintainer" in refused.json()["detail"]
    hidden = ada.browser.put(f"{API}/projects/{THEIRS}/groups", json=body, headers=ORIGIN)
    assert hidden.status_code == 404 or "members:write" in hidden.json()["detail"]
    del admin


@pytest.mark.parametrize("group", ["", "x" * 201, "a\nb", 7, None])
def test_an_illegal_group_is_refused(admin: TestClient, group: object) -> None:
    assert admin.put(GROUPS, json={"group": group, "role": "member"}).status_code == 422
    assert len(admin.get(GROUPS).json()["items"]) == 1


def test_a_removed_group_loses_the_role_at_the_next_refresh(
    person: Persons, real_issuer: TestIssuer, context: Context, issuer: Issuer, clock: ShiftedClock
) -> None:
    ada = person("ada", groups=["/research/vision"])
    ada.log_in()
    real_issuer.put("ada", preferred_username="ada", groups=[])
    assert refresh_due(context, issuer) == 0, "not due yet"
    assert ada.projects() == {OURS: "member"}
    clock.advance(HALF_HOUR)
    assert refresh_due(context, issuer) == 1
    assert ada.projects() == {}
    assert ada.is_logged_in()
    real_issuer.put("ada", preferred_username="ada", groups=["/research/vision"])
    clock.advance(HALF_HOUR)
    assert refresh_due(context, issuer) == 1, "with the token of the refresh before"
    assert ada.projects() == {OURS: "member"}


def test_a_reply_without_groups_ends_roles_within_an_hour(
    person: Persons, real_issuer: TestIssuer, context: Context, issuer: Issuer, clock: ShiftedClock
) -> None:
    """Issuers may omit an empty claim, and a claim that a changed configuration no longer has."""
    ada = person("ada", groups=["/research/vision"])
    ada.log_in()
    real_issuer.put("ada", preferred_username="ada")
    clock.advance(HALF_HOUR)
    assert refresh_due(context, issuer) == 1
    assert ada.projects() == {OURS: "member"}, "one reply without the claim may be a fault"
    clock.advance(HALF_HOUR)
    assert ada.projects() == {}
    assert refresh_due(context, issuer) == 1
    assert ada.projects() == {}, "further replies do not prolong them"
    assert ada.is_logged_in()


def test_a_person_who_has_left_loses_sessions_and_tokens(
    person: Persons,
    real_issuer: TestIssuer,
    context: Context,
    issuer: Issuer,
    clock: ShiftedClock,
    app: FastAPI,
) -> None:
    ada, bob = person("ada", groups=["/research/vision"]), person("bob", groups=["operators"])
    headers = []
    for each in (ada, bob):
        each.log_in()
        made = each.browser.post(f"{API}/tokens", json={"name": "x"}, headers=ORIGIN)
        assert made.status_code == 201, made.text
        headers.append({"authorization": f"Bearer {made.json()['secret']}"})
    client = TestClient(app, base_url=BASE)
    again = client.post(f"{API}/tokens", json={"name": "y"}, headers=headers[0])
    headers.append({"authorization": f"Bearer {again.json()['secret']}"})
    real_issuer.remove("ada")
    clock.advance(HALF_HOUR)
    assert refresh_due(context, issuer) == 2
    assert not ada.is_logged_in()
    assert bob.is_logged_in()
    found = [client.get(f"{API}/projects", headers=each).status_code for each in headers]
    assert found == [401, 200, 401], "also a token that another token made"
    real_issuer.put("ada", preferred_username="ada", groups=["/research/vision"])
    ada.log_in()
    found = [client.get(f"{API}/projects", headers=each).status_code for each in headers]
    assert found == [200, 200, 200], "a lost reply of the issuer costs a login, no tokens"
    real_issuer.remove("ada")
    clock.advance(HALF_HOUR)
    assert refresh_due(context, issuer) == 2
    with context.database.read() as connection:
        left = select(func.count()).select_from(user_groups)
        assert connection.scalar(left.where(user_groups.c.group_name == "/research/vision")) == 0
        tokens = connection.scalars(select(identities.c.refresh_token)).all()
    assert sorted(each is None for each in tokens) == [False, True]


def test_groups_are_kept_for_a_day_while_the_issuer_is_down(
    person: Persons, real_issuer: TestIssuer, context: Context, issuer: Issuer, clock: ShiftedClock
) -> None:
    ada = person("ada", groups=["/research/vision", "operators"])
    ada.log_in()
    issuer.metadata()
    with real_issuer.down():
        clock.advance(HALF_HOUR)
        assert refresh_due(context, issuer) == 1
        assert refresh_due(context, issuer) == 0, "it pauses"
        assert ada.projects()[OURS] == "member"
        clock.advance(DAY)
        assert OURS not in ada.projects() or ada.projects()[OURS] != "member"
        assert ada.session()["user"]["role"] == "operator"
        assert expire_groups(context) == 1
        assert expire_groups(context) == 0
        assert ada.session()["user"]["role"] == "user"
        assert ada.projects() == {}
        assert ada.is_logged_in()
    assert refresh_due(context, issuer) == 1
    assert ada.projects()[OURS] == "member"


def test_a_login_during_a_refresh_keeps_its_token(
    person: Persons,
    real_issuer: TestIssuer,
    context: Context,
    issuer: Issuer,
    clock: ShiftedClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refresh with the token of an earlier login ends nothing of the later one."""
    ada = person("ada", groups=["/research/vision"])
    ada.log_in()
    clock.advance(HALF_HOUR)

    def log_in_meanwhile(*_: object, **__: object) -> None:
        ada.log_in()
        raise GrantEndedError

    monkeypatch.setattr(issuer, "refreshed", log_in_meanwhile)
    assert refresh_due(context, issuer) == 1
    assert ada.is_logged_in()
    assert ada.projects() == {OURS: "member"}
    del real_issuer


def test_disabled_users_are_not_refreshed(
    person: Persons, context: Context, issuer: Issuer, clock: ShiftedClock, admin: TestClient
) -> None:
    ada = person("ada", groups=["/research/vision"])
    ada.log_in()
    user = f"{API}/users/{ada.session()['user']['id']}"
    assert admin.patch(user, json={"state": "disabled"}).status_code == 200
    clock.advance(HALF_HOUR)
    assert refresh_due(context, issuer) == 0


def test_the_keeper_refreshes_in_a_thread(
    person: Persons, real_issuer: TestIssuer, context: Context, clock: ShiftedClock
) -> None:
    keeper = GroupKeeper(context)
    ada = person("ada", groups=["/research/vision"])
    ada.log_in()
    real_issuer.put("ada", preferred_username="ada", groups=[])
    clock.advance(HALF_HOUR)
    keeper.run()
    assert keeper._thread is not None
    keeper._thread.join()
    assert ada.projects() == {}
    assert keeper.expire() == 0


def test_a_wrong_key_file_ends_nothing(
    person: Persons, context: Context, issuer: Issuer, clock: ShiftedClock
) -> None:
    ada = person("ada", groups=["/research/vision"])
    ada.log_in()
    file, other = context.settings.key_file, Fernet.generate_key()
    right = file.read_bytes()
    clock.advance(HALF_HOUR)
    file.write_bytes(other + b"\n")
    assert refresh_due(context, issuer) == 1
    assert ada.is_logged_in()
    assert ada.projects() == {OURS: "member"}
    file.write_bytes(right)
    clock.advance(301)
    assert refresh_due(context, issuer) == 1, "it is tried again soon"
    assert ada.is_logged_in()


def test_a_login_without_refresh_token_keeps_the_former_one(
    person: Persons, real_issuer: TestIssuer, context: Context, issuer: Issuer, clock: ShiftedClock
) -> None:
    ada = person("ada", groups=["/research/vision"])
    ada.log_in()
    page = ada.begin()
    ada.end(ada.confirm(with_query(page, scope="openid profile groups", prompt=None)))
    real_issuer.remove("ada")
    clock.advance(HALF_HOUR)
    assert refresh_due(context, issuer) == 1
    assert not ada.is_logged_in()


def test_a_reply_without_groups_ends_roles_in_the_cluster_within_an_hour(
    person: Persons, real_issuer: TestIssuer, context: Context, issuer: Issuer, clock: ShiftedClock
) -> None:
    ada = person("ada", groups=["operators"])
    ada.log_in()
    real_issuer.put("ada", preferred_username="ada")
    for role in ("operator", "user"):
        clock.advance(HALF_HOUR)
        assert refresh_due(context, issuer) == 1
        assert ada.session()["user"]["role"] == role


def test_an_unlinked_user_loses_the_roles_of_groups(
    person: Persons, admin: TestClient, context: Context
) -> None:
    ada = person("ada", groups=["/research/vision", "operators"])
    ada.log_in()
    user_id = ada.session()["user"]["id"]
    assert admin.delete(f"{API}/users/{user_id}/identity").status_code == 204
    with context.database.read() as connection:
        assert connection.scalar(select(users.c.role).where(users.c.id == user_id)) == "user"
        assert connection.scalar(select(func.count()).select_from(user_groups)) == 0


def test_persons_of_another_issuer_have_left(
    person: Persons, context: Context, app: FastAPI
) -> None:
    ada = person("ada", groups=["/research/vision"])
    ada.log_in()
    moved = update(identities).values(issuer="https://former.example.org")
    with context.database.write() as connection:
        connection.execute(moved)
    GroupKeeper(context).expire()
    assert not ada.is_logged_in()
    del app


# ---- roles in the cluster ------------------------------------------------------------------------


def test_groups_of_the_settings_give_roles_in_the_cluster(
    person: Persons,
    real_issuer: TestIssuer,
    context: Context,
    issuer: Issuer,
    clock: ShiftedClock,
    admin: TestClient,
) -> None:
    ada = person("ada", groups=["operators", "admins"])
    ada.log_in()
    user = ada.session()["user"]
    assert user["role"] == "admin"
    join = ada.browser.post(f"{API}/tokens", json={"name": "x", "kind": "join"}, headers=ORIGIN)
    assert join.status_code == 201
    for role in ("user", "admin"):
        change = admin.patch(f"{API}/users/{user['id']}", json={"role": role})
        assert change.status_code == (409 if role == "user" else 200), "the groups decide"
    real_issuer.put("ada", preferred_username="ada", groups=["operators"])
    clock.advance(HALF_HOUR)
    refresh_due(context, issuer)
    assert ada.session()["user"]["role"] == "operator"
    listed = admin.get(f"{API}/tokens", params={"all": "true"}).json()["items"]
    assert "join" not in [each["kind"] for each in listed], "an operator admits no nodes"


def test_a_person_in_no_mapped_group_gets_no_user(
    person: Persons, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the setting that an operator forgot."""
    stranger = person("stranger", groups=["unmapped"])
    assert stranger.log_in() == "/login?error=sign_up"
    assert "no group with a role here; the issuer gave 'unmapped'" in caplog.text
    assert person("loner").log_in() == "/login?error=sign_up"
    assert "no claim 'groups'" in caplog.text
    assert "TRAINYARD_OIDC_SCOPES" in caplog.text


def test_groups_in_odd_forms(person: Persons, context: Context) -> None:
    odd = ["/research/vision", 7, None, {"a": 1}, "x" * 201, "", "a\nb", "/research/vision"]
    ada = person("ada", groups=odd)
    ada.log_in()
    with context.database.read() as connection:
        assert connection.scalars(select(user_groups.c.group_name)).all() == ["/research/vision"]
    one = person("one", groups="/research/vision")
    one.log_in()
    assert one.projects() == {OURS: "member"}


def test_a_session_of_a_login_is_marked(person: Persons, context: Context) -> None:
    ada = person("ada", groups=["/research/vision"])
    ada.log_in()
    with context.database.read() as connection:
        rows = connection.execute(select(sessions.c.by_issuer, sessions.c.issuer_session)).all()
    assert [(row.by_issuer, bool(row.issuer_session)) for row in rows] == [(True, True)]
