"""`GET /audit` and its export: filters, pages, permissions and lines."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI

from server.core.audit.export_lines import export
from server.core.audit.verification import known_digests, verify
from server.core.context import Context
from tests.server.api.accounts.people import API, URL, joined
from tests.server.api.in_process import TestClient
from tests.server.clock import FakeClock
from tests.server.core.audit.entries import add, emptied, sealed
from trainyard.protocol.audit_log.views import AuditOutcome

AUDIT = f"{API}/audit"


@pytest.fixture
def filled(context: Context, clock: FakeClock) -> Context:
    """Rows of two users, with a minute between them."""
    emptied(context)
    for user, operation, thing, outcome in (
        ("ada", "members_put", "projects/vision/members/eve", AuditOutcome.CHANGED),
        ("bob", "projects_change", "projects/vision", AuditOutcome.CHANGED),
        ("ada", "projects_get", "projects/vision-2", AuditOutcome.REFUSED),
        ("bob", "jobs_stop", "jobs/1", AuditOutcome.CHANGED),
    ):
        fields = {"user": user, "operation": operation, "object": thing, "outcome": outcome}
        sealed(context, 1, **fields, project="vision" if "vision" in thing else None)
        clock.advance(60)
    return context


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, [4, 3, 2, 1]),
        ({"user": "ada"}, [3, 1]),
        ({"operation": "jobs_stop"}, [4]),
        ({"object": "projects/vision"}, [2, 1]),
        ({"object": "projects/vision/members/eve"}, [1]),
        ({"object": "projects"}, []),
        ({"project": "vision"}, [3, 2, 1]),
        ({"outcome": "refused"}, [3]),
        ({"user": "bob", "outcome": "changed", "project": "vision"}, [2]),
        ({"since": "2026-01-01T00:02:00Z"}, [4, 3]),
        ({"until": "2026-01-01T00:02:00Z"}, [2, 1]),
        ({"since": "2026-01-01T00:01:00Z", "until": "2026-01-01T00:02:00Z"}, [2]),
        ({"token": "7" * 26}, []),
    ],
)
def test_filters(
    admin: TestClient, filled: Context, query: dict[str, Any], found: list[int]
) -> None:
    reply = admin.get(AUDIT, params=query)
    assert [row["seq"] for row in reply.json()["items"]] == found


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"since": "yesterday"}, "query/since"),
        ({"until": "2026-02-30T00:00:00Z"}, "query/until"),
        ({"outcome": "done"}, "query/outcome"),
        ({"user": "No Name"}, "query/user"),
        ({"page_token": "x"}, "query/page_token"),
        ({"who": "ada"}, "query/who"),
    ],
)
def test_a_wrong_filter_is_named(admin: TestClient, query: dict[str, str], field: str) -> None:
    reply = admin.get(AUDIT, params=query)
    assert (reply.status_code, reply.json()["errors"][0]["pointer"]) == (422, field)


def test_pages_end_and_repeat_nothing(
    admin: TestClient, context: Context, clock: FakeClock
) -> None:
    """Also of rows with the same time."""
    emptied(context)
    sealed(context, 25)
    clock.advance(1)
    sealed(context, 25)
    found, token = [], None
    while True:
        query = {"page_size": 7, **({"page_token": token} if token else {})}
        page = admin.get(AUDIT, params=query).json()
        found += [row["seq"] for row in page["items"]]
        token = page["next_page_token"]
        if token is None:
            break
    assert found == [*range(50, 0, -1)]


def test_the_order_is_that_of_the_numbers(admin: TestClient, context: Context) -> None:
    """A slow transaction stores its row after others with later times; `--follow` must see it."""
    emptied(context)
    sealed(context, 2)
    early = context.now() - timedelta(minutes=5)
    sealed(context, 1, at=early)
    assert [row["seq"] for row in admin.get(AUDIT).json()["items"]] == [3, 2, 1]
    first = admin.get(AUDIT, params={"page_size": 1}).json()
    query = {"page_size": 1, "page_token": first["next_page_token"]}
    assert [row["seq"] for row in admin.get(AUDIT, params=query).json()["items"]] == [2]


def test_rows_without_a_number_are_not_listed(admin: TestClient, context: Context) -> None:
    add(context, 3)
    assert admin.get(AUDIT).json()["items"] == []


def test_only_admins_read_it(app: FastAPI, admin: TestClient, client: TestClient) -> None:
    assert client.get(AUDIT).status_code == 403  # without scopes
    ada = joined(app, admin, "ada", role="operator")
    assert ada.browser.get(AUDIT).status_code == 403
    eve = joined(app, admin, "eve", role="admin")
    assert eve.browser.get(AUDIT).status_code == 200
    scoped = eve.token("reader", scopes=["audit:read"])
    reader = TestClient(app, base_url=URL, headers=scoped)
    assert reader.get(AUDIT).status_code == 200
    assert reader.get(f"{API}/jobs").status_code == 403


def test_the_export_has_rows_and_anchors_and_is_verified(
    admin: TestClient, context: Context, clock: FakeClock
) -> None:
    emptied(context)
    sealed(context, 3)
    clock.advance(timedelta(days=1).total_seconds())
    sealed(context, 2)
    reply = admin.get(f"{AUDIT}/export")
    assert reply.headers["content-type"].startswith("application/x-ndjson")
    lines = [json.loads(line) for line in reply.text.splitlines()]
    assert [line.get("seq", "anchor") for line in lines] == [1, 2, 3, 4, 5, "anchor"]
    assert lines[-1]["anchor"]["digest"] == lines[-2]["digest"]
    assert "status" not in lines[0]
    check = verify(context, known_digests(reply.content.splitlines()))
    assert (check.problems, check.compared) == ([], 6)
    assert reply.content == b"".join(export(context, 0))
    later = admin.get(f"{AUDIT}/export", params={"after": 4}).text.splitlines()
    assert [json.loads(line).get("seq") for line in later] == [5, None]
    assert admin.get(f"{AUDIT}/export", params={"after": 99}).text == ""
