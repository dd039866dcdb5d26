"""Jobs over HTTP: submit once, list in pages, view, act on, delete."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import func, select, update

from server.core.context import Context
from server.core.database.tables import jobs
from tests.server.api.in_process import TestClient
from tests.server.clock import FakeClock
from tests.server.harness import BRINGS_CODE, Harness
from trainyard.planner.results import Plan
from trainyard.protocol.rest.jobs import CancelReply, JobView, Progress
from trainyard.protocol.rest.resume import ResumeOptions, ResumeReply
from trainyard.protocol.states import JobState
from trainyard.run.failures import FailureReason

API = "/api/v1"
JOBS = f"{API}/jobs"


def submit(client: TestClient, **spec: Any) -> dict[str, Any]:
    """Submit a job and return its view."""
    response = client.post(JOBS, json=spec)
    assert response.status_code == 201, response.text
    view: dict[str, Any] = response.json()
    return view


def listed(client: TestClient, **query: Any) -> list[str]:
    """Return the names of all listed jobs, page by page."""
    names: list[str] = []
    token = None
    while True:
        page = {"page_size": 3} | query | ({"page_token": token} if token else {})
        reply = client.get(JOBS, params=page).json()
        assert len(reply["items"]) <= page["page_size"]
        names += [item["name"] for item in reply["items"]]
        token = reply["next_page_token"]
        if token is None:
            return names


# ---- submitting --------------------------------------------------------------------------------


@BRINGS_CODE
def test_a_submission_is_stored_and_answered_whole(client: TestClient) -> None:
    response = client.post(JOBS, json={"name": "one", "tags": ["a"], "env": {"MY_TOKEN": "x"}})
    assert response.status_code == 201
    view = JobView.model_validate_json(response.content)
    assert response.headers["location"] == f"{JOBS}/{view.id}"
    assert (view.name, view.state, view.attempt) == ("one", JobState.QUEUED, 0)
    assert view.spec.env == {"MY_TOKEN": "********"}
    assert view.verbs == ("stop", "cancel")
    assert view.retries_left == view.spec.retry.max_retries
    assert client.get(f"{JOBS}/{view.id}").json() == response.json()
    (event,) = client.get(f"{JOBS}/{view.id}/events").json()["items"]
    assert (event["kind"], event["actor"], event["job_id"]) == ("submitted", "someone", view.id)


@BRINGS_CODE
def test_no_answer_and_no_log_holds_a_secret_of_the_environment(
    client: TestClient, harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    harness.add_node()
    env = {"MY_TOKEN": "hunter2"}
    job_id = submit(client, env=env)["id"]
    harness.place()
    (supervisor,) = harness.claim_all(job_id)
    assert supervisor.reply.spec.env == env  # the ranks need it
    supervisor.train()
    supervisor.end("failed", FailureReason.OUT_OF_MEMORY)
    parts = ("", "/attempts", "/events", "/resume-options")
    answers = [
        client.get(JOBS),
        *(client.get(f"{JOBS}/{job_id}{part}") for part in parts),
        client.post(f"{JOBS}/{job_id}/resume", json={"dry_run": True}),
    ]
    assert {answer.status_code for answer in answers} == {200}
    refused = client.post(JOBS, json={"env": env, "resources": {"world_size": 4096}})
    assert refused.status_code == 422
    said = "".join(answer.text for answer in (*answers, refused))
    assert "hunter2" not in said + caplog.text


def test_the_same_key_submits_once(client: TestClient, admin: TestClient) -> None:
    spec, key = {"name": "one"}, {"idempotency-key": "k-1"}
    first = client.post(JOBS, json=spec, headers=key)
    again = client.post(JOBS, json={"name": "one", "tags": []}, headers=key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["id"] == again.json()["id"]
    assert listed(client) == ["one"]
    other = client.post(JOBS, json={"name": "two"}, headers=key)
    assert other.status_code == 422
    assert listed(client) == ["one"]
    assert admin.post(JOBS, json=spec, headers=key).json()["id"] != first.json()["id"]
    assert client.post(JOBS, json=spec, headers={"idempotency-key": "k\x7f"}).status_code == 422


def test_the_same_key_submits_once_also_at_the_same_time(
    client: TestClient, context: Context
) -> None:
    ids: list[str] = []

    def post() -> None:
        reply = client.post(JOBS, json={"name": "one"}, headers={"idempotency-key": "k"})
        ids.append(reply.json()["id"])

    threads = [threading.Thread(target=post) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 6
    assert len(set(ids)) == 1
    with context.database.read() as connection:
        assert connection.scalar(select(func.count()).select_from(jobs)) == 1


def test_a_plan_stores_nothing(client: TestClient, harness: Harness) -> None:
    harness.add_node(slots=4)
    response = client.post(f"{JOBS}/plan", json={"resources": {"world_size": 4}})
    assert response.status_code == 200
    plan = Plan.model_validate_json(response.content)
    assert (plan.world_size, plan.name) == (4, "FSDP 4")
    assert plan.fits is True  # the node's memory is known
    assert listed(client) == []


def test_few_steps_are_legal_and_the_job_shows_its_warmup(client: TestClient) -> None:
    job = submit(client, training={"steps": 5})
    assert job["spec"]["lr_schedule"]["warmup_steps"] == 5


def test_the_schema_is_that_of_the_spec(client: TestClient) -> None:
    schema = client.get(f"{API}/schema/job").json()
    assert "training" in schema["properties"]


# ---- listing -----------------------------------------------------------------------------------


def test_pages_hold_every_job_once_newest_first(client: TestClient, clock: FakeClock) -> None:
    names = []
    for number in range(8):
        clock.advance(1)
        names.append(submit(client, name=f"job-{number}")["name"])
    assert listed(client) == names[::-1]
    assert listed(client, page_size=8) == names[::-1]
    assert listed(client, page_size=200) == names[::-1]


def test_jobs_that_come_between_two_pages_move_nothing(
    client: TestClient, clock: FakeClock
) -> None:
    for number in range(4):
        clock.advance(1)
        submit(client, name=f"job-{number}")
    page = client.get(JOBS, params={"page_size": 2}).json()
    clock.advance(1)
    submit(client, name="late")
    rest = client.get(JOBS, params={"page_token": page["next_page_token"]}).json()
    assert [item["name"] for item in page["items"] + rest["items"]] == [
        "job-3",
        "job-2",
        "job-1",
        "job-0",
    ]


def test_filters(client: TestClient, context: Context, clock: FakeClock) -> None:
    ids = {}
    for name, tags in (("a", ["x"]), ("b", ["x", "y"]), ("A-long", []), ("b", ["xy"])):
        clock.advance(1)
        ids[name] = submit(client, name=name, tags=tags)["id"]
    client.post(f"{JOBS}/{ids['a']}/cancel")
    client.post(f"{JOBS}/{ids['A-long']}/stop")
    assert listed(client, tag="x") == ["b", "a"]
    assert listed(client, tag=["x", "y"]) == ["b"]
    assert listed(client, tag="x_") == []
    assert listed(client, tag="X") == []
    assert listed(client, name="b", page_size=1) == ["b", "b"]
    assert listed(client, search="a") == ["A-long", "a"]
    assert listed(client, search="_") == []
    assert listed(client, search="LONG a") == ["A-long"]
    assert listed(client, search="y b ") == ["b", "b"], "y is in tags"
    assert listed(client, search=f"x {ids['a'][:24]}") == ["a"]
    assert listed(client, search=" ") == ["b", "A-long", "b", "a"]
    assert listed(client, search=ids["a"][:24]) == ["a"]
    assert listed(client, state="queued") == ["b", "b"]
    assert listed(client, state=["cancelled", "stopped"], page_size=1) == ["A-long", "a"]
    assert listed(client, state=["running", "queued"], name="b", page_size=1) == ["b", "b"]
    with context.database.read() as connection:
        assert connection.scalar(select(func.count()).select_from(jobs)) == 4


def test_a_row_has_the_values_of_the_job(client: TestClient, context: Context) -> None:
    view = submit(client, name="one", tags=["x"])
    broken = Progress(steps=100, loss=float("nan"))
    with context.database.write() as connection:
        connection.execute(update(jobs).values(progress=broken))
    (row,) = client.get(JOBS).json()["items"]
    whole = client.get(f"{JOBS}/{view['id']}").json()
    assert row["progress"]["loss"] == "NaN"
    assert row == {name: whole[name] for name in row}


# ---- acting ------------------------------------------------------------------------------------


def test_stop_and_cancel(client: TestClient) -> None:
    one, other = submit(client)["id"], submit(client)["id"]
    stopped = client.post(f"{JOBS}/{one}/stop", json={"reason": "enough"})
    assert JobView.model_validate_json(stopped.content).state == JobState.STOPPED
    cancelled = client.post(f"{JOBS}/{other}/cancel")
    reply = CancelReply.model_validate_json(cancelled.content)
    assert reply.job.state == JobState.CANCELLED
    assert reply.lost
    again = client.post(f"{JOBS}/{one}/cancel")
    assert again.status_code == 409
    assert "stopped" in again.json()["detail"]


def test_a_job_of_a_later_version_is_listed_and_can_be_cancelled(
    client: TestClient, harness: Harness
) -> None:
    harness.add_node("a", slots=1)
    running = submit(client, name="running")["id"]
    assert harness.place() == 1
    queued = submit(client, name="queued")["id"]
    (supervisor,) = harness.claim_all(running)
    supervisor.train(3)
    for broken in (running, queued):
        harness.spoil_spec(broken)
    assert sorted(listed(client)) == ["queued", "running"]  # both were submitted at one time
    shown = client.get(f"{JOBS}/{running}")
    assert (shown.status_code, shown.json()["type"]) == (500, "/problems/unreadable")
    detail = f"the stored spec of job {running} cannot be read: /of_a_later_version"
    assert shown.json()["detail"].startswith(detail)
    for broken, lost in ((queued, "nothing: it has not started"), (running, "3 steps since ")):
        refused = client.post(f"{JOBS}/{broken}/cancel")
        assert (refused.status_code, refused.json()["type"]) == (500, "/problems/unreadable")
        assert refused.json()["detail"].startswith(f"cancelled, which loses {lost}")
    assert harness.job(queued).state == JobState.CANCELLED
    assert harness.job(running).state == JobState.STOPPING
    supervisor.end("cancelled")
    assert harness.job(running).state == JobState.CANCELLED
    for ended in (queued, running):
        assert client.delete(f"{JOBS}/{ended}").status_code == 204


def test_resume_compares_and_then_goes_on(client: TestClient, harness: Harness) -> None:
    harness.add_node(slots=4)
    job_id = submit(client, resources={"world_size": 2})["id"]
    client.post(f"{JOBS}/{job_id}/stop")
    options = client.get(f"{JOBS}/{job_id}/resume-options")
    sizes = [
        option.world_size for option in ResumeOptions.model_validate_json(options.content).options
    ]
    assert sizes == [1, 2, 3, 4]
    body = {"world_size": 4, "dry_run": True}
    dry = client.post(f"{JOBS}/{job_id}/resume", json=body)
    preview = ResumeReply.model_validate_json(dry.content)
    assert preview.preview.plan.world_size == 4
    assert preview.job.state == JobState.STOPPED
    wet = client.post(f"{JOBS}/{job_id}/resume", json=body | {"dry_run": False})
    reply = ResumeReply.model_validate_json(wet.content)
    assert reply.job.state == JobState.QUEUED
    assert reply.job.pending is not None
    assert reply.job.pending.layout.world_size == 4
    assert client.post(f"{JOBS}/{job_id}/resume", json=body).status_code == 409


def test_requests_need_a_running_job(client: TestClient) -> None:
    job_id = submit(client)["id"]
    asked = client.post(f"{JOBS}/{job_id}/requests", json={"kind": "save"})
    assert asked.status_code == 409
    assert client.get(f"{JOBS}/{job_id}/requests").json()["items"] == []
    nonsense = client.post(f"{JOBS}/{job_id}/requests", json={"kind": "dance"})
    assert nonsense.status_code == 422


def test_only_what_ended_can_be_removed(client: TestClient) -> None:
    job_id = submit(client)["id"]
    assert client.delete(f"{JOBS}/{job_id}").status_code == 409
    client.post(f"{JOBS}/{job_id}/cancel")
    assert client.delete(f"{JOBS}/{job_id}?checkpoints=burn").status_code == 422
    assert client.delete(f"{JOBS}/{job_id}").status_code == 204
    assert client.get(f"{JOBS}/{job_id}").status_code == 404


@pytest.mark.parametrize("listing", ["attempts", "events", "requests", "checkpoints"])
def test_what_belongs_to_a_job_is_listed_in_pages(client: TestClient, listing: str) -> None:
    job_id = submit(client)["id"]
    client.post(f"{JOBS}/{job_id}/stop")
    client.post(f"{JOBS}/{job_id}/resume")
    found: list[dict[str, Any]] = []
    token: str | None = None
    while True:
        query = {"page_size": 1} | ({"page_token": token} if token else {})
        page = client.get(f"{JOBS}/{job_id}/{listing}", params=query).json()
        found += page["items"]
        token = page["next_page_token"]
        if token is None:
            break
    whole = client.get(f"{JOBS}/{job_id}/{listing}").json()
    assert found == whole["items"]
    assert (len(found) >= 3) == (listing == "events")
