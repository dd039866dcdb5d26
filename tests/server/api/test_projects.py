"""`/projects`: created, changed, listed and deleted, with an event each."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from server.core.context import Context
from server.core.database.tables import events
from tests.server.api.in_process import TestClient

API = "/api/v1"
PROJECTS = f"{API}/projects"


def test_a_project_is_created_changed_and_deleted(client: TestClient, context: Context) -> None:
    created = client.post(PROJECTS, json={"name": "vision", "weight": 2, "max_slots": 16})
    assert created.status_code == 201
    assert created.headers["location"] == f"{PROJECTS}/vision"
    shown = client.get(f"{PROJECTS}/vision").json()
    assert shown == created.json()
    assert (shown["weight"], shown["max_slots"], shown["created_by"]) == (2, 16, "someone")
    assert client.post(PROJECTS, json={"name": "vision"}).status_code == 409
    changed = client.patch(f"{PROJECTS}/vision", json={"max_slots": None})
    assert (changed.json()["max_slots"], changed.json()["weight"]) == (None, 2)
    client.patch(f"{PROJECTS}/vision", json={"weight": 2})  # as it is: no event
    assert client.delete(f"{PROJECTS}/vision").status_code == 204
    assert client.get(f"{PROJECTS}/vision").status_code == 404
    with context.database.read() as connection:
        stored = connection.execute(
            select(events.c.actor, events.c.message, events.c.data)
            .where(events.c.kind == "project_changed")
            .order_by(events.c.id)
        ).all()
    assert [row.message for row in stored] == [
        "Project vision was created: weight 2, at most 16 slots",
        "Project vision was changed: weight 2",
        "Project vision was deleted",
    ]
    assert {row.actor for row in stored} == {"someone"}
    data: list[dict[str, Any]] = [row.data for row in stored]
    assert [bool(each["before"]) for each in data] == [False, True, True]
    assert [bool(each["after"]) for each in data] == [True, True, False]
    assert data[1]["before"]["max_slots"] == 16


def test_what_is_no_setting_is_refused(client: TestClient) -> None:
    for body, pointer in (
        ({"name": "a b"}, "/name"),
        ({"name": "a", "weight": 0}, "/weight"),
        ({"name": "a", "max_slots": -1}, "/max_slots"),
        ({"name": "a", "gpu_hours": 1}, "/gpu_hours"),
        ({}, "/name"),
    ):
        refused = client.post(PROJECTS, json=body)
        assert refused.status_code == 422
        assert [problem["pointer"] for problem in refused.json()["errors"]] == [pointer]
    assert client.patch(f"{PROJECTS}/default", json={"name": "b"}).status_code == 422
    assert client.delete(f"{PROJECTS}/default").status_code == 409


def test_projects_are_listed_by_pages(client: TestClient) -> None:
    for name in ("vision", "audio"):
        client.post(PROJECTS, json={"name": name})
    first = client.get(PROJECTS, params={"page_size": 2}).json()
    assert [project["name"] for project in first["items"]] == ["audio", "default"]
    rest = client.get(PROJECTS, params={"page_token": first["next_page_token"]}).json()
    assert [project["name"] for project in rest["items"]] == ["vision"]
    assert rest["next_page_token"] is None


def test_jobs_are_listed_and_counted_by_project(client: TestClient) -> None:
    client.post(PROJECTS, json={"name": "vision"})
    for number in range(3):
        client.post(f"{API}/jobs", json={"name": f"v{number}", "project": "vision"})
    client.post(f"{API}/jobs", json={"name": "d"})
    client.post(f"{API}/jobs", json={"name": "tagged", "project": "vision", "tags": ["a"]})
    of_vision = {"project": "vision"}
    for order in ("newest", "active"):
        listed = client.get(f"{API}/jobs", params={**of_vision, "order": order}).json()["items"]
        assert {job["name"] for job in listed} == {"tagged", "v0", "v1", "v2"}
        assert {job["project"] for job in listed} == {"vision"}
    tagged = client.get(f"{API}/jobs", params={**of_vision, "tag": "a"}).json()["items"]
    assert [job["name"] for job in tagged] == ["tagged"]
    counts = client.get(f"{API}/jobs/counts", params=of_vision).json()["by_state"]
    assert counts["queued"] == 4
    refused = client.post(f"{API}/jobs/plan", json={"project": "none"})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["detail"] == "'none' is no project; legal: default, vision"
