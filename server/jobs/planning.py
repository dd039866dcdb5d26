"""What a spec would amount to here: refused or worked out as a submission would, nothing stored."""

from __future__ import annotations

from sqlalchemy import Connection, select

import planner.plan
from server.context import Context
from server.jobs.checks import check_spec, check_world_size
from server.tables import nodes
from specs.job import JobSpec
from specs.plan import Plan


def plan_job(context: Context, spec: JobSpec) -> Plan:
    """Return the plan of a job.

    Raises:
        InvalidRequestError: a submission would be refused.
    """
    check_spec(context, spec)
    with context.database.read() as connection:
        check_world_size(connection, spec.resources.world_size, pointer="/resources/world_size")
        memory = smallest_slot_bytes(connection, device=spec.resources.device)
    return planner.plan.plan(spec, device_memory_bytes=memory)


def smallest_slot_bytes(connection: Connection, *, device: str) -> int | None:
    """Return the memory of the smallest slot of a kind of device; None when there is no node."""
    query = select(nodes.c.hardware)
    if device != "auto":
        query = query.where(nodes.c.device == device)
    return min((h.device_memory_bytes for h in connection.scalars(query)), default=None)
