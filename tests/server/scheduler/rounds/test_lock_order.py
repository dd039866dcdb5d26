"""Transactions that lock the same rows: no deadlock."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from sqlalchemy import Connection, select, text, update

from server.api.auth.principals import lock_users
from server.cluster.membership.service import remove_member
from server.cluster.projects.service import change_project, create_project, keep_project
from server.core.context import Context
from server.core.database.tables import events, nodes
from server.core.lifecycle import lock_job
from server.core.liveness import beat
from server.core.visibility.scope import SYSTEM_SCOPE
from tests.actors import ADA, ADMIN
from tests.server.harness import Harness
from tests.server.members import OURS
from tests.server.reports import chunk, kept_events, metric_lines, send
from tests.server.user_limits import act_as, limit_own, submit_ours
from trainyard.protocol.rest.projects import ProjectRequest, ProjectSettings
from trainyard.run.directory import Phase
from trainyard.run.failures import FailureReason

BLOCKED = text(
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def run_between(
    context: Context,
    first: Callable[[Connection], object],
    *,
    action: Callable[[], object],
    second: Callable[[Connection], object],
) -> None:
    """Run `action` during a transaction that locks with `first`, then with `second`."""
    with ThreadPoolExecutor(1) as pool:
        with context.database.write() as connection:
            first(connection)
            running = pool.submit(action)
            while not (context.database.is_sqlite or running.done() or is_blocked(context)):
                time.sleep(0.01)
            second(connection)
        running.result()


def is_blocked(context: Context) -> bool:
    """Return whether a transaction of this database waits for a lock."""
    with context.database.read() as connection:
        return bool(connection.scalar(BLOCKED))


def touch(connection: Connection, *, node: str) -> None:
    connection.execute(update(nodes).where(nodes.c.name == node).values(version="1"))


def test_nodes_go_offline_in_the_order_of_their_names(harness: Harness, context: Context) -> None:
    beat(context)
    for name in ("b", "a"):
        harness.add_node(name)
    for _ in range(60):
        harness.clock.advance(1)
        beat(context)
    run_between(
        context,
        partial(touch, node="a"),
        action=harness.reconciler.run,
        second=partial(touch, node="b"),
    )
    with context.database.read() as connection:
        offline = select(events.c.node).where(events.c.kind == "node_offline")
        assert connection.scalars(offline.order_by(events.c.id)).all() == ["a", "b"]


def test_a_report_locks_the_nodes_of_its_attempt_in_the_order_of_their_names(
    harness: Harness, context: Context
) -> None:
    for name in ("a", "b"):
        harness.add_node(name, slots=1)
    _, (one, other) = harness.launched(resources={"world_size": 2})
    assert one.reply.attempt.check_network
    (of_b,) = (each for each in (one, other) if each.node == "b")
    report = partial(of_b.report, phase=Phase.TRAINING, unusable={"GPU-a": "does not answer"})
    run_between(context, partial(touch, node="a"), action=report, second=partial(touch, node="b"))
    hang = partial(of_b.end, "failed", FailureReason.HANG)
    run_between(context, partial(touch, node="a"), action=hang, second=partial(touch, node="b"))


def test_a_report_locks_its_node_before_the_event_that_metrics_are_dropped(
    harness: Harness, context: Context
) -> None:
    """In the order of a heartbeat, which holds its node while it waits to append an event."""
    harness.add_node("a", slots=1)
    job_id, (supervisor,) = harness.launched()
    last = harness.job(job_id).spec.training.steps
    lines = chunk("metrics", metric_lines(last, last + 1))
    report = partial(send, context, supervisor, lines, unusable={"GPU-a": "does not answer"})
    run_between(
        context, partial(touch, node="a"), action=report, second=context.database.lock_events
    )
    (dropped,) = kept_events(context, "metrics_dropped")
    assert dropped["what"] == "steps"


def test_a_project_changes_while_a_job_of_it_is_forked(harness: Harness, context: Context) -> None:
    name = create_project(context, ProjectRequest(name="vision"), actor=ADA).name
    job_id = harness.submit(project=name)
    harness.place()
    group = harness.job(job_id).demand
    settings = ProjectSettings(max_slots=4)
    run_between(
        context,
        partial(lock_job, job_id=job_id),
        action=partial(change_project, context, name, settings, actor=ADA),
        second=partial(keep_project, name=name, scopes=[SYSTEM_SCOPE]),
    )
    assert harness.job(job_id).demand not in {None, group}


def test_a_user_is_limited_while_a_job_of_the_user_is_transferred(
    harness: Harness, context: Context
) -> None:
    act_as(harness, "ada")
    job_id = submit_ours(harness)
    harness.place()
    group = harness.job(job_id).demand
    changes: list[Callable[[], object]] = [
        partial(limit_own, context, "ada", max_slots=4),
        partial(remove_member, context, OURS, "ada", actor=ADMIN),
    ]
    for change in changes:
        run_between(
            context,
            partial(lock_users, user_ids=[harness.actor.user_id]),
            action=change,
            second=partial(lock_job, job_id=job_id),
        )
        assert harness.job(job_id).demand not in {None, group}
        group = harness.job(job_id).demand
