"""Old rows outside jobs: events, slot-time, node requests, tokens and sessions."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from pydantic import ValidationError
from sqlalchemy import Table, func, insert, select, update

from server.api.auth.browser_sessions import open_session
from server.api.auth.service import create_token, revoke_token
from server.core.context import Context
from server.core.database.slot_tables import capacity_changes, holdings
from server.core.database.tables import events, tokens
from server.core.events.store import NewEvent, append_event
from server.core.people.user_tables import sessions
from server.core.settings import Settings
from server.core.subject import Actor, Subject
from server.scheduler.retention import forget_history
from server.scheduler.retention.forget_history import EventPruner, forget_access, forget_slot_time
from tests.server.harness import Harness
from trainyard.protocol.rest.access import TokenRequest
from trainyard.protocol.rest.nodes import NodeOnline

DAY = 86_400


def counted(context: Context, table: Table) -> int:
    with context.database.read() as connection:
        return connection.scalar(select(func.count()).select_from(table)) or 0


def happen(context: Context, *, job_id: str | None) -> None:
    with context.database.write() as connection:
        event = NewEvent(NodeOnline(), Actor("node-1"), Subject(job_id), "node-1 is online")
        append_event(context, connection, event)


def test_old_events_go_and_those_of_a_job_stay(
    context: Context, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.add_node()
    job_id = harness.submit()
    monkeypatch.setattr(forget_history, "MAX_CONSIDERED", 10)
    for _ in range(15):
        happen(context, job_id=None)
        happen(context, job_id=job_id)
        happen(context, job_id="0" * 26)
    with context.database.read() as connection:
        of_job = select(func.count()).where(events.c.job_id == job_id)
        mine = connection.scalar(of_job)
    pruner = EventPruner(context)
    for _ in range(20):
        assert pruner.prune() == 0
    harness.clock.advance(366 * DAY)
    happen(context, job_id=None)
    for _ in range(20):
        pruner.prune()
    with context.database.read() as connection:
        assert connection.scalar(of_job) == mine
    assert counted(context, events) == (mine or 0) + 1


def held(job_id: str, until: datetime, *, spent: object) -> dict[str, object]:
    return {
        "attempt_id": job_id,
        "node": "node-1",
        "job_id": job_id,
        "job_name": "tiny",
        "project": "default",
        "attempt": 1,
        "slots": 1,
        "spare": False,
        "spent": spent,
        "since": until - timedelta(hours=1),
        "until": until,
    }


def test_old_slot_time_goes_and_the_newest_offer_of_a_node_stays(
    context: Context, harness: Harness
) -> None:
    harness.add_node()
    now, old = context.now(), context.now() - timedelta(days=500)
    waiting = harness.submit()
    change = {"node": "node-1", "slots": 1, "online": True, "takes_jobs": True, "withheld": 0}
    with context.database.write() as connection:
        connection.execute(
            insert(holdings),
            [
                held("settled", old, spent={}),
                held("deleted", old, spent=None),
                held(waiting, old, spent=None),
                held("recent", now, spent={}),
            ],
        )
        since = [old, old + timedelta(days=1), old + timedelta(days=2)]
        connection.execute(insert(capacity_changes), [{**change, "since": at} for at in since])
    forget_slot_time(context)
    with context.database.read() as connection:
        left = connection.scalars(select(holdings.c.job_id)).all()
        assert set(left) == {waiting, "recent"}
        assert connection.scalars(select(capacity_changes.c.since)).all() == since[2:]


def test_tokens_go_a_month_after_their_end_and_sessions_at_theirs(
    context: Context, harness: Harness
) -> None:
    made = [create_token(context, TokenRequest(name=f"t{n}")) for n in range(3)]
    revoke_token(context, made[0][0].id)
    with context.database.write() as connection:
        soon = context.now() + timedelta(days=1)
        second = update(tokens).where(tokens.c.id == made[1][0].id)
        connection.execute(second.values(expires_at=soon))
    open_session(context, token=made[1][1], code=None)
    harness.clock.advance(29 * DAY)
    assert forget_access(context) == 1, "the session that is over"
    assert (counted(context, tokens), counted(context, sessions)) == (3, 0)
    harness.clock.advance(3 * DAY)
    forget_access(context)
    with context.database.read() as connection:
        assert connection.scalars(select(tokens.c.id)).all() == [made[2][0].id]


@pytest.mark.parametrize("name", ["goodput_kept_days", "requests_kept_days", "audit_kept_days"])
def test_what_counts_by_the_month_is_kept_as_long(name: str) -> None:
    with pytest.raises(ValidationError, match="5 days: 0 \\(never\\) or at least 32 are legal"):
        Settings(**{name: 5})  # type: ignore[arg-type]
    assert getattr(Settings(**{name: 0}), name) == 0  # type: ignore[arg-type]
