"""Nodes near the end of their allocation take no new job; drains of people stay."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from server.cluster.nodes.changes import set_drain
from server.core.context import Context
from server.core.database.tables import nodes
from server.scheduler.autoscaling.leave_before_end import LeaveKeeper
from tests.actors import ADA
from tests.server.clock import FakeClock
from tests.server.cluster.supply.site import Site, instance
from trainyard.protocol.rest.nodes import Running


@pytest.mark.parametrize("running", ["finish", "move"])
def test_an_end_that_is_near_leaves_the_drain_of_a_person(
    site: Site, context: Context, clock: FakeClock, running: Running
) -> None:
    leaving = LeaveKeeper(context)
    request_id = site.running(2)
    site.join(request_id)
    site.join(request_id, index=1)
    first, second = (f"slurm-{request_id}-{number}" for number in (0, 1))
    set_drain(context, second, running, actor=ADA, reasons=("a repair",))
    drains = select(nodes.c.drain).where(nodes.c.name.in_((first, second))).order_by(nodes.c.name)

    def drained_after(seconds: float) -> list[tuple[str, str] | None]:
        end, instances = clock.now().timestamp() + seconds, [instance(0), instance(1)]
        site.describe(request_id, "running", nodes=instances, ends_at=end)
        clock.advance(1)
        leaving.run()
        with context.database.read() as connection:
            found = connection.scalars(drains).all()
        return [None if each is None else (each.by, each.running) for each in found]

    assert drained_after(300) == [("scheduler", "finish"), ("ada", running)]
    assert drained_after(3600) == [None, ("ada", running)]
