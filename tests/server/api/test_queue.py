"""`/queue`: the order, pages, expected starts, and forecasts of submissions."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, insert, select, update
from sqlalchemy.pool import QueuePool

from server.app.factory import create_app
from server.cluster.placement.forecast import (
    FORECAST_JOBS,
    NOT_SOON,
    TOO_FAR_BACK,
    TOO_LARGE,
    UNKNOWN_END,
    Forecast,
    forecast,
)
from server.core.context import Context
from server.core.database.tables import jobs
from server.jobs.jobs.service import set_priority, stop
from server.jobs.queue import forecaster as module
from server.jobs.queue.endpoints import NOT_CONSIDERED, NOT_YET
from server.jobs.queue.forecaster import FORECAST_KEPT, Forecaster
from tests.actors import ADA
from tests.server.api.in_process import TestClient
from tests.server.clock import FakeClock
from tests.server.harness import Harness
from trainyard.base.ids import make_id
from trainyard.protocol.rest.jobs import Progress

QUEUE = "/api/v1/queue"


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a forecast run all rounds, however slow the machine is."""
    monkeypatch.setattr(module, "FORECAST_SECONDS", math.inf)


def set_left(context: Context, job_id: str, seconds: float) -> None:
    """Give a running job a known pace, as its metrics do."""
    progress = Progress(step=1, steps=100, seconds_left=seconds)
    with context.database.write() as connection:
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(progress=progress))


def fill(context: Context, count: int, like: str) -> None:
    """Queue copies of a queued job behind it."""
    with context.database.write() as connection:
        row = connection.execute(select(jobs).where(jobs.c.id == like)).one()._asdict()
        copies = [
            row
            | {
                "id": make_id(milliseconds=number, entropy=like[-10:].encode()),
                "name": f"copy-{number}",
                "queued_at": row["queued_at"] + timedelta(milliseconds=1 + number // 2),
            }
            for number in range(count)
        ]
        connection.execute(insert(jobs), copies)


def pages(client: TestClient, size: int) -> list[list[dict[str, Any]]]:
    found, token = [], None
    while True:
        query = {"page_size": size} | ({"page_token": token} if token else {})
        reply = client.get(QUEUE, params=query).json()
        found.append(reply["items"])
        token = reply["next_page_token"]
        if token is None:
            return found


def test_the_queue_has_order_reason_and_expected_start(
    client: TestClient, context: Context, harness: Harness, clock: FakeClock
) -> None:
    harness.add_node(slots=2)
    runs, _ = harness.running(name="runs", resources={"world_size": 2})
    first = harness.submit(name="first", resources={"world_size": 2})
    clock.advance(60)
    harness.submit(name="second", resources={"world_size": 1})
    harness.submit(name="huge", resources={"world_size": 4})
    harness.place()
    entries = client.get(QUEUE).json()["items"]
    assert (entries[0]["position"], entries[0]["name"]) == (1, "first")
    assert {e["unknown_because"] for e in entries} == {UNKNOWN_END, TOO_LARGE}
    assert entries[0]["reason"] == "needs 2 slots, 0 free, 2 held by runs"
    set_left(context, runs, 600)
    clock.advance(FORECAST_KEPT.total_seconds())
    entries = {e["name"]: e for e in client.get(QUEUE).json()["items"]}
    starts = datetime.fromisoformat(entries["first"]["expected_start_at"])
    assert starts == clock.now() + timedelta(seconds=600)
    assert entries["first"]["unknown_because"] is None
    assert entries["second"]["expected_start_at"] is None, "the first one's end is not known"
    assert entries["huge"]["unknown_because"] == TOO_LARGE
    place = client.get(f"/api/v1/jobs/{first}/queue").json()
    assert place["entry"] == entries["first"]
    assert client.get(f"/api/v1/jobs/{runs}/queue").json() == {"entry": None}
    assert client.get(f"/api/v1/jobs/{'0' * 26}/queue").status_code == 404


def test_an_entry_names_the_job_before_which_it_is_to_be_backfilled(
    client: TestClient, context: Context, harness: Harness
) -> None:
    harness.add_node(slots=2)
    runs, _ = harness.running(name="runs", resources={"world_size": 1})
    set_left(context, runs, 600)
    harness.submit(name="large", resources={"world_size": 2})
    harness.clock.advance(1)
    short = harness.submit(name="short")
    harness.place()
    with context.database.write() as connection:
        known = update(jobs).where(jobs.c.id == short)
        connection.execute(known.values(lasts_seconds=60.0, lasts_on="cpu"))
    large, behind = client.get(QUEUE).json()["items"]
    assert (behind["backfilled_before"], behind["lasts_seconds"]) == ("large", 60.0)
    assert behind["expected_start_at"] == context.now().isoformat().replace("+00:00", "Z")
    assert (large["backfilled_before"], large["lasts_seconds"]) == (None, None)


@pytest.fixture
def open_connections(context: Context, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of connections in use at each forecast; a forecast takes a while."""
    found: list[int] = []

    def slow(*args: Any, **options: Any) -> Forecast:
        pool = context.database.engine.pool
        assert isinstance(pool, QueuePool)
        time.sleep(0.05)
        found.append(pool.checkedout())
        return forecast(*args, **options)

    monkeypatch.setattr(module, "forecast", slow)
    return found


def test_requests_that_come_together_share_a_forecast(
    context: Context, harness: Harness, clock: FakeClock, open_connections: list[int]
) -> None:
    harness.submit()
    harness.place()
    forecaster = Forecaster(context)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: forecaster.of_queue(), range(8)))
    assert [one is found[0] for one in found] == [True] * 8
    assert open_connections == [0]
    clock.advance(FORECAST_KEPT.total_seconds())
    assert forecaster.of_queue() is not found[0]
    clock.advance(-60)  # a clock set back keeps no forecast valid
    forecaster.of_queue()
    assert open_connections == [0, 0, 0]


def test_no_transaction_is_open_during_a_forecast(
    context: Context, harness: Harness, api_token: str, open_connections: list[int]
) -> None:
    first = harness.submit(name="first")
    harness.place()
    # Without the lifespan: the threads of an application use connections of their own.
    client = TestClient(
        create_app(context),
        base_url="http://127.0.0.1:8470",
        headers={"authorization": f"Bearer {api_token}"},
    )
    assert client.get(QUEUE).json()["items"][0]["unknown_because"] == TOO_LARGE
    assert client.get(f"/api/v1/jobs/{first}/queue").json()["entry"]["position"] == 1
    assert open_connections == [0], "both show one forecast"
    assert client.post(f"{QUEUE}/what-if", json={"name": "candidate"}).json()["position"] == 2
    assert open_connections == [0, 0]
    second = harness.submit(name="second")
    harness.place()
    entry = client.get(f"/api/v1/jobs/{second}/queue").json()["entry"]
    assert entry["unknown_because"] == NOT_YET


def test_a_forecast_ends_with_the_time_for_it(
    client: TestClient, context: Context, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.add_node(slots=1)
    runs, _ = harness.running(name="runs")
    set_left(context, runs, 60)
    harness.submit(name="first")
    harness.place()
    monkeypatch.setattr(module, "FORECAST_SECONDS", 0.0)
    (entry,) = client.get(QUEUE).json()["items"]
    assert (entry["expected_start_at"], entry["unknown_because"]) == (None, NOT_SOON)


def test_a_changed_priority_changes_the_position(
    client: TestClient, context: Context, harness: Harness
) -> None:
    harness.submit(name="a")
    behind = harness.submit(name="b")
    reply = client.post(f"/api/v1/jobs/{behind}/priority", json={"priority": "high"})
    assert reply.json()["priority"] == 50
    assert [e["name"] for e in client.get(QUEUE).json()["items"]] == ["b", "a"]
    reply = client.post(f"/api/v1/jobs/{behind}/priority", json={"priority": "urgent"})
    assert reply.status_code == 422
    assert reply.json()["errors"][0]["pointer"] == "/priority"


def test_pages_hold_each_job_once_also_when_one_starts_meanwhile(
    client: TestClient, context: Context, harness: Harness
) -> None:
    first = harness.submit(name="first")
    fill(context, 10, first)
    whole = [e["job_id"] for page in pages(client, 200) for e in page]
    parts = pages(client, 3)
    assert [e["job_id"] for page in parts for e in page] == whole
    assert [e["position"] for page in parts for e in page] == list(range(1, 12))
    reply = client.get(QUEUE, params={"page_size": 3}).json()
    stop(context, whole[2], actor=ADA, reason="the last one of the page leaves")
    query = {"page_size": 3, "page_token": reply["next_page_token"]}
    rest = client.get(QUEUE, params=query).json()["items"]
    assert [e["job_id"] for e in rest] == whole[3:6]
    assert [e["position"] for e in rest] == [3, 4, 5]


def test_a_page_costs_the_same_however_many_wait(
    client: TestClient, context: Context, harness: Harness
) -> None:
    harness.add_node(slots=1)
    harness.running()
    first = harness.submit(name="first")
    fill(context, 2 * FORECAST_JOBS, first)
    harness.place()
    seen: list[str] = []
    event.listen(
        context.database.engine,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, *_: seen.append(statement),
    )
    reply = client.get(QUEUE, params={"page_size": 200}).json()
    assert len(reply["items"]) == 2 * FORECAST_JOBS + 1
    reads = [
        text for text in seen if "FROM jobs" in text or "FROM nodes" in text or "_nodes" in text
    ]
    assert len(reads) <= 7, "page and head, for each which projects wait; nodes; twice what is held"
    assert reply["items"][-1]["unknown_because"] == TOO_FAR_BACK
    assert reply["items"][0]["unknown_because"] == UNKNOWN_END


def test_what_if_answers_and_stores_nothing(
    client: TestClient, context: Context, harness: Harness, clock: FakeClock
) -> None:
    harness.add_node(slots=2)
    spec = {"name": "candidate", "resources": {"world_size": 2}}
    before = harness.dump()
    free = client.post(f"{QUEUE}/what-if", json=spec).json()
    assert (free["starts_now"], free["position"], free["reason"]) == (True, 1, None)
    assert datetime.fromisoformat(free["expected_start_at"]) == clock.now()
    assert harness.dump() == before
    runs, _ = harness.running(name="runs", resources={"world_size": 2})
    set_left(context, runs, 60)
    ahead = harness.submit(name="ahead", resources={"world_size": 2})
    harness.place()
    before = harness.dump()
    behind = client.post(f"{QUEUE}/what-if", json=spec).json()
    assert (behind["starts_now"], behind["position"]) == (False, 2)
    assert behind["reason"] == "needs 2 slots, 0 free, 2 held by runs"
    assert behind["unknown_because"] == UNKNOWN_END
    spec["resources"]["priority"] = "high"  # type: ignore[index]
    first = client.post(f"{QUEUE}/what-if", json=spec).json()
    assert first["position"] == 1
    starts = datetime.fromisoformat(first["expected_start_at"])
    assert starts == clock.now() + timedelta(seconds=60)
    assert harness.dump() == before
    set_priority(context, ahead, 100, actor=ADA)
    assert client.post(f"{QUEUE}/what-if", json=spec).json()["position"] == 2
    refused = client.post(f"{QUEUE}/what-if", json={"resources": {"world_size": 0}})
    assert refused.status_code == 422


def test_jobs_that_the_forecast_ignores_put_none_too_far_back(
    client: TestClient, context: Context, harness: Harness, clock: FakeClock
) -> None:
    """Sixty jobs of higher priority in the pause before a retry are ahead, and take no slot."""
    harness.add_node(slots=1)
    runs, _ = harness.running(name="runs")
    set_left(context, runs, 600)
    first = harness.submit(name="first")
    fill(context, 60, first)
    with context.database.write() as connection:
        pausing = {"priority": 50, "demand": None, "not_before": clock.now() + timedelta(hours=1)}
        connection.execute(update(jobs).where(jobs.c.name.like("copy-%")).values(pausing))
    candidate = {"name": "candidate"}
    harness.place()
    start = clock.now() + timedelta(seconds=600)
    entry = client.get(f"/api/v1/jobs/{first}/queue").json()["entry"]
    assert (entry["position"], entry["unknown_because"]) == (61, None)
    assert datetime.fromisoformat(entry["expected_start_at"]) == start
    for size in (55, 200):
        listed = [one for page in pages(client, size) for one in page]
        assert listed[60] == entry
        assert {one["unknown_because"] for one in listed[:60]} == {NOT_CONSIDERED}
    behind = client.post(f"{QUEUE}/what-if", json=candidate).json()
    assert (behind["position"], behind["unknown_because"]) == (62, UNKNOWN_END)
    harness.add_node("node-2", slots=2)
    at_once = client.post(f"{QUEUE}/what-if", json=candidate).json()
    assert (at_once["starts_now"], at_once["position"]) == (True, 62)
    assert datetime.fromisoformat(at_once["expected_start_at"]) == clock.now()
