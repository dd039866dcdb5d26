"""Elastic jobs: the settings that a person chose, and the record of a changed size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from sqlalchemy import Connection, select, update

from server.cluster.nodes.capacity import read_offers
from server.cluster.placement.fit import fits
from server.cluster.placement.quotas import Quota, is_exceeded
from server.core.context import Context
from server.core.database.rows import Job
from server.core.database.tables import attempt_nodes, jobs
from server.core.events.store import NewEvent, append_event
from server.core.people.unix_accounts import account_of
from server.core.subject import SCHEDULER, Subject
from server.jobs.jobs.checks import known_slots
from server.jobs.jobs.next_attempt import Baseline
from server.jobs.queue.groups import demand_of
from server.scheduler.elastic.sizes import fastest
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.rest.jobs import SizeChange
from trainyard.protocol.states import DesiredState
from trainyard.spec.layout import Layout


def chosen_by_a_person(job: Job) -> Baseline:
    """Return the settings that a person chose last, at submission or at a later resume.

    Each change of size starts from these settings, not from the previous size. So a micro-batch
    size that was lowered for fewer ranks is restored when the job has more ranks again.

    Raises:
        UnreadableError: another version wrote the spec or the settings.
    """
    chosen = job.chosen
    overrides = Overrides() if chosen is None else chosen.overrides
    layout = job.spec.layout() if chosen is None else chosen.layout
    return Baseline(job.spec, overrides.with_priority(job.spec, job.priority), layout)


def size_range_of(baseline: Baseline) -> tuple[int, int]:
    """Return the minimum and maximum number of slots of an elastic job."""
    found = baseline.effective.resources.size_range
    assert found is not None, "the row of an elastic job has a range"
    return found


def can_continue(
    connection: Connection, job_id: str, attempt_id: str, quotas: Mapping[str, Quota]
) -> bool:
    """Return whether one of a job's sizes fits if its attempt's silent nodes are left out.

    The slots of the attempt on all other nodes, including spare nodes, count as free, because the
    end of the attempt frees them. The result is False if the job is ordered to end, or if its
    project exceeds a quota or its owner a limit.

    Raises:
        UnreadableError: another version wrote the spec or the settings.
    """
    job = Job.one(connection, Job.select().where(jobs.c.id == job_id))
    if job.desired != DesiredState.RUN and job.pending is None:
        return False
    if is_exceeded(quotas, job.project, job.owner_id):
        return False
    baseline = chosen_by_a_person(job)
    share = attempt_nodes.c
    of_attempt = select(share.node).where(share.attempt_id == attempt_id)
    silent = connection.scalars(of_attempt.where(share.unreachable_since.is_not(None))).all()
    offers = read_offers(connection, without_job=job_id)
    offers = [offer for offer in offers if offer.node not in silent]
    layouts: Iterable[Layout] = [baseline.layout]
    if baseline.effective.resources.size_range is not None:
        low, high = size_range_of(baseline)
        free, slots = sum(len(offer.free) for offer in offers), known_slots(connection)
        numbers = range(low, min(high, free) + 1)
        sizes = (fastest(baseline, number, slots=slots) for number in numbers)
        layouts = (size.layout for size in sizes if size is not None)
    account = account_of(connection, job.owner_id)
    of_job = partial(demand_of, job.spec, baseline.overrides, bound=job.storage, account=account)
    demands = map(of_job, layouts)
    return any(fits(replace(demand, spare_nodes=0), offers) for demand in demands)


def record_change(
    context: Context, connection: Connection, job: Job, layout: Layout, *, reason: str
) -> None:
    """Store the scheduler's change of a job's size, with an event; the caller locks the job."""
    before, now = job.world_size, layout.world_size
    change = SizeChange(at=context.now(), before=before, world_size=now, reason=reason)
    connection.execute(update(jobs).where(jobs.c.id == job.id).values(size_change=change))
    verb = "shrinks" if now < before else "grows"
    shape = f" as {layout}" if job.spec.has_axes else ""
    message = f"{job.name} {verb} from {before} to {layout.slots_in_words}{shape}: {reason}"
    append_event(context, connection, NewEvent(change, SCHEDULER, Subject(job.id), message))
