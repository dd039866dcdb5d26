"""Running jobs come first, then waiting ones, each once over all pages; counts by state."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sqlalchemy import event, update

from server.core.context import Context
from server.core.database.tables import jobs
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.jobs.listing import JobFilter, list_jobs
from tests.server.api.in_process import TestClient
from tests.server.clock import FakeClock
from tests.server.members import scope_with
from tests.server.statements import query_plan
from trainyard.protocol.rest.jobs import JobOrder
from trainyard.protocol.states import TERMINAL_JOB_STATES, JobState

JOBS = "/api/v1/jobs"
STATES = tuple(JobState)


@pytest.fixture
def stored(client: TestClient, context: Context, clock: FakeClock) -> list[tuple[str, JobState]]:
    """Two jobs in each state, mixed: names and states, the newest first."""
    made = []
    for number in range(2 * len(STATES)):
        clock.advance(1)
        state = STATES[(3 * number) % len(STATES)]
        tags = ["odd"] if number % 2 else []
        reply = client.post(JOBS, json={"name": f"job-{number}", "tags": tags})
        with context.database.write() as connection:
            query = update(jobs).where(jobs.c.id == reply.json()["id"])
            connection.execute(query.values(state=state.value))
        made.append((f"job-{number}", state))
    return made[::-1]


def listed(client: TestClient, **query: Any) -> list[str]:
    """Return the names on all pages."""
    names: list[str] = []
    token = None
    while True:
        page = query | ({"page_token": token} if token else {})
        reply = client.get(JOBS, params=page).json()
        names += [item["name"] for item in reply["items"]]
        token = reply["next_page_token"]
        if token is None:
            return names


def active_first(rows: list[tuple[str, JobState]]) -> list[str]:
    """Return the names in active order, from rows with the newest first."""
    waits = [name for name, state in rows if state == JobState.QUEUED][::-1]
    ended = [name for name, state in rows if state in TERMINAL_JOB_STATES]
    names = [name for name, _ in rows]
    return [name for name in names if name not in {*waits, *ended}] + waits + ended


@pytest.mark.parametrize("page_size", [1, 3, 8, 16, 200])
def test_active_jobs_come_first_and_each_once(
    client: TestClient, stored: list[tuple[str, JobState]], page_size: int
) -> None:
    query: dict[str, Any] = {"order": "active", "page_size": page_size}
    assert listed(client, **query) == active_first(stored)
    odd = [row for row in stored if int(row[0].removeprefix("job-")) % 2]
    assert listed(client, tag="odd", **query) == active_first(odd)
    assert listed(client, search="job-1", **query) == active_first(
        [row for row in stored if row[0].startswith("job-1")]
    )
    some = ["failed", "running"]
    assert listed(client, state=some, **query) == active_first(
        [row for row in stored if row[1] in some]
    )
    assert listed(client, page_size=page_size) == [name for name, _ in stored]


@pytest.mark.parametrize("page_size", [1, 2, 200])
def test_those_that_wait_are_in_the_order_of_their_priority(
    client: TestClient, clock: FakeClock, page_size: int
) -> None:
    for name, priority in (("a", -7), ("b", 100), ("c", 0), ("d", 100), ("e", -100)):
        clock.advance(1)
        client.post(JOBS, json={"name": name, "resources": {"priority": priority}})
    assert listed(client, order="active", page_size=page_size) == ["b", "d", "c", "a", "e"]
    some = listed(client, order="active", page_size=page_size, state="queued", search="b")
    assert some == ["b"]


def test_a_page_token_of_another_order_is_refused(
    client: TestClient, stored: list[tuple[str, JobState]]
) -> None:
    assert stored
    ended: dict[str, Any] = {"order": "active", "state": "failed", "page_size": 1}
    token = client.get(JOBS, params=ended).json()["next_page_token"]
    reply = client.get(JOBS, params={"page_token": token})
    assert reply.status_code == 422
    assert reply.json()["errors"][0] == {
        "pointer": "query/page_token",
        "detail": "comes from a list in another order",
    }


def test_counts_by_state_follow_the_filter(
    client: TestClient, stored: list[tuple[str, JobState]]
) -> None:
    assert stored
    every = client.get(f"{JOBS}/counts").json()["by_state"]
    assert every == dict.fromkeys(map(str, STATES), 2)
    odd = client.get(f"{JOBS}/counts", params={"tag": "odd"}).json()["by_state"]
    assert sum(odd.values()) == len(STATES)
    assert client.get(f"{JOBS}/counts", params={"search": "no-such"}).json()["by_state"] == {
        str(state): 0 for state in STATES
    }


def test_one_query_walks_the_index_of_each_state(context: Context) -> None:
    asked: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, sql: str, parameters: Any, *_: Any) -> None:
        asked.append((sql, parameters))

    event.listen(context.database.engine, "before_cursor_execute", note)
    list_jobs(context, JobFilter(), JobOrder.ACTIVE, after=None, limit=101, scope=SYSTEM_SCOPE)
    event.remove(context.database.engine, "before_cursor_execute", note)
    ((sql, parameters),) = [one for one in asked if "FROM jobs" in one[0]]
    if not context.database.is_sqlite:  # PostgreSQL scans tables of a few rows
        return
    with context.database.read() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", parameters).all()
    looked = [row.detail for row in plan if " jobs" in row.detail]
    of_states = [line for line in looked if "ix_jobs_state_id (state=?)" in line]
    assert len(of_states) == len(STATES)
    # The rows of a page of merged states are read by their ids.
    assert {line for line in looked if line not in of_states} == {
        "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id=?)"
    }


def test_the_jobs_of_a_member_are_read_from_the_indexes_of_projects(context: Context) -> None:
    if not context.database.is_sqlite:  # PostgreSQL scans tables of a few rows
        return
    scope = scope_with(a="viewer", b="viewer", c="viewer")
    for order, index, count in (
        (JobOrder.NEWEST, "ix_jobs_project_id (project=?", 3),
        (
            JobOrder.ACTIVE,
            "ix_jobs_project_state_id (project=? AND state=?",
            3 * (len(STATES) - 1),
        ),  # without queued jobs
    ):
        read = partial(list_jobs, context, JobFilter(), order, scope=scope, after=None, limit=101)
        plan = query_plan(context, "jobs", read)
        assert len([line for line in plan if index in line]) == count, plan
