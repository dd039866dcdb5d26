"""Bad input: each is refused with the wrong place, and nothing is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from server.api.http.paging import encode
from server.app.factory import create_app
from server.core.context import Context
from server.core.database.engine import Database
from server.core.database.tables import events, jobs
from tests.server.api.in_process import TestClient
from tests.server.harness import Harness

API = "/api/v1"
JOBS = f"{API}/jobs"
JSON = {"content-type": "application/json"}
DEEP = "[" * 100_000

Place = str


def stored(context: Context) -> int:
    """Return how many jobs and events the database holds."""
    with context.database.read() as connection:
        counts = [connection.scalar(select(func.count()).select_from(t)) for t in (jobs, events)]
    return sum(count or 0 for count in counts)


def pointers(response: Any) -> set[str]:
    """Check that a response is a problem document, and return its pointers."""
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == response.status_code
    assert problem["title"]
    assert problem["detail"]
    assert problem["request_id"] == response.headers["x-request-id"]
    return {error["pointer"] for error in problem["errors"]}


BAD_SPECS = (
    ('{"training": {"lr": 1}}', "/training/lr"),
    ('{"surprise": 1}', "/surprise"),
    ('{"training": {"steps": "60"}}', "/training/steps"),
    ('{"training": {"steps": true}}', "/training/steps"),
    ('{"model": {"dropout": NaN}}', "/model/dropout"),
    ('{"optimizer": {"lr": Infinity}}', "/optimizer/lr"),
    ('{"optimizer": {"lr": -Infinity}}', "/optimizer/lr"),
    ('{"optimizer": {"lr": 1e999}}', "/optimizer/lr"),
    ('{"training": {"steps": NaN}}', "/training/steps"),
    ('{"training": {"seed": 1e400}}', "/training/seed"),
    ('{"parallelism": {"dp_shard": 3}, "resources": {"world_size": 4}}', "/parallelism/dp_shard"),
    ('{"parallelism": {"dp_replicate": 0}}', "/parallelism/dp_replicate"),
    ('{"data": {"source": "text", "path": "data:../secret"}}', "/data/path"),
    ('{"data": {"source": "text", "path": "/etc/shadow"}}', "/data/path"),
    ('{"data": {"source": "text", "path": "elsewhere:books"}}', "/data/path"),
    ('{"data": {"source": "text", "path": "http://10.0.0.1/x"}}', "/data/path"),
    ('{"data": {"source": "text", "path": "data:a\\u0000b"}}', "/data/path"),
    ('{"data": {"source": "text"}}', "/data/path"),
    ('{"checkpoint": {"root": "elsewhere"}}', "/checkpoint/root"),
    ('{"name": "a\\u0007b"}', "/name"),
    ('{"name": "a\\nb"}', "/name"),
    ('{"name": "a\\u0000b"}', "/name"),
    ('{"name": "' + "x" * 81 + '"}', "/name"),
    ('{"description": "a\\u001bb"}', "/description"),
    ('{"description": "a\\u0000b"}', "/description"),
    ('{"tags": ["ok", "not ok"]}', "/tags/1"),
    ('{"env": {"TRAINYARD_URL": "x"}}', "/env"),
    ('{"env": {"A": "a\\u0000b"}}', "/env/A"),
    ('{"checkpoint": {"staging_gib": 1.0}}', "/checkpoint/staging_gib"),
    ("[]", ""),
    ("null", ""),
    ("", ""),
    ("{", ""),
    (DEEP, ""),
    ('{"name": "\\ud800"}', ""),
    ('{"training": {"steps": 1' + "0" * 5000 + "}}", ""),
)


def test_bad_specs_are_refused_with_their_place(
    client: TestClient, context: Context, harness: Harness
) -> None:
    harness.add_node(slots=8)
    before = stored(context)
    for body, place in BAD_SPECS:
        for path in (JOBS, f"{JOBS}/plan"):
            response = client.post(path, content=body, headers=JSON)
            assert response.status_code == 422, (path, body[:200], response.text[:500])
            assert place in pointers(response), (path, body[:200], response.text[:500])
    assert stored(context) == before


def test_a_job_for_machines_to_come_is_planned_with_a_warning_and_waits(
    client: TestClient, context: Context, harness: Harness
) -> None:
    harness.add_node(slots=8)
    body = {"resources": {"world_size": 9}, "training": {"micro_batch_size": 1}}
    planned = client.post(f"{JOBS}/plan", json=body)
    assert planned.status_code == 200
    warned = {problem["pointer"] for problem in planned.json()["warnings"]}
    assert "/resources/world_size" in warned
    assert client.post(JOBS, json=body).json()["state"] == "queued"
    before = stored(context)
    body["resources"]["world_size"] = 16_385
    body["training"] |= {"global_batch_size": 16_385}
    for path in (JOBS, f"{JOBS}/plan"):
        refused = client.post(path, json=body)
        assert refused.status_code == 422
        assert "/resources/world_size" in pointers(refused)
    assert stored(context) == before


def test_every_problem_of_a_spec_is_named_at_once(client: TestClient) -> None:
    body = {"model": {"dropout": 2}, "training": {"steps": 0}, "extra": 1}
    assert pointers(client.post(JOBS, json=body)) == {"/model/dropout", "/training/steps", "/extra"}


def test_a_body_of_nonsense_gets_no_endless_answer(client: TestClient) -> None:
    body = {f"unknown{number}": 1 for number in range(9_000)}
    response = client.post(JOBS, json=body)
    assert response.status_code == 422
    assert len(response.json()["errors"]) == 50
    assert response.json()["detail"].endswith("; and 8,950 more problems")
    assert len(response.content) < 20_000


@pytest.mark.parametrize(
    ("body", "place", "said"),
    [
        (json.dumps({str(n): 1 for n in range(10_001)}), "", "10,000 keys and list items"),
        (json.dumps({"tags": ["x"] * 10_001}), "", "10,000 keys and list items"),
        ('{"env": ' * 40 + "1" + "}" * 40, "/env" * 32, "32 levels"),
        ('{"tags": ' + "[" * 40 + "]" * 40 + "}", "/tags" + "/0" * 31, "32 levels"),
        ('{"name": "a", "name": "b"}', "/name", "key='name' is given twice"),
        ('{"training": {"steps": 1, "seq_len": 8, "steps": 1}}', "/training/steps", "'steps'"),
        ('{"env": {"A~/B": "1", "A~/B": "2"}}', "/env/A~0~1B", "'A~/B'"),
        ('{"training": {"steps": 1, "steps": 2}, "training": {}}', "/training", "'training'"),
        ('{"n": 1' + "0" * 5000 + ', "lr": 1, "lr": 2}', "/lr", "'lr'"),
    ],
)
def test_a_body_has_bounds_and_no_key_twice(
    client: TestClient, context: Context, body: str, place: str, said: str
) -> None:
    for path in (JOBS, f"{JOBS}/plan"):
        response = client.post(path, content=body, headers=JSON)
        assert response.status_code == 422, response.text[:300]
        (problem,) = response.json()["errors"]
        assert problem["pointer"] == place
        assert said in problem["detail"]
    assert stored(context) == 0


@pytest.mark.parametrize("path", ["session", "token", "invitation", "invitation/check"])
def test_a_login_of_a_megabyte_is_not_read(anonymous: TestClient, path: str) -> None:
    body = json.dumps({f"k{number}": 1 for number in range(4000)})
    assert len(body) > 32_768
    refused = anonymous.post(f"{API}/auth/{path}", content=body, headers=JSON)
    assert refused.status_code == 413
    assert "32,768 bytes" in refused.json()["detail"]


def test_values_of_the_environment_are_never_echoed(client: TestClient) -> None:
    body = {"env": {"API_KEY": "hunter2-" + "x" * 5000}}
    response = client.post(JOBS, json=body)
    assert response.status_code == 422
    assert "hunter2" not in response.text


# ---- bodies ------------------------------------------------------------------------------------


def test_a_spec_of_two_megabytes_is_too_large(client: TestClient, context: Context) -> None:
    body = json.dumps({"description": "x" * 2_000_000})
    response = client.post(JOBS, content=body, headers=JSON)
    assert response.status_code == 413
    assert pointers(response) == set()
    assert stored(context) == 0


def test_a_body_that_hides_its_length_is_cut_off(client: TestClient) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        yield b'{"description": "'
        while sent < 50_000_000:
            sent += 65_536
            yield b"x" * 65_536

    response = client.post(JOBS, content=endless(), headers=JSON)
    assert response.status_code == 413
    assert pointers(response) == set()


def test_reports_may_be_larger_but_not_endless(anonymous: TestClient) -> None:
    path = f"{API}/workers/attempts/{'0' * 26}/report"
    headers = {**JSON, "authorization": "Bearer ty_attempt_x"}
    two, five = b"x" * 2_000_000, b"x" * 5_000_000
    assert anonymous.post(path, content=two, headers=headers).status_code == 401
    assert anonymous.post(path, content=five, headers=headers).status_code == 413


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", None])
def test_only_json_is_read(client: TestClient, context: Context, media_type: str | None) -> None:
    headers = {} if media_type is None else {"content-type": media_type}
    response = client.post(JOBS, content=b"{}", headers=headers)
    assert response.status_code == 415
    assert pointers(response) == set()
    assert stored(context) == 0


@pytest.mark.parametrize(
    ("encoding", "status"), [("gzip", 415), ("br, gzip", 415), ("identity", 201)]
)
def test_encoded_bodies_are_not_taken_for_plain_ones(
    client: TestClient, encoding: str, status: int
) -> None:
    headers = {**JSON, "content-encoding": encoding}
    assert client.post(JOBS, content=b"{}", headers=headers).status_code == status


def test_bodies_that_may_be_left_out_may_be_left_out(client: TestClient) -> None:
    job_id = client.post(JOBS, json={}).json()["id"]
    assert client.post(f"{JOBS}/{job_id}/stop").json()["state"] == "stopped"


def test_reasons_hold_no_control_characters(client: TestClient) -> None:
    job_id = client.post(JOBS, json={}).json()["id"]
    for reason in ("a\0b", "a\x1b[2J"):
        response = client.post(f"{JOBS}/{job_id}/stop", json={"reason": reason})
        assert response.status_code == 422, reason
        assert pointers(response) == {"/reason"}


# ---- parameters --------------------------------------------------------------------------------


BAD_PARAMETERS = (
    ("/jobs?page_token=nonsense", "query/page_token"),
    ("/jobs?page_token=", "query/page_token"),
    ("/jobs?page_token=a%00b", "query/page_token"),
    (f"/jobs?page_token={encode('tokens', '0' * 26)}", "query/page_token"),
    (f"/jobs?page_token={encode('jobs', 7)}", "query/page_token"),
    (f"/jobs?page_token={encode('jobs', 'no id')}", "query/page_token"),
    (f"/jobs/{'0' * 26}/events?page_token={encode('events', 2**63)}", "query/page_token"),
    (
        f"/jobs/{'0' * 26}/checkpoints?page_token={encode('checkpoints', 'x')}",
        "query/page_token",
    ),
    ("/jobs?page_size=0", "query/page_size"),
    ("/jobs?page_size=201", "query/page_size"),
    ("/jobs?page_size=many", "query/page_size"),
    ("/jobs?state=asleep", "query/state/0"),
    ("/jobs?name=a%00b", "query/name"),
    ("/jobs?search=%01", "query/search"),
    ("/jobs?tag=a%00", "query/tag/0"),
    (f"/jobs/{'0' * 26}/metrics?max_points=0", "query/max_points"),
    (f"/jobs/{'0' * 26}/metrics?from_step=-1", "query/from_step"),
    (f"/jobs/{'0' * 26}/metrics?names=a%00", "query/names"),
    (f"/jobs/{'0' * 26}/metrics?attempt={10**30}", "query/attempt"),
    (f"/jobs/{'0' * 26}/logs?rank=-1", "query/rank"),
    (f"/jobs/{'0' * 26}/logs?limit=100000", "query/limit"),
    (f"/jobs/{'0' * 26}/logs/search?text=", "query/text"),
    ("/stream?job=no-id", "query/job"),
    ("/jobs?stat=running", "query/stat"),
    ("/jobs?page_size=5&page=2", "query/page"),
    (f"/jobs/{'0' * 26}?full=1", "query/full"),
    (f"/jobs/{'0' * 26}/metrics?max_point=5", "query/max_point"),
    ("/stream?jobs=x", "query/jobs"),
    ("/schema/job?v=2", "query/v"),
)


def test_bad_parameters_are_refused_with_their_place(client: TestClient) -> None:
    for path, place in BAD_PARAMETERS:
        response = client.get(API + path)
        assert response.status_code == 422, (path, response.text)
        assert pointers(response) == {place}, path


NOTHING = (
    f"/jobs/{'0' * 26}",
    f"/jobs/{'0' * 26}/attempts",
    f"/jobs/{'0' * 26}/events",
    f"/jobs/{'0' * 26}/requests",
    f"/jobs/{'0' * 26}/checkpoints",
    f"/jobs/{'0' * 26}/metrics",
    f"/jobs/{'0' * 26}/logs",
    f"/jobs/{'0' * 26}/logs/search?text=x",
    f"/jobs/{'0' * 26}/resume-options",
    f"/checkpoints/{'0' * 26}.a1.step-5",
    "/nothing",
    "/jobs/",
    "/jobs/..%2fsecret",
)


def test_what_is_not_there_is_not_found(client: TestClient) -> None:
    for path in NOTHING:
        response = client.get(API + path)
        assert response.status_code == 404, (path, response.text)
        assert pointers(response) == set()


def test_a_name_in_place_of_an_id_is_refused_with_the_way_to_the_id(client: TestClient) -> None:
    response = client.post(f"{JOBS}/own/resume", json={})
    assert response.status_code == 404
    wanted = "no job has the id 'own'; GET /api/v1/jobs?name=NAME finds the ids of a name"
    assert response.json()["detail"] == wanted


def test_csv_of_no_job_is_not_found(client: TestClient) -> None:
    response = client.get(f"{JOBS}/{'0' * 26}/metrics", headers={"accept": "text/csv"})
    assert response.status_code == 404


# ---- methods and the unforeseen ----------------------------------------------------------------


def test_a_wrong_method_is_refused_with_the_legal_ones(client: TestClient) -> None:
    response = client.put(JOBS)
    assert response.status_code == 405
    assert response.headers["allow"] == "GET, HEAD, OPTIONS, POST"
    assert pointers(response) == set()
    assert client.get(f"{JOBS}/plan").headers["allow"] == "OPTIONS, POST"
    assert client.request("TRACE", f"{JOBS}/{'0' * 26}").headers["allow"] == (
        "DELETE, GET, HEAD, OPTIONS"
    )


def test_options_names_the_methods_of_a_path(anonymous: TestClient) -> None:
    response = anonymous.options(f"{API}/auth/session")
    assert response.status_code == 204
    assert response.headers["allow"] == "DELETE, GET, HEAD, OPTIONS, POST"
    assert anonymous.options(f"{API}/nothing").status_code == 404


def test_head_is_get_without_its_body(client: TestClient) -> None:
    head, get = client.head(JOBS), client.get(JOBS)
    assert head.status_code == get.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == str(len(get.content))
    assert client.head(f"{API}/stream").headers["content-type"].startswith("text/event-stream")
    assert client.head(f"{JOBS}/{'0' * 26}").status_code == 404


def test_an_unforeseen_failure_is_a_problem_without_details(
    context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(context)

    @app.get("/fails")
    def fails() -> None:
        raise RuntimeError("the password is hunter2")

    response = TestClient(app, raise_server_exceptions=False).get("/fails")
    assert response.status_code == 500
    assert pointers(response) == set()
    assert "hunter2" not in response.text
    assert "hunter2" in caplog.text
    assert response.headers["x-request-id"] in caplog.text


def test_a_database_that_is_away_is_said_to_be(
    context: Context, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if context.database.is_sqlite:
        away = Database(f"sqlite:///{tmp_path}/missing/x.db")
    else:
        away = Database("postgresql://nobody:hunter2@127.0.0.1:1/x")
    client = TestClient(create_app(Context(context.settings, away, context.clock)))
    for path in (JOBS, "/readyz"):
        response = client.get(path, headers={"authorization": "Bearer ty_api_x"})
        assert response.status_code == 503
        assert response.headers["retry-after"]
        assert pointers(response) == set()
        assert "hunter2" not in response.text + caplog.text
    assert client.get("/healthz").status_code == 200


def test_a_request_id_that_is_given_is_kept(anonymous: TestClient) -> None:
    given = anonymous.get("/healthz", headers={"x-request-id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    forged = anonymous.get("/healthz", headers={"x-request-id": "a b"})
    assert forged.headers["x-request-id"] != "a b"
