"""When the slot-time of a cluster is computed, kept and given again, on both databases."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from threading import Event, Timer
from typing import Any, NoReturn

import pytest
from sqlalchemy import Connection

from server.context import Context
from server.errors import UnavailableError
from server.goodput.capacity import CapacityKeeper
from server.goodput.cluster import KEPT, SERVED, ClusterLedger
from server.goodput.holdings import HeldShare, read_holdings
from server.goodput.queries import JobRecords, read_records
from tests.server.goodput.test_cluster import spent
from tests.server.harness import Harness


def test_one_computation_serves_a_minute(harness: Harness, context: Context) -> None:
    harness.add_node(slots=4)
    CapacityKeeper(context).run()
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
    harness.add_node(slots=4)
    CapacityKeeper(context).run()
    job_id, _ = harness.launched(resources={"world_size": 2})
    harness.clock.advance(7)
    read: list[str] = []

    def noted(
        context: Context, connection: Connection, job_ids: Collection[str]
    ) -> dict[str, JobRecords]:
        read.extend(job_ids)
        return read_records(context, connection, job_ids)

    monkeypatch.setattr("server.goodput.cluster.read_records", noted)
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
    harness.add_node(slots=4)
    CapacityKeeper(context).run()
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

    monkeypatch.setattr("server.goodput.cluster.read_records", slow)
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
    """A computation that outlives the application would find its database closed."""
    harness.add_node(slots=4)
    CapacityKeeper(context).run()
    ledger, today = ClusterLedger(context), context.now().date()
    may_end = Event()

    def slow(*given: Any, **named: Any) -> list[HeldShare]:
        assert may_end.wait(30)
        return read_holdings(*given, **named)

    monkeypatch.setattr("server.goodput.cluster.read_holdings", slow)
    answer = ledger.view(today, today)
    Timer(0.2, may_end.set).start()
    ledger.close()
    assert answer.done()
    assert answer.exception() is None


def test_an_answer_that_failed_is_computed_anew(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.add_node(slots=4)
    CapacityKeeper(context).run()
    harness.clock.advance(5)
    ledger, today = ClusterLedger(context), context.now().date()
    with monkeypatch.context() as patch:
        patch.setattr("server.goodput.cluster.read_capacity", raising)
        with pytest.raises(UnavailableError):
            ledger.view(today, today).result()
    assert spent(ledger.view(today, today).result()) == {"idle": 4 * 5.0}


def raising(*_: object, **__: object) -> NoReturn:
    raise UnavailableError("the database does not answer")
