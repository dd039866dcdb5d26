"""A former leader writes nothing: each kind of write of a scheduler is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import select

from server.api.accounts.throttle import count_guess, forget_failed_logins, of_address
from server.app.periodic_work import periodic_work
from server.cluster.nodes.changes import set_drain
from server.core.context import Context
from server.core.database.engine import Database, LeadLostError
from server.core.database.schema import metadata
from server.core.liveness import beat
from server.jobs.checkpoints.service import verify
from server.jobs.jobs.idempotency import forget_old_keys
from server.jobs.queue.groups import enter_groups
from server.scheduler.rounds.drain import order_isolation, run_drain
from server.scheduler.rounds.leader import Leader, leading
from server.scheduler.rounds.loop import Scheduler
from server.scheduler.rounds.operations import OperationKeeper
from server.scheduler.rounds.reconcile import Reconciler
from server.scheduler.rounds.round import Placer
from tests.actors import ADA
from tests.server.harness import Harness
from tests.server.scheduler.rounds.test_leader import expire, row_of
from tests.server.submit import submit
from tests.server.yard import Yard
from trainyard.spec.job import parse_job_spec

Part = Callable[[Context], object]


# The writes of a scheduler. Each function makes one due, and returns the part that writes it.


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


def a_node_is_marked_offline(harness: Harness) -> Part:
    beat(harness.context)
    harness.add_node()
    harness.pass_time(40)
    return reconciling(harness)


def a_share_is_marked_unreachable(harness: Harness) -> Part:
    beat(harness.context)
    harness.add_node()
    _, (supervisor,) = harness.running()
    harness.reconcile(seconds=40)  # the node is offline, and the share unreachable
    supervisor.train(2)
    lease = int(harness.context.settings.lease_seconds)
    harness.pass_time(lease + 1)
    return reconciling(harness)


def a_lost_share_is_ended(harness: Harness) -> Part:
    beat(harness.context)
    harness.add_node()
    harness.running(retry={"node_lost_after_seconds": 60})
    harness.reconcile(seconds=59)
    harness.pass_time(2)
    return reconciling(harness)


def an_unclaimed_launch_is_given_up(harness: Harness) -> Part:
    beat(harness.context)
    harness.add_node()
    harness.submit()
    harness.place()
    harness.reconcile(seconds=119)
    harness.pass_time(2)
    return reconciling(harness)


def a_launch_is_sent_again(harness: Harness) -> Part:
    beat(harness.context)
    harness.add_node()
    harness.submit()
    harness.place()
    harness.pass_time(int(harness.context.settings.resend_seconds) + 1)
    return reconciling(harness)


def an_old_key_is_deleted(harness: Harness) -> Part:
    spec = parse_job_spec({"name": "tiny"})
    submit(harness.context, spec, actor=ADA, idempotency_key="k" * 20)
    harness.clock.advance(timedelta(days=400).total_seconds())
    return forget_old_keys


def a_window_of_failed_logins_is_deleted(harness: Harness) -> Part:
    count_guess(harness.context, [of_address("192.0.2.1")])
    harness.pass_time(61)
    return forget_failed_logins


def a_drain_is_ordered(harness: Harness) -> Part:
    harness.add_node()
    harness.running()
    set_drain(harness.context, "node-1", "move", actor=ADA)
    return lambda context: run_drain(context, order_isolation(context))


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
    harness.pass_time(int(harness.context.settings.lease_seconds) + 1)
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
    former = Scheduler(context, harness.dispatcher, leader=first, work_of=periodic_work)
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
    scheduler = Scheduler(context, harness.dispatcher, leader=first, work_of=periodic_work)
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
    """Return every row except those of the lead and the beats."""
    others = [t for t in metadata.sorted_tables if t.name not in {"leaders", "liveness"}]
    with database.read() as connection:
        return {t.name: sorted(map(repr, connection.execute(select(t)))) for t in others}


def messages(harness: Harness) -> int:
    dispatcher = harness.dispatcher
    return len(dispatcher.sent) + len(dispatcher.operations)
