"""The plan of a spec, which is checked like a submission but not stored."""

from __future__ import annotations

import trainyard.planner.plan
from server.cluster.nodes.predictor import predictor_of
from server.cluster.projects.service import check_project
from server.core.context import Context
from server.core.subject import Actor
from server.jobs.jobs.checks import (
    check_hardware,
    check_spec,
    check_start,
    check_world_size,
    known_slots,
    too_few_slots,
)
from server.jobs.packs.store import check_pack
from trainyard.planner.results import Plan, ProgramPlan
from trainyard.protocol.rest.access import Permission
from trainyard.spec.job import JobSpec
from trainyard.spec.rules import check_new_job


def plan_job(context: Context, spec: JobSpec, *, actor: Actor) -> Plan | ProgramPlan:
    """Return the plan of a job, with a warning if all nodes together have too few slots.

    No node is needed, because people need a plan before they buy machines. Registered nodes add the
    checks of their hardware, and the predicted speed.

    Raises:
        InvalidRequestError: a submission of the spec would be refused.
    """
    size, pointer = spec.resources.world_size, "/resources/world_size"
    check_spec(context, spec, rules=check_new_job)
    check_world_size(context, size, pointer=pointer)
    with context.database.read() as connection:
        missing = too_few_slots(connection, size, pointer=pointer)
        reads = Permission.JOBS_READ
        check_project(connection, spec.project, scope=actor.scope, permission=reads)
        check_hardware(connection, spec)
        check_start(connection, spec, scope=actor.scope)
        if spec.pack is not None:
            check_pack(connection, spec.pack, actor=actor)
        slots = () if missing else known_slots(connection)
        predictor = predictor_of(connection, spec)
    planned = trainyard.planner.plan.plan_job(spec, slots=slots, predictor=predictor)
    return planned.model_copy(update={"warnings": (*missing, *planned.warnings)})
