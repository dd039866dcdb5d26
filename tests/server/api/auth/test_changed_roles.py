"""A changed role in a project reaches requests that last, with one query for all of them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from sqlalchemy import select, update

from server.api.auth.lasting_requests import LastingRequests
from server.core.context import Context
from server.core.database.scheduler_tables import projects
from server.core.lifecycle import still_sees
from server.core.people.user_tables import users
from server.core.visibility.scope import Scope
from tests.actors import authenticate_token
from tests.server.harness import Harness
from tests.server.members import OURS, THEIRS, add_projects, add_user, set_role
from tests.server.statements import statements
from trainyard.protocol.rest.access import Permission


def reads(scope: Scope) -> bool:
    return scope.within(Permission.JOBS_READ) != frozenset()


def test_a_changed_role_reaches_open_requests(context: Context) -> None:
    add_projects(context)
    tokens = [add_user(context, f"user-{n}", {OURS: "member", THEIRS: "viewer"}) for n in range(3)]
    ids = ids_by_name(context)
    changed: list[frozenset[str] | None] = []
    ended: list[str] = []
    lasting = LastingRequests(context)
    with ExitStack() as stack:
        for n, token in enumerate(tokens):
            watched = lasting.watched(
                authenticate_token(context, token),
                lambda n=n: ended.append(f"user-{n}"),  # type: ignore[misc]
                allows=reads,
                on_change=lambda scope: changed.append(scope.within(Permission.JOBS_READ)),
            )
            stack.enter_context(watched)
        assert lasting.end_invalid() == 0
        assert changed == []
        set_role(context, ids["user-0"], OURS, None)
        set_role(context, ids["user-1"], OURS, None)
        set_role(context, ids["user-1"], THEIRS, None)
        with statements(context) as seen:
            assert lasting.end_invalid() == 1
        assert len([each for each in seen if not each.startswith("BEGIN")]) == 1, seen
        assert (changed, ended) == ([frozenset({THEIRS})], ["user-1"])
        with context.database.write() as connection:
            everyone = update(projects).where(projects.c.name == OURS).values(everyone="viewer")
            connection.execute(everyone)
        assert lasting.end_invalid() == 0
        assert changed[1:] == [frozenset({OURS, THEIRS})]


def test_a_download_breaks_off_with_the_role(context: Context, harness: Harness) -> None:
    add_projects(context)
    job_id = harness.submit(project=OURS)
    principal = authenticate_token(context, add_user(context, "ada", {OURS: "viewer"}))
    lasting = LastingRequests(context)
    sees = still_sees(context, job_id, scope=principal.scope)
    parts = lasting.guarded(principal, iter([b"1", b"2", b"3"]), allows=sees)
    assert next(parts) == b"1"
    assert lasting.end_invalid() == 0
    assert next(parts) == b"2"
    set_role(context, ids_by_name(context)["ada"], OURS, None)
    assert lasting.end_invalid() == 1
    with pytest.raises(ConnectionAbortedError):
        next(parts)
    assert lasting.end_invalid() == 0


def ids_by_name(context: Context) -> dict[str, str]:
    with context.database.read() as connection:
        rows = connection.execute(select(users.c.name, users.c.id)).all()
    return {row.name: row.id for row in rows}
