"""One scheduler leads: takeovers of the lead, and a former leader writes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, select, update
from sqlalchemy.exc import DBAPIError

from server.core.context import Context
from server.core.database.engine import Database, LeadLostError
from server.core.database.tables import jobs, leaders
from server.scheduler.rounds import leader as module
from server.scheduler.rounds.leader import Leader, leading
from server.scheduler.rounds.loop import TICK_SECONDS
from tests.server.api.serving import PATIENCE
from tests.server.harness import Harness


def row_of(database: Database) -> Any:
    with database.read() as connection:
        return connection.execute(select(leaders)).one()


def set_expiry(database: Database, when: datetime) -> None:
    with database.write() as connection:
        connection.execute(update(leaders).values(expires_at=when))


def expire(database: Database) -> None:
    set_expiry(database, datetime.now(UTC) - timedelta(seconds=0.1))


def test_one_leads_and_the_next_takes_over(database: Database) -> None:
    first, second = Leader(database), Leader(database)
    assert (first.held(), first.held()) == (1, 1)
    assert second.held() is None
    first.release()
    assert row_of(database).holder is None
    assert second.held() == 2
    assert first.held() is None
    second.release()


def test_an_expired_lead_is_taken_and_a_former_leader_stands_by(database: Database) -> None:
    first, second = Leader(database), Leader(database)
    assert first.held() == 1
    expire(database)
    assert second.held() == 2
    with pytest.raises(LeadLostError, match="epoch 1"), database.write() as connection:
        first.hold(connection, 1)
    first.lose(1)
    assert first.held() is None
    first.release()
    assert row_of(database).epoch == 2, "what was lost is not given back"
    assert row_of(database).holder is not None


def test_a_lead_that_expired_unnoticed_continues(database: Database) -> None:
    leader = Leader(database)
    leader.held()
    expire(database)
    with database.write() as connection:
        leader.hold(connection, 1)
    assert Leader(database).held() is None, "its expiry is in the future again"


def test_a_lead_of_before_the_clock_was_set_back_is_free(database: Database) -> None:
    Leader(database).held()
    set_expiry(database, datetime.now(UTC) + timedelta(hours=1))
    assert Leader(database).held() == 2


def test_a_database_that_was_away_is_no_takeover(database: Database) -> None:
    now = [0.0]
    first, second = Leader(database), Leader(database, monotonic=lambda: now[0])
    first.held()
    assert second.held() is None
    now[0] = 60.0  # no read succeeded in between, and no renewal
    expire(database)
    assert second.held() is None
    now[0] += module.SETTLE_SECONDS / 2
    assert second.held() is None
    with database.write() as connection:
        first.hold(connection, 1)
    now[0] += module.SETTLE_SECONDS / 2
    assert second.held() is None, "the leader was back in time"
    expire(database)
    assert second.held() == 2


def test_a_standby_whose_reads_are_slow_takes_over(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    Leader(database).held()
    second, read = Leader(database, monotonic=lambda: now[0]), database.read

    @contextmanager
    def slow_read() -> Iterator[Connection]:
        with read() as connection:
            yield connection
        now[0] += 2 * module.SEEN_SECONDS

    monkeypatch.setattr(database, "read", slow_read)
    assert second.held() is None
    expire(database)
    now[0] += 0.25
    assert second.held() == 2


@pytest.mark.parametrize("looked_before", [True, False], ids=["seen", "after a pause"])
def test_a_standby_leads_within_five_seconds_of_the_last_renewal(
    database: Database, *, looked_before: bool
) -> None:
    now = [0.0]
    first, second = Leader(database), Leader(database, monotonic=lambda: now[0])
    first.held()
    assert row_of(database).expires_at <= datetime.now(UTC) + timedelta(
        seconds=module.LEASE_SECONDS
    )
    assert second.held() is None
    if not looked_before:
        now[0] = module.LEASE_SECONDS  # the database answers only now
    while True:
        left = module.LEASE_SECONDS - now[0]
        set_expiry(database, datetime.now(UTC) + timedelta(seconds=left))
        if second.held() == 2:
            break
        now[0] += TICK_SECONDS
    assert now[0] <= 5.0


class Rounds(threading.Event):
    """Lets a lead expire before each renewal, and counts the renewals."""

    def __init__(self, database: Database, *, turns: int) -> None:
        super().__init__()
        self._database = database
        self._turns = turns
        self.renewals = -1

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        self.renewals += row_of(self._database).expires_at > datetime.now(UTC)
        expire(self._database)
        self._turns -= 1
        return self._turns < 0


def test_a_round_that_hangs_loses_the_lead(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RENEWALS", 3)
    leader = Leader(database)
    leader.held()
    hanging = Rounds(database, turns=6)
    leader._renew(hanging)
    assert hanging.renewals == 3
    assert "hangs" in caplog.text
    assert leader.held() == 1, "the next round begins"
    again = Rounds(database, turns=2)
    leader._renew(again)
    assert again.renewals == 1


def test_a_round_that_begins_during_a_renewal_has_all_its_renewals(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RENEWALS", 3)
    leader = Leader(database)
    leader.held()
    hanging = Rounds(database, turns=8)
    extend = leader._extend

    def wait_for_the_row(connection: Connection, epoch: int) -> None:
        extend(connection, epoch)
        if hanging.renewals == 1:
            leader.held()

    monkeypatch.setattr(leader, "_extend", wait_for_the_row)
    leader._renew(hanging)
    assert hanging.renewals == 2 + 3


def test_the_lead_is_renewed_during_a_round_and_given_back_after_the_last(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RENEW_SECONDS", 0.01)
    leader = Leader(database)
    with leader.renewed():
        leader.held()
        expire(database)
        wait_until(lambda: row_of(database).expires_at > datetime.now(UTC))
        assert Leader(database).held() is None
    assert row_of(database).holder is None


def test_a_renewal_notices_the_loss(database: Database) -> None:
    leader = Leader(database)
    leader.held()
    expire(database)
    assert Leader(database).held() == 2
    leader._renew(Rounds(database, turns=0))
    with database.write() as connection:
        connection.execute(update(leaders).values(epoch=3))
    leader._renew(OnlyOnce())
    set_expiry(database, datetime.now(UTC) + timedelta(seconds=1))
    assert leader.held() is None


class OnlyOnce(threading.Event):
    """Lets one renewal happen."""

    def __init__(self) -> None:
        super().__init__()
        self._turns = 1

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        self._turns -= 1
        return self._turns < 0


@pytest.mark.integration
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_leader_that_is_stopped_inside_a_transaction_blocks_no_takeover(
    context: Context, harness: Harness
) -> None:
    """The transaction's own thread sends nothing, like a stopped process.

    Only the limit of a leader ends its session.
    """
    options = {"options": "-c idle_in_transaction_session_timeout=0"}
    url = context.database.engine.url.update_query_dict(options)
    unlimited = Database(url.render_as_string(hide_password=False))
    first, second = Leader(unlimited), Leader(context.database)
    first.held()
    job_id = harness.submit()
    renamed = update(jobs).where(jobs.c.id == job_id).values(name="renamed")

    def write_and_stop() -> None:
        writing = leading(replace(context, database=unlimited), first, 1)
        with writing.database.write() as connection:
            connection.execute(renamed)
            wait_until(lambda: second.held() == 2)

    with pytest.raises(DBAPIError):
        write_and_stop()
    assert harness.job(job_id).name == "tiny"
    unlimited.dispose()


def wait_until(holds: Callable[[], bool]) -> None:
    """Poll every 50 ms until a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.05)
