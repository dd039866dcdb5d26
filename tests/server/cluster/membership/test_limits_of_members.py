"""Limits of members over REST: who sets them, what is refused, and what the list shows."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from server.core.context import Context
from server.core.database.tables import events
from tests.server.api.conftest import BASE_URL, admin, admin_token, anonymous, app  # noqa: F401
from tests.server.api.in_process import TestClient
from tests.server.cluster.membership.test_members import API, Client, as_user  # noqa: F401
from tests.server.harness import Harness
from tests.server.members import OURS, add_user
from tests.server.user_limits import act_as, submit_ours
from trainyard.protocol.user_accounts.views import ClusterRole

MEMBER = f"{API}/projects/{OURS}/members/bob"
LIMITS = f"{API}/projects/{OURS}/limits"


@pytest.fixture
def maintainer(as_user: Client, context: Context) -> TestClient:  # noqa: F811
    """A maintainer of our project, in which bob is a member, with at most 16 slots."""
    ada = as_user(add_user(context, "ada", {OURS: "maintainer"}))
    add_user(context, "bob", {OURS: "member"})
    root = as_user(add_user(context, "eve", cluster=ClusterRole.OPERATOR))
    assert root.patch(f"{API}/projects/{OURS}", json={"max_slots": 16}).status_code == 200
    return ada


def limits_of(client: TestClient, user: str = "bob") -> list[int | None]:
    """Return the limits in force: slots and jobs."""
    items = client.get(f"{API}/projects/{OURS}/members").json()["items"]
    (view,) = (each for each in items if each["user"] == user)
    return [view["effective_max_slots"], view["effective_max_running"]]


def test_an_own_limit_replaces_that_of_the_project(
    maintainer: TestClient, context: Context
) -> None:
    assert limits_of(maintainer) == [None, None]
    shown = maintainer.patch(LIMITS, json={"max_slots": 8, "max_running": 4}).json()
    assert (shown["member_max_slots"], shown["member_max_running"]) == (8, 4)
    assert limits_of(maintainer) == [8, 4]
    put = maintainer.put(MEMBER, json={"role": "member", "max_slots": 16}).json()
    assert (put["max_slots"], put["max_running"]) == (16, None)
    assert limits_of(maintainer) == [16, 4]
    maintainer.put(MEMBER, json={"role": "viewer"})
    assert limits_of(maintainer) == [16, 4], "absent limits stay"
    maintainer.patch(LIMITS, json={"max_running": None})
    assert limits_of(maintainer) == [16, None]
    maintainer.put(MEMBER, json={"role": "viewer", "max_slots": None})
    assert limits_of(maintainer) == [8, None]
    maintainer.put(MEMBER, json={"role": "viewer", "max_slots": None})
    with context.database.read() as connection:
        query = select(events.c.message).where(events.c.kind == "limits_changed")
        messages = connection.scalars(query.order_by(events.c.id)).all()
    assert messages == [
        "Limits of each user in ours: 8 slots and 4 running jobs, before none",
        "Limits of bob in ours: 16 slots, before none",
        "Limits of each user in ours: 8 slots, before 8 slots and 4 running jobs",
        "Limits of bob in ours: none, before 16 slots",
    ]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (
            {"max_slots": 17},
            "/max_slots: max_slots=17 is above the max_slots of the project; legal: 0 to 16",
        ),
        ({"max_slots": -1}, "/max_slots"),
        ({"max_running": 10**7}, "/max_running"),
        ({"max_slots": "many"}, "/max_slots"),
        ({"slots": 1}, "/slots"),
    ],
)
def test_a_wrong_limit_is_refused_and_stores_nothing(
    maintainer: TestClient, harness: Harness, body: dict[str, Any], error: str
) -> None:
    before = harness.dump()
    for reply in (
        maintainer.patch(LIMITS, json=body),
        maintainer.put(MEMBER, json={"role": "viewer"} | body),
    ):
        assert (reply.status_code, error in reply.text) == (422, True), reply.text
    assert harness.dump() == before


def test_a_limit_stays_when_the_quota_of_the_project_falls(
    maintainer: TestClient,
    as_user: Client,  # noqa: F811
    context: Context,
) -> None:
    maintainer.put(MEMBER, json={"role": "member", "max_slots": 16})
    root = as_user(add_user(context, "root", cluster=ClusterRole.ADMIN))
    root.patch(f"{API}/projects/{OURS}", json={"max_slots": 4})
    assert limits_of(maintainer) == [16, None]
    kept = maintainer.put(MEMBER, json={"role": "member", "max_running": 2})
    assert (kept.status_code, limits_of(maintainer)) == (200, [16, 2])


@pytest.mark.parametrize("role", ["viewer", "member", None])
def test_others_change_no_limits(
    maintainer: TestClient,
    as_user: Client,  # noqa: F811
    context: Context,
    role: str | None,
) -> None:
    del maintainer
    eva = as_user(add_user(context, "eva", {} if role is None else {OURS: role}))
    assert eva.patch(LIMITS, json={"max_slots": 1}).status_code == 403


def test_the_list_shows_the_use_of_each_member(maintainer: TestClient, harness: Harness) -> None:
    harness.add_node(slots=8)
    act_as(harness, "bob")
    submit_ours(harness, 2)
    submit_ours(harness, 4)
    submit_ours(harness, 4)
    assert harness.place() == 2
    items = maintainer.get(f"{API}/projects/{OURS}/members").json()["items"]
    use = {each["user"]: (each["held_slots"], each["running_jobs"]) for each in items}
    assert use == {"ada": (0, 0), "bob": (6, 2)}


def test_a_service_account_has_limits(maintainer: TestClient) -> None:
    accounts = f"{API}/projects/{OURS}/service-accounts"
    name = maintainer.post(accounts, json={"name": "nightly"}).json()["name"]
    path = f"{API}/projects/{OURS}/members/{name}"
    limited = maintainer.put(path, json={"role": "member", "max_running": 1})
    assert (limited.status_code, limits_of(maintainer, name)) == (200, [None, 1])
    assert maintainer.delete(f"{accounts}/{name}").status_code == 204


def test_a_what_if_names_the_limit_of_the_caller(maintainer: TestClient, harness: Harness) -> None:
    harness.add_node(slots=8)
    maintainer.patch(LIMITS, json={"max_slots": 1})
    own = {"role": "maintainer", "max_slots": 2}
    assert maintainer.put(f"{API}/projects/{OURS}/members/ada", json=own).status_code == 200
    spec = {"name": "tiny", "project": OURS, "resources": {"world_size": 4}}
    found = maintainer.post(f"{API}/queue/what-if", json=spec).json()
    reason = "needs 4, and its owner may hold 2 slots in project ours"
    assert (found["starts_now"], found["reason"]) == (False, reason)
    assert (found["expected_start_at"], found["unknown_because"]) == (None, reason)
    spec["resources"] = {"world_size": 2}
    assert maintainer.post(f"{API}/queue/what-if", json=spec).json()["starts_now"]
