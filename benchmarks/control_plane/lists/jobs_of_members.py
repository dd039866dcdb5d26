"""Time of `GET /jobs` for a member of 3 of 200 projects with 100,000 jobs, on both databases.

It measures the newest page, active jobs first, pages by state, counts and a search. It also
compares the times of 404 for hidden and for missing jobs: a difference would show which ids exist.

    python -m benchmarks.control_plane.lists.jobs_of_members [--jobs 100000] [--requests 200]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import product

import httpx
from sqlalchemy import insert, select

from benchmarks.control_plane.lists.jobs_list import PAGE_SIZE, Query, fill
from benchmarks.control_plane.servers import API, PACKAGES, Store, run_on_databases, served
from benchmarks.report import emit, percentile
from server.api.auth.tokens import TokenKind, hash_token, make_token
from server.core.context import Context
from server.core.database.scheduler_tables import projects
from server.core.database.tables import jobs, tokens
from server.core.people.member_tables import members
from server.core.people.user_tables import users
from trainyard.protocol.rest.projects import ProjectRole
from trainyard.protocol.states import JobState
from trainyard.protocol.user_accounts.views import ClusterRole, UserState

TARGET_MS = 20.0
PROJECTS, OWN = 200, 3
MAX_RATIO = 1.05
"""Target for the ratio of two medians of 404 times; below this, noise of a request is larger."""
PATHS = (
    "/jobs/{id}",
    "/jobs/{id}/events",
    "/jobs/{id}/metrics",
    "/jobs/{id}/goodput",
    "/jobs/{id}/checkpoints",
)


def measure(opened: Store, *, count: int, requests: int) -> bool:
    """List jobs in each way, and print the figures."""
    names = [f"project-{number}" for number in range(PROJECTS)]
    add_projects(opened.context, names)
    fill(opened, count, projects=names)
    token = add_member(opened.context, names[:OWN])
    headers = {"authorization": f"Bearer {token}"}
    passed = True
    with served(opened) as api, httpx.Client(base_url=api.url + API, headers=headers) as client:
        for name, (path, query) in ways().items():
            seconds = [time_of(client, path, query) for _ in range(requests)]
            passed &= emit(
                f"jobs_of_members_{name}",
                figure=percentile(seconds, 0.95) * 1000,
                unit="ms (p95)",
                target=TARGET_MS,
                at_least=False,
                packages=PACKAGES,
                database=opened.kind,
                median_ms=round(percentile(seconds, 0.5) * 1000, 1),
                jobs=count,
                projects=PROJECTS,
                own_projects=OWN,
                requests=requests,
            )
        passed &= compare_missing(opened, client, hidden=names[-1], requests=requests)
    return passed


def add_projects(context: Context, names: Sequence[str]) -> None:
    """Store projects."""
    now = context.now()
    rows = [
        {"name": name, "description": "", "weight": 1.0, "created_by": "x", "created_at": now}
        for name in names
    ]
    with context.database.write() as connection:
        connection.execute(insert(projects), rows)


def add_member(context: Context, own: Sequence[str]) -> str:
    """Store a user who is a member of some projects; return a token of the user."""
    user_id, token, now = context.new_id(), make_token(TokenKind.API), context.now()
    user = {"id": user_id, "name": "ada", "role": ClusterRole.USER, "state": UserState.ACTIVE}
    given = {"id": context.new_id(), "name": "ada", "kind": TokenKind.API, "user_id": user_id}
    roles = [
        {"project": name, "user_id": user_id, "role": ProjectRole.MEMBER, "created_at": now}
        for name in own
    ]
    with context.database.write() as connection:
        connection.execute(insert(users).values(**user, created_at=now))
        connection.execute(insert(tokens).values(**given, hash=hash_token(token), created_at=now))
        connection.execute(insert(members), roles)
    return token


def ways() -> dict[str, tuple[str, Query]]:
    """Return path and query of each way of listing."""
    newest: Query = {"page_size": PAGE_SIZE}
    ended = [JobState.FAILED.value, JobState.STOPPED.value]
    return {
        "newest": ("/jobs", newest),
        "active": ("/jobs", newest | {"order": "active"}),
        "running": ("/jobs", newest | {"state": [JobState.RUNNING.value]}),
        "ended": ("/jobs", newest | {"state": ended}),
        "one_project": ("/jobs", newest | {"project": "project-1"}),
        "counts": ("/jobs/counts", {}),
        "by_text": ("/jobs", newest | {"search": "needl"}),
    }


def time_of(client: httpx.Client, path: str, query: Query) -> float:
    """Return the time of a request, in seconds."""
    started = time.perf_counter()
    client.get(path, params=query).raise_for_status()
    return time.perf_counter() - started


def compare_missing(opened: Store, client: httpx.Client, *, hidden: str, requests: int) -> bool:
    """Compare the medians of 404 times of hidden and of missing jobs; requests alternate."""
    with opened.context.database.read() as connection:
        query = select(jobs.c.id).where(jobs.c.project == hidden).limit(requests)
        ids = list(connection.scalars(query))
    passed = True
    for path in PATHS:
        times: dict[str, list[float]] = {"hidden": [], "missing": []}
        for number, kind in product(range(requests), times):
            job_id = ids[number % len(ids)] if kind == "hidden" else opened.context.new_id()
            started = time.perf_counter()
            status = client.get(path.format(id=job_id)).status_code
            times[kind].append(time.perf_counter() - started)
            assert status == httpx.codes.NOT_FOUND
        medians = {kind: statistics.median(some) for kind, some in times.items()}
        passed &= emit(
            "missing_against_hidden",
            figure=max(medians.values()) / min(medians.values()),
            unit="ratio of medians",
            target=MAX_RATIO,
            at_least=False,
            packages=PACKAGES,
            database=opened.kind,
            path=path,
            hidden_ms=round(medians["hidden"] * 1000, 3),
            missing_ms=round(medians["missing"] * 1000, 3),
            requests=requests,
        )
    return passed


def main() -> int:
    """Measure on both databases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=200)
    return run_on_databases(
        parser,
        lambda opened, given: measure(opened, count=given.jobs, requests=given.requests),
    )


if __name__ == "__main__":
    sys.exit(main())
