"""What a spec would amount to here: refused or worked out as a submission would, nothing stored."""

from __future__ import annotations

import planner.plan
from server.context import Context
from server.jobs.checks import check_hardware, check_spec, check_world_size, known_slots
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
        check_hardware(connection, spec)
        slots = known_slots(connection)
    return planner.plan.plan(spec, slots=slots)
