"""One scheduler leads: who takes the lead when, and a former leader writes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import DBAPIError

from server.auth.throttle import note_failed_login
from server.checkpoints.service import verify
from server.context import Context
from server.database.engine import Database
from server.database.schema import metadata
from server.database.tables import jobs, leaders
from server.jobs.service import forget_old_keys, submit
from server.liveness import beat
from server.nodes.service import set_drain
from server.scheduling import leader as module
from server.scheduling.drain import run_drain
from server.scheduling.leader import Leader, LeadLostError, leading
from server.scheduling.loop import Scheduler
from server.scheduling.operations import OperationKeeper
from server.scheduling.queue import enter_groups
from server.scheduling.reconcile import Reconciler
from server.scheduling.round import Placer
from tests.actors import ADA
from tests.server.harness import Harness
from tests.server.yard import Yard
from trainyard.spec.job import parse_job_spec

Part = Callable[[Context], object]


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


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_leader_that_is_stopped_inside_a_transaction_blocks_no_takeover(
    context: Context, harness: Harness
) -> None:
    """The transaction's own thread sends nothing, as a stopped process."""
    first, second = Leader(context.database), Leader(context.database)
    first.held()
    job_id = harness.submit()
    renamed = update(jobs).where(jobs.c.id == job_id).values(name="renamed")

    def write_and_stop() -> None:
        with leading(context, first, 1).database.write() as connection:
            connection.execute(renamed)
            began = time.monotonic()
            wait_until(lambda: second.held() == 2)
            assert time.monotonic() - began < 5

    with pytest.raises(DBAPIError):
        write_and_stop()
    assert harness.job(job_id).name == "tiny"


# What a scheduler writes. Each function makes one thing due, and returns the part that writes it.


def a_group_is_entered(harness: Harness) -> Part:
    harness.submit()
    return enter_groups


def a_job_is_placed(harness: Harness) -> Part:
    harness.add_node()
    harness.submit()
    enter_groups(harness.context)
    return lambda context: Placer(context, harness.dispatcher).run()


def a_reason_is_stored(harness: Harness) -> Part:
    harness.submit()
    enter_groups(harness.context)
    return lambda context: Placer(context, harness.dispatcher).run()


def reconciling(harness: Harness) -> Part:
    return lambda context: Reconciler(context, harness.dispatcher).run()


def hear_nothing(harness: Harness, seconds: int) -> None:
    for _ in range(seconds):
        harness.clock.advance(1)
        beat(harness.context)


def a_node_is_marked_offline(harness: Harness) -> Part:
    beat(harness.context)
    harness.add_node()
    hear_nothing(harness, 40)
    return reconciling(harness)


def a_share_is_marked_unreachable(harness: Harness) -> Part:
    beat(harness.context)
    harness.add_node()
    _, (supervisor,) = harness.running()
    harness.reconcile(seconds=40)  # the node is offline, and the share unreachable
    supervisor.train(2)
    lease = int(harness.context.settings.lease_seconds)
    hear_nothing(harness, lease + 1)
    return reconciling(harness)


def a_lost_share_is_ended(harness: Harness) -> Part:
    beat(harness.context)
    harness.add_node()
    harness.running(retry={"node_lost_after_seconds": 60})
    harness.reconcile(seconds=59)
    hear_nothing(harness, 2)
    return reconciling(harness)


def an_unclaimed_launch_is_given_up(harness: Harness) -> Part:
    beat(harness.context)
    harness.add_node()
    harness.submit()
    harness.place()
    harness.reconcile(seconds=119)
    hear_nothing(harness, 2)
    return reconciling(harness)


def a_launch_is_sent_again(harness: Harness) -> Part:
    beat(harness.context)
    harness.add_node()
    harness.submit()
    harness.place()
    hear_nothing(harness, int(harness.context.settings.resend_seconds) + 1)
    return reconciling(harness)


def an_old_key_is_deleted(harness: Harness) -> Part:
    spec = parse_job_spec({"name": "tiny"})
    submit(harness.context, spec, actor=ADA, idempotency_key="k" * 20)
    harness.clock.advance(timedelta(days=400).total_seconds())
    return forget_old_keys


def a_window_of_failed_logins_is_deleted(harness: Harness) -> Part:
    note_failed_login(harness.context, "192.0.2.1")
    hear_nothing(harness, 61)
    return reconciling(harness)


def a_drain_is_ordered(harness: Harness) -> Part:
    harness.add_node()
    harness.running()
    set_drain(harness.context, "node-1", "move", actor=ADA)
    return run_drain


def an_operation_is_queued(harness: Harness) -> Yard:
    harness.add_node()
    job_id, (supervisor,) = harness.running()
    checkpoint = harness.commit_checkpoint(job_id, 4)
    supervisor.end("succeeded")
    verify(harness.context, checkpoint, actor=ADA)
    return Yard(harness)


def keeping(harness: Harness) -> Part:
    return lambda context: OperationKeeper(context, harness.dispatcher).run()


def an_operation_is_assigned(harness: Harness) -> Part:
    an_operation_is_queued(harness)
    return keeping(harness)


def an_operation_is_taken_back(harness: Harness) -> Part:
    beat(harness.context)
    yard = an_operation_is_queued(harness)
    ((operation_id, _),) = yard.give()
    yard.claim(operation_id)
    hear_nothing(harness, int(harness.context.settings.lease_seconds) + 1)
    return keeping(harness)


KINDS = (
    a_group_is_entered,
    a_job_is_placed,
    a_reason_is_stored,
    a_node_is_marked_offline,
    a_share_is_marked_unreachable,
    a_lost_share_is_ended,
    an_unclaimed_launch_is_given_up,
    a_launch_is_sent_again,
    an_old_key_is_deleted,
    a_window_of_failed_logins_is_deleted,
    a_drain_is_ordered,
    an_operation_is_assigned,
    an_operation_is_taken_back,
)


@pytest.mark.parametrize("make_due", KINDS)
def test_a_former_leader_writes_nothing(
    harness: Harness, context: Context, make_due: Callable[[Harness], Part]
) -> None:
    first, second = Leader(context.database), Leader(context.database)
    former = Scheduler(context, harness.dispatcher, first)
    assert former.tick()
    expire(context.database)
    assert second.held() == 2
    part = make_due(harness)
    before, sent = rows(context.database), messages(harness)
    with pytest.raises(LeadLostError):
        part(leading(context, first, 1))
    assert rows(context.database) == before
    assert not former.tick()
    assert not former.tick(), "it stands by"
    assert rows(context.database) == before
    assert messages(harness) == sent
    part(leading(context, second, 2))
    assert rows(context.database) != before


def test_a_scheduler_that_leads_again_writes_in_the_new_epoch(
    harness: Harness, context: Context
) -> None:
    first, second = Leader(context.database), Leader(context.database)
    scheduler = Scheduler(context, harness.dispatcher, first)
    assert scheduler.tick()
    expire(context.database)
    assert second.held() == 2
    harness.submit()
    assert not scheduler.tick()
    second.release()
    before = rows(context.database)
    assert scheduler.tick()
    assert rows(context.database) != before
    assert row_of(context.database).epoch == 3


def rows(database: Database) -> dict[str, list[str]]:
    """Return every row but those of the lead and the beats."""
    others = [t for t in metadata.sorted_tables if t.name not in {"leaders", "liveness"}]
    with database.read() as connection:
        return {t.name: sorted(map(repr, connection.execute(select(t)))) for t in others}


def messages(harness: Harness) -> int:
    dispatcher = harness.dispatcher
    return len(dispatcher.sent) + len(dispatcher.operations)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.05)
