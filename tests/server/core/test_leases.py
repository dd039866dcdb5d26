"""One mechanism of leases for the nodes of attempts and for operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest
from sqlalchemy import ColumnElement, select, update

from server.core.context import Context
from server.core.errors import ConflictError
from server.core.leases import NODE_LEASES, OPERATION_LEASES, Leases, ServerUptime, check_fence
from server.jobs.checkpoints.service import verify
from server.jobs.operations.service import claim_operation, report_operation
from tests.actors import ADA
from tests.server.clock import FakeClock
from tests.server.harness import WORKER, AnyRow, Harness
from tests.server.yard import APPLY
from trainyard.protocol.worker_messages import PROTOCOL, OperationReport

LEASE = 30.0


@dataclass
class Held:
    """A lease that a node has just claimed."""

    context: Context
    leases: Leases
    report: Callable[[], object]

    def find(self, condition: ColumnElement[bool]) -> AnyRow | None:
        """Return the row with its last sign of life, if the condition holds."""
        columns = [self.leases.table.c[name] for name in self.leases.key]
        query = select(*columns, self.leases.heard_at.label("heard_at"))
        with self.context.database.read() as connection:
            return connection.execute(query.where(condition)).one_or_none()

    def has_expired(self, *, up_seconds: float = 1000.0) -> bool:
        now = self.context.now()
        uptime = ServerUptime(now, up_since=now - timedelta(seconds=up_seconds))
        return self.find(self.leases.expired(uptime, seconds=LEASE)) is not None


@pytest.fixture(params=["node of an attempt", "operation"])
def held(request: pytest.FixtureRequest, context: Context, harness: Harness) -> Held:
    harness.add_node()
    if request.param == "operation":
        job_id, (supervisor,) = harness.running()
        checkpoint = harness.commit_checkpoint(job_id, 4)
        supervisor.end("succeeded")
        operation_id = verify(context, checkpoint, actor=ADA)
        harness.keeper.run()
        fence = claim_operation(context, operation_id, node="node-1", worker=WORKER).fence
        report = OperationReport(protocol=PROTOCOL, node="node-1", fence=fence)
        return Held(
            context,
            OPERATION_LEASES,
            lambda: report_operation(context, operation_id, report, apply=APPLY),
        )
    _, (supervisor,) = harness.launched()
    return Held(context, NODE_LEASES, supervisor.report)


def test_a_claim_counts_until_the_first_report(held: Held, clock: FakeClock) -> None:
    clock.advance(LEASE)
    assert not held.has_expired()
    clock.advance(0.001)
    assert held.has_expired()
    held.report()
    assert not held.has_expired()
    clock.advance(LEASE + 0.001)
    assert held.has_expired()


def test_the_servers_own_absence_counts_against_no_lease(held: Held, clock: FakeClock) -> None:
    clock.advance(1000)
    assert not held.has_expired(up_seconds=LEASE)
    assert held.has_expired(up_seconds=LEASE + 0.001)


def test_a_report_from_before_the_clock_was_set_back_does_not_count(
    held: Held, clock: FakeClock
) -> None:
    held.report()
    clock.advance(-60)
    assert not held.has_expired()
    clock.advance(-0.001)
    assert held.has_expired()


def test_a_lease_is_taken_away_only_from_a_holder_that_was_not_heard_since(
    held: Held, clock: FakeClock
) -> None:
    clock.advance(LEASE + 1)
    found = held.find(held.leases.are_held)
    assert found is not None
    assert held.find(held.leases.unheard_since(found)) == found
    held.report()  # between the read and the transaction that takes it away
    assert held.find(held.leases.unheard_since(found)) is None


def test_what_has_no_holder_does_not_expire(held: Held, clock: FakeClock) -> None:
    clock.advance(LEASE + 1)
    found = held.find(held.leases.are_held)
    assert found is not None
    with held.context.database.write() as connection:
        free = "ended" if held.leases is NODE_LEASES else "queued"
        connection.execute(update(held.leases.table).values(state=free))
    assert not held.has_expired()
    assert held.find(held.leases.unheard_since(found)) is None


def test_a_claim_forgets_the_report_of_an_earlier_one(held: Held, clock: FakeClock) -> None:
    held.report()
    now = clock.advance(5)
    values = held.leases.claim(now)
    with held.context.database.write() as connection:
        connection.execute(update(held.leases.table).values(values))
    row = held.find(held.leases.are_held)
    assert row is not None
    assert row.heard_at == now


def test_a_report_of_another_claim_meets_the_fence() -> None:
    check_fence(("node-1", 2), ("node-1", 2), refusal="")
    with pytest.raises(ConflictError, match="claimed again"):
        check_fence(("node-1", 2), ("node-1", 1), refusal="it was claimed again")
