"""Imported runs: stored once, shown, drawn and compared, but never run."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from server.core.context import Context
from server.core.database.metric_and_log_tables import imports, metric_series
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.jobs.queries import job_view
from server.telemetry.goodput.queries import goodput_view
from tests.server.api.in_process import TestClient
from tests.server.harness import Harness

API = "/api/v1"
DIGEST = "sha256:" + "a" * 64


def body(points: int = 4, digest: str = DIGEST, **more: Any) -> dict[str, Any]:
    run = {"tool": "wandb", "run_id": "ab12", "digest": digest, "points": points}
    run |= {"summary": {"best": "NaN"}, "renamed": {"val_acc": "val acc"}}
    return {
        "run": run,
        "name": "calm-river",
        "tags": ["old"],
        "command": ["train.py", "--fast"],
        "arguments": {"lr": 0.01, "layers": [1, 2]},
        "state": "failed",
        "reason": "exit code 1",
        "start_time": 1735689600,
        "seconds": 3600,
        "last_step": 30,
        "loss": 0.5,
    } | more


def series(name: str, steps: list[int], values: list[Any]) -> dict[str, Any]:
    points = [[step, 1.7e9 + step, value] for step, value in zip(steps, values, strict=True)]
    return {"name": name, "points": points}


def imported(client: TestClient, **given: Any) -> str:
    """Import a run of four points, and return its job."""
    started = client.post(f"{API}/imports", json=body(**given))
    assert started.status_code == 201, started.text
    job_id = str(started.json()["job_id"])
    first = {"start": 0, "series": [series("train/loss", [0, 10, 20], [2.0, "NaN", 1.0])]}
    second = {"start": 3, "series": [series("train/loss", [30], [0.5])]}
    for batch, received in ((first, 3), (second, 4)):
        reply = client.post(f"{API}/imports/{job_id}/points", json=batch)
        assert (reply.status_code, reply.json().get("received")) == (200, received), reply.text
    return job_id


def test_it_is_a_job_that_has_ended_with_its_points(client: TestClient) -> None:
    job_id = imported(client)
    job = client.get(f"{API}/jobs/{job_id}").json()
    assert (job["state"], job["imported_from"], job["layout"]) == ("failed", "wandb", "imported")
    assert (job["verbs"], job["reason"]) == (["delete"], "imported from wandb: exit code 1")
    assert job["spec"]["program"]["arguments"] == {"lr": 0.01, "layers": [1, 2]}
    assert job["spec"]["program"]["command"] == ["train.py", "--fast"]
    assert job["imported"]["run"]["summary"] == {"best": "NaN"}
    assert job["imported"]["run"]["renamed"] == {"val_acc": "val acc"}
    assert (job["started_at"], job["ended_at"]) == ("2025-01-01T00:00:00Z", "2025-01-01T01:00:00Z")
    assert (job["progress"]["step"], job["progress"]["loss"]) == (30, 0.5)
    chart = client.get(f"{API}/jobs/{job_id}/metrics?names=train/loss").json()
    (curve,) = chart["curves"]
    assert (curve["steps"], curve["last"]) == ([0, 10, 20, 30], [2.0, None, 1.0, 0.5])
    assert sum(curve["non_finite"]) == 1
    compared = client.get(f"{API}/metrics/compare?jobs={job_id}&names=train/loss&x=seconds")
    assert compared.json()["jobs"][0]["curves"][0]["times"][-1] == 1.7e9 + 30
    (attempt,) = client.get(f"{API}/jobs/{job_id}/attempts").json()["items"]
    assert (attempt["cause"], attempt["outcome"], attempt["last_step"]) == ("import", "failed", 30)
    kinds = [each["kind"] for each in client.get(f"{API}/jobs/{job_id}/events").json()["items"]]
    assert kinds == ["imported"]
    assert client.get(f"{API}/jobs/{job_id}/logs").status_code == 200


def test_a_repeat_stores_nothing_twice_and_continues(client: TestClient, context: Context) -> None:
    job_id = imported(client)
    again = client.post(f"{API}/imports", json=body()).json()
    assert (again["job_id"], again["received"]) == (job_id, 4)
    batch = {"start": 0, "series": [series("train/loss", [0, 10, 20], [9.0, 9.0, 9.0])]}
    assert client.post(f"{API}/imports/{job_id}/points", json=batch).json()["received"] == 4
    gap = {"start": 9, "series": [series("train/loss", [40], [9.0])]}
    refused = client.post(f"{API}/imports/{job_id}/points", json=gap)
    assert refused.status_code == 409
    assert "legal: start=4" in refused.json()["detail"]
    assert imported(client, digest=DIGEST.replace("aa", "bb")) != job_id
    with context.database.read() as connection:
        assert len(connection.execute(select(imports.c.job_id)).all()) == 2


def test_an_incomplete_import_names_what_is_missing(client: TestClient) -> None:
    job_id = client.post(f"{API}/imports", json=body()).json()["job_id"]
    batch = {"start": 0, "series": [series("train/loss", [0], [1.0])]}
    client.post(f"{API}/imports/{job_id}/points", json=batch)
    assert "1 of 4 points" in client.get(f"{API}/jobs/{job_id}").json()["reason"]


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("stop", {}),
        ("cancel", {}),
        ("resume", {}),
        ("priority", {"priority": 3}),
        ("requests", {"kind": "save"}),
    ],
)
def test_what_only_a_job_that_runs_here_can_do_is_refused(
    client: TestClient, path: str, given: dict[str, Any]
) -> None:
    job_id = imported(client)
    refused = client.post(f"{API}/jobs/{job_id}/{path}", json=given)
    assert refused.status_code == 409, refused.text
    assert refused.json()["detail"]
    assert client.get(f"{API}/jobs/{job_id}/resume-options").status_code == 409
    resume = client.post(f"{API}/jobs/{job_id}/resume", json={"dry_run": True})
    assert "imported from wandb" in resume.json()["detail"]


def test_lists_and_counts_have_it_and_may_leave_it_out(
    client: TestClient, harness: Harness
) -> None:
    own = harness.submit(name="own")
    job_id = imported(client)

    def listed(query: str) -> list[str]:
        jobs = client.get(f"{API}/jobs?{query}").json()["items"]
        return [job["id"] for job in jobs]

    assert {*listed("")} == {own, job_id}
    assert listed("imported=true") == listed("search=river") == listed("tag=old") == [job_id]
    assert listed("imported=false") == [own]
    counts = client.get(f"{API}/jobs/counts?imported=true").json()["by_state"]
    assert (counts["failed"], counts["queued"]) == (1, 0)
    assert client.get(f"{API}/jobs?imported=true").json()["items"][0]["imported_from"] == "wandb"


def test_it_counts_in_no_goodput(client: TestClient, context: Context) -> None:
    job_id = imported(client)
    assert goodput_view(context, job_id, scope=SYSTEM_SCOPE).wall_milliseconds == 0
    today = context.now().date()
    cluster = client.get(f"{API}/goodput?from={today}&to={today}").json()
    assert cluster["failures"] == 0


def test_it_is_deleted_with_its_points(client: TestClient, context: Context) -> None:
    job_id = imported(client)
    assert client.delete(f"{API}/jobs/{job_id}").status_code == 204
    with context.database.read() as connection:
        for table in (imports, metric_series):
            assert connection.execute(select(table)).all() == []
    assert imported(client) != job_id


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"project": "none"}, "/project"),
        ({"seconds": -1}, "/seconds"),
        ({"start_time": 1e12}, "/start_time"),
        ({"state": "running"}, "/state"),
        ({"arguments": {"no name": 1}}, "/arguments/no name"),
        ({"last_step": -1}, "/last_step"),
    ],
)
def test_what_is_no_run_is_refused_at_its_field(
    client: TestClient, change: dict[str, Any], pointer: str
) -> None:
    refused = client.post(f"{API}/imports", json=body(**change))
    assert refused.status_code == 422, refused.text
    assert refused.json()["errors"][0]["pointer"].startswith(pointer)


def test_points_that_are_none_are_refused(client: TestClient) -> None:
    job_id = client.post(f"{API}/imports", json=body(points=2)).json()["job_id"]
    path = f"{API}/imports/{job_id}/points"
    for wrong in (
        series("no,name", [1], [1.0]),
        {"name": "loss", "points": [[1, 1.7e9]]},
        series("loss", [1], ["1.0"]),
        series("loss", [-1], [1.0]),
        series("loss", [1, 2, 3], [1.0, 1.0, 1.0]),  # more than the run has
        series("loss", [], []),
    ):
        assert client.post(path, json={"start": 0, "series": [wrong]}).status_code == 422
    assert client.post(path, json={"start": 0, "series": []}).status_code == 422


def test_an_own_job_takes_no_points(client: TestClient, harness: Harness, context: Context) -> None:
    own = harness.submit()
    batch = {"start": 0, "series": [series("loss", [1], [1.0])]}
    assert client.post(f"{API}/imports/{own}/points", json=batch).status_code == 404
    assert job_view(context, own, scope=SYSTEM_SCOPE).imported_from is None
