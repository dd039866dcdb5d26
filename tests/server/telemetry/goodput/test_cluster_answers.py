"""When the slot-time of a cluster is computed and cached, on both databases."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection
from datetime import date, datetime, timedelta
from threading import Event, Timer
from traceback import walk_tb
from typing import Any, NoReturn

import pytest
from sqlalchemy import Connection

from server.core.context import Context
from server.core.errors import UnavailableError
from server.telemetry.goodput.capacity import CapacityKeeper
from server.telemetry.goodput.cluster import KEPT, SCRAPED, SERVED, ClusterLedger
from server.telemetry.goodput.holdings import HeldShare, read_holdings
from server.telemetry.goodput.queries import JobRecords, read_records
from tests.server.harness import Harness
from tests.server.telemetry.goodput.test_cluster import spent
from trainyard.protocol.goodput import ClusterGoodputView

LONG_AGO = date(2020, 1, 1)


@pytest.fixture(autouse=True)
def _four_slots(harness: Harness, context: Context) -> None:
    """A node with four slots from now on."""
    harness.add_node(slots=4)
    CapacityKeeper(context).run()


def test_one_computation_serves_a_minute(harness: Harness, context: Context) -> None:
    ledger, today = ClusterLedger(context), context.now().date()
    harness.clock.advance(10)
    first = ledger.view(today, today).result()
    harness.clock.advance(KEPT.total_seconds() - 1)
    assert ledger.view(today, today).result() is first
    harness.clock.advance(1)
    assert ledger.view(today, today).result() is first, "while the next one is computed"
    yesterday = today - timedelta(days=1)
    ledger.view(yesterday, yesterday).result()  # one thread computes, in order
    again = ledger.view(today, today).result()
    assert again.slot_milliseconds == 4 * (10 + KEPT.total_seconds()) * 1000
    harness.clock.advance(SERVED.total_seconds())
    later = ledger.view(today, today).result()
    assert later.slot_milliseconds == again.slot_milliseconds + 4 * SERVED.total_seconds() * 1000


def test_answers_of_a_minute_read_the_ledger_of_a_job_once(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, _ = harness.launched(resources={"world_size": 2})
    harness.clock.advance(7)
    read: list[str] = []

    def noted(
        context: Context, connection: Connection, job_ids: Collection[str]
    ) -> dict[str, JobRecords]:
        read.extend(job_ids)
        return read_records(context, connection, job_ids)

    monkeypatch.setattr("server.telemetry.goodput.cluster.read_records", noted)
    ledger, today = ClusterLedger(context), context.now().date()
    whole = ledger.view(today, today).result()
    harness.clock.advance(KEPT.total_seconds() - 1)
    of_project = ledger.view(today, today, "default").result()
    assert read == [job_id]
    assert of_project.until == whole.until, "answers that share ledgers have one present time"
    assert spent(of_project) == {"startup": 14.0}
    harness.clock.advance(SERVED.total_seconds())
    later = ledger.view(today, today).result()
    assert read == [job_id, job_id]
    passed = 7 + KEPT.total_seconds() - 1 + SERVED.total_seconds()
    assert spent(later)["startup"] == 2 * passed


def test_requests_share_a_slow_computation_and_kept_answers_do_not_wait(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.launched()
    harness.clock.advance(5)
    ledger, today = ClusterLedger(context), context.now().date()
    yesterday = today - timedelta(days=1)
    kept = ledger.view(yesterday, yesterday).result()
    began, may_end = Event(), Event()
    read: list[str] = []

    def slow(
        context: Context, connection: Connection, job_ids: Collection[str]
    ) -> dict[str, JobRecords]:
        read.extend(job_ids)
        began.set()
        assert may_end.wait(30)
        harness.clock.advance(2 * KEPT.total_seconds())
        return read_records(context, connection, job_ids)

    monkeypatch.setattr("server.telemetry.goodput.cluster.read_records", slow)
    first = ledger.view(today, today)
    assert began.wait(30)
    assert ledger.view(yesterday, yesterday).result(30) is kept
    second = ledger.view(today, today)
    assert not second.done()
    may_end.set()
    assert second.result() is first.result()
    assert ledger.view(today, today).result() is first.result(), "its age counts from its end"
    assert len(read) == 1


def test_an_end_awaits_what_is_computed(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A computation after the end of the application would find its database closed."""
    ledger, today = ClusterLedger(context), context.now().date()
    may_end = Event()

    def slow(*given: Any, **named: Any) -> list[HeldShare]:
        assert may_end.wait(30)
        return read_holdings(*given, **named)

    monkeypatch.setattr("server.telemetry.goodput.cluster.read_holdings", slow)
    answer = ledger.view(today, today)
    Timer(0.2, may_end.set).start()
    ledger.close()
    assert answer.done()
    assert answer.exception() is None


def test_a_computation_that_failed_is_logged_and_repeated_after_a_minute(
    harness: Harness,
    context: Context,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness.clock.advance(5)
    ledger, today = ClusterLedger(context), context.now().date()
    with monkeypatch.context() as patch:
        patch.setattr("server.telemetry.goodput.cluster.read_capacity", raising)
        for _ in range(2):
            with pytest.raises(UnavailableError):
                ledger.view(today, today).result()
    (logged,) = [record for record in caplog.records if record.exc_info]
    assert f"the slot-time of {today} to {today}" in logged.getMessage()
    harness.clock.advance(KEPT.total_seconds() - 1)
    with pytest.raises(UnavailableError):
        ledger.view(today, today).result()
    harness.clock.advance(1)
    assert spent(ledger.view(today, today).result()) == {"idle": 4 * (5.0 + KEPT.total_seconds())}


def test_a_failure_that_is_kept_holds_no_snapshot_and_goes_with_its_age(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, today = ClusterLedger(context), context.now().date()
    with monkeypatch.context() as patch:
        patch.setattr("server.telemetry.goodput.cluster.read_capacity", raising)
        answer = ledger.view(today, today)
        failure = answer.exception(30)
        assert failure is not None
    assert not any("snapshot" in frame.f_locals for frame, _ in walk_tb(failure.__traceback__))
    kept = weakref.ref(answer)
    del answer, failure
    gc.collect()
    assert kept() is not None
    harness.clock.advance(SERVED.total_seconds())
    ledger.view(LONG_AGO, LONG_AGO).result(30)
    gc.collect()
    assert kept() is None
    ledger.close()


def test_an_answer_is_given_while_the_next_one_fails(
    harness: Harness,
    context: Context,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness.clock.advance(5)
    ledger, today = ClusterLedger(context), context.now().date()
    kept = ledger.view(today, today).result()
    monkeypatch.setattr("server.telemetry.goodput.cluster.read_capacity", raising)
    harness.clock.advance(KEPT.total_seconds())
    for _ in range(3):
        assert ledger.view(today, today).result() is kept
    with pytest.raises(UnavailableError):
        ledger.view(LONG_AGO, LONG_AGO).result()  # one thread computes, in order
    assert ledger.view(today, today).result() is kept
    logged = [record.getMessage() for record in caplog.records if record.exc_info]
    assert len([message for message in logged if str(today) in message]) == 1


def test_scrapes_compute_each_five_minutes_and_have_values_meanwhile(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.clock.advance(5)
    began: list[datetime] = []

    def noted(*given: Any, **named: Any) -> list[HeldShare]:
        if named["since"].year > LONG_AGO.year:
            began.append(context.now())
        return read_holdings(*given, **named)

    monkeypatch.setattr("server.telemetry.goodput.cluster.read_holdings", noted)
    ledger = ClusterLedger(context)
    assert ledger.newest(1) is None, "a scrape waits for none"
    first = settled(ledger, context)
    harness.clock.advance(SCRAPED.total_seconds() - 1)
    assert ledger.newest(1) is first
    assert len(began) == 1
    harness.clock.advance(1)
    assert ledger.newest(1) is first
    assert settled(ledger, context) is not first
    assert len(began) == 2
    harness.clock.advance(SERVED.total_seconds())
    assert ledger.newest(1) is None
    ledger.close()


def test_a_scrape_after_midnight_has_the_values_of_the_day_before(
    harness: Harness, context: Context
) -> None:
    harness.clock.advance(86_400 - 10)
    ledger, today = ClusterLedger(context), context.now().date()
    yesterday = today - timedelta(days=1)
    evening = ledger.view(today, today).result()
    ledger.view(today, today, "default").result()
    ledger.view(yesterday, yesterday).result()
    assert ledger.newest(1) is evening
    harness.clock.advance(15)
    assert ledger.newest(1) is evening
    morning = settled(ledger, context)
    assert morning.since.date() == today + timedelta(days=1)
    assert spent(morning) == {"idle": 4 * 5.0}, "the present time is not that of the evening"


def settled(ledger: ClusterLedger, context: Context) -> ClusterGoodputView:
    """Return the newest answer for a day once the thread has finished its computations."""
    other_answer = ledger.view(LONG_AGO, LONG_AGO, context.new_id())
    other_answer.result(30)  # one thread computes, in order
    newest = ledger.newest(1)
    assert newest is not None
    return newest


def raising(*_: object, **__: object) -> NoReturn:
    raise UnavailableError("the database does not answer")
