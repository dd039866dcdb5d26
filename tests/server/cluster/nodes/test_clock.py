"""A node whose clock is far from the database's gets nothing new, and its state does not flap."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from server.cluster.nodes.health import clock_is_wrong
from server.cluster.nodes.slots import CLOCK
from server.core.context import Context
from server.core.database.engine import database_time
from server.core.database.tables import nodes
from server.jobs.attempts.node_heartbeat import node_heartbeat
from tests.server.cluster.nodes.gpu_node import (
    FOREIGN,
    PYTHON,
    GpuNode,
    heartbeat,
    sample,
    with_disk,
)
from tests.server.harness import Harness
from trainyard.protocol.node_samples import DATA_DIR_FULL
from trainyard.protocol.worker_messages import ClockReading

GPUS = sample(a={}, b={})


def reading(skew: float, error: float = 0.1) -> ClockReading:
    return ClockReading(skew_seconds=skew, error_seconds=error)


@pytest.mark.parametrize(
    ("skew", "error", "before", "wrong"),
    [
        (4.9, 0.1, False, False),
        (5.2, 0.1, False, True),
        (-5.2, 0.1, False, True),  # behind the database
        (9.0, 7.5, False, False),  # a slow network proves nothing
        (5.2, 0.1, True, True),
        (2.6, 0.1, True, True),  # no flapping near the limit
        (2.3, 0.1, True, False),
        (0.0, 7.5, True, True),  # nor is it right before that is certain
    ],
)
def test_a_clock_is_wrong_once_it_certainly_is(
    skew: float, error: float, before: bool, wrong: bool
) -> None:
    assert clock_is_wrong(reading(skew, error), before=before, limit=5.0) is wrong
    assert clock_is_wrong(None, before=before, limit=5.0) is before
    assert not clock_is_wrong(reading(skew, error), before=before, limit=0.0)


def test_the_answers_of_all_servers_have_the_time_of_the_database(
    harness: Harness, context: Context, node: GpuNode
) -> None:
    """A server with a wrong clock compares no node with it."""

    def now() -> float:
        with context.database.read() as connection:
            return connection.scalars(select(database_time(connection))).one().timestamp()

    node.register("a")
    for own in (0, 86_400):
        harness.clock.advance(own)
        before = now()
        reply = node_heartbeat(context, heartbeat())
        assert before <= reply.time <= now()


def test_nothing_is_placed_on_a_node_whose_clock_is_wrong(harness: Harness, node: GpuNode) -> None:
    node.register("a", "b")
    running, _ = harness.running()
    node_heartbeat(harness.context, heartbeat(sample=GPUS, clock=reading(7.3)))
    view = node.view
    assert (view.clock_skew_seconds, view.free_slots) == (7.3, 0)
    assert view.problems == ("its clock is 7.3 s ahead of the database's",)
    assert [(each.slot, each.reason) for each in view.withheld] == [(1, CLOCK)]
    waiting = harness.submit()
    assert harness.place() == 0
    assert f"slot 1 of gpu-01 is withheld ({CLOCK})" in (harness.job(waiting).reason or "")
    assert harness.job(running).state == "running"
    # A heartbeat without a reading, a slight correction and a new worker change nothing.
    node.beat(GPUS)
    node_heartbeat(harness.context, heartbeat(sample=GPUS, clock=reading(-4.0)))
    node.register("a", "b")
    assert node.view.problems == ("its clock is 4.0 s behind the database's",)
    assert harness.place() == 0
    node_heartbeat(harness.context, heartbeat(sample=GPUS, clock=reading(0.01)))
    view = node.view
    assert (len(view.withheld), len(view.problems)) == (0, 0)
    assert harness.place() == 1


def test_the_reason_of_a_device_is_shown_first_and_stays_after_the_clock_is_right(
    harness: Harness, node: GpuNode
) -> None:
    node.register("a", "b")
    held = sample(a={"foreign": (PYTHON,)}, b={})
    node_heartbeat(harness.context, heartbeat(sample=held, clock=reading(60.0)))
    assert [each.reason for each in node.view.withheld] == [FOREIGN, CLOCK]
    node_heartbeat(harness.context, heartbeat(sample=with_disk("data_dir", 0), clock=reading(60.0)))
    assert [each.reason for each in node.view.withheld] == [FOREIGN, DATA_DIR_FULL]
    node_heartbeat(harness.context, heartbeat(sample=None, clock=reading(0.0)))
    assert [each.reason for each in node.view.withheld] == [FOREIGN, DATA_DIR_FULL], "no reading"
    node.beat(with_disk("data_dir", 1 << 30))
    assert [(each.slot, each.reason) for each in node.view.withheld] == [(0, FOREIGN)]


def test_slots_without_devices_are_withheld_too(context: Context, harness: Harness) -> None:
    harness.add_node("node-1", slots=2)
    wrong = heartbeat(clock=reading(60.0)).model_copy(update={"node": "node-1"})
    node_heartbeat(context, wrong)
    with context.database.read() as connection:
        (withheld,) = connection.scalars(select(nodes.c.withheld))
    assert withheld == {"0": CLOCK, "1": CLOCK}
    harness.submit()
    assert harness.place() == 0
