"""`/queue`: the waiting jobs in order, with expected starts."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from server.api.auth.dependencies import may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.paging import PageRequest, page_by
from server.api.http.path_params import JobId
from server.api.http.request_body import JsonBody
from server.api.http.responses import reply
from server.cluster.placement.demand import QueuedJob, leave_time
from server.cluster.placement.forecast import FORECAST_JOBS, TOO_FAR_BACK, Forecast
from server.cluster.projects.service import check_project
from server.core.context import Context
from server.core.errors import InvalidRequestError
from server.core.lifecycle import check_job
from server.core.people.unix_accounts import account_of
from server.core.subject import Actor
from server.core.visibility.job_labels import label
from server.core.visibility.scope import HIDDEN_JOB
from server.jobs.jobs.checks import check_hardware, check_places, check_spec, check_world_size
from server.jobs.packs.store import check_pack
from server.jobs.queue.duration import duration_of_spec
from server.jobs.queue.forecaster import Forecaster
from server.jobs.queue.groups import demand_of, lasts_of
from server.jobs.queue.order import SEALED, TOKEN, QueueKey, key_of_candidate, read_order
from server.jobs.queue.queries import WaitingJob, count_up_to, find_waiting, read_waiting
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.common import Page
from trainyard.protocol.rest.jobs import QueueEntry, QueuePlace, WhatIf
from trainyard.spec.job import JobSpec
from trainyard.spec.rules import check_new_job
from trainyard.spec.sections.resources import priority_words

router = APIRouter(tags=["queue"])

JobsRead = Annotated[Principal, may(Permission.JOBS_READ)]
Spec = Annotated[JobSpec, Depends(JsonBody(JobSpec))]

NOT_CONSIDERED = "the scheduler does not consider it for slots yet"
NOT_YET = f"it was not among the first {FORECAST_JOBS} jobs when the starts were last forecast"


async def _forecaster_of(request: Request) -> Forecaster:
    forecaster = request.app.state.forecaster
    assert isinstance(forecaster, Forecaster)
    return forecaster


Forecasts = Annotated[Forecaster, Depends(_forecaster_of)]


@router.get(
    "/queue",
    response_model=Page[QueueEntry],
    summary="The waiting jobs, in order",
)
def list_(
    context: ServerContext,
    principal: JobsRead,
    forecasts: Forecasts,
    page: Annotated[PageRequest[str], Depends(page_by("queue", str, f"{TOKEN}|{SEALED}"))],
) -> Response:
    """List the queue with position, priority and reason, and the expected start of the first jobs.

    A page starts after the last job of the previous page, even if that job has started since then.
    A job of a hidden project has only a position and a number of slots.
    """
    scope, actor = principal.scope, principal.actor
    after = None if page.after is None else _key(context, page.after, actor=actor)
    with context.database.read() as connection:
        order = read_order(connection)
        ahead, grouped = (0, 0) if after is None else count_up_to(connection, order, after)
        rows = read_waiting(connection, order, after, limit=page.limit)
    shown, next_page_token = page.cut(rows, lambda row: _token(context, row, actor=actor))
    expected = forecasts.of_queue() if grouped < FORECAST_JOBS else None
    entries = []
    for position, row in enumerate(shown, start=ahead + 1):
        grouped += row.demand is not None
        if scope.sees(row.project):
            entries.append(_entry(row, position, expected if grouped <= FORECAST_JOBS else None))
        else:
            entries.append(_hidden(row, position))
    return reply(Page[QueueEntry](items=tuple(entries), next_page_token=next_page_token))


@router.get(
    "/jobs/{job_id}/queue",
    response_model=QueuePlace,
    summary="The place of a job in the queue",
)
def place_of(
    context: ServerContext, principal: JobsRead, forecasts: Forecasts, job_id: JobId
) -> Response:
    """Return position, reason and expected start of a job; `entry` is null unless the job waits."""
    with context.database.read() as connection:
        check_job(connection, job_id, scope=principal.scope)
        order = read_order(connection)
        row = find_waiting(connection, order, job_id)
        if row is None:
            return reply(QueuePlace(entry=None))
        position, grouped = count_up_to(connection, order, row.key)
    near = row.demand is not None and grouped <= FORECAST_JOBS
    expected = forecasts.of_queue() if near else None
    return reply(QueuePlace(entry=_entry(row, position, expected)))


@router.post(
    "/queue/what-if",
    response_model=WhatIf,
    summary="When would this job start?",
)
def what_if(
    context: ServerContext, principal: JobsRead, forecasts: Forecasts, spec: Spec
) -> Response:
    """Check a spec as a submission does, and return the job's place in the queue; store nothing."""
    check_spec(context, spec, rules=check_new_job)
    check_world_size(context, spec.resources.world_size, pointer="/resources/world_size")
    priority, now = spec.resources.priority, context.now()
    with context.database.read() as connection:
        reads, scope = Permission.JOBS_READ, principal.scope
        check_project(connection, spec.project, scope=scope, permission=reads)
        check_hardware(connection, spec)
        account = account_of(connection, principal.actor.owner_id)
        check_places(connection, spec, scope=scope)
        if spec.pack is not None:
            check_pack(connection, spec.pack, actor=principal.actor)
        order = read_order(connection, candidate=spec.project)
        key = key_of_candidate(connection, order, project=spec.project, priority=priority, now=now)
        ahead, grouped = count_up_to(connection, order, key)
        duration = duration_of_spec(connection, spec, scope=scope)
    demand = demand_of(spec, Overrides(), spec.layout(), bound=None, account=account)
    if grouped >= FORECAST_JOBS:
        return reply(WhatIf(position=ahead + 1, unknown_because=TOO_FAR_BACK))
    candidate = QueuedJob(
        context.new_id(),
        label(spec.project, spec.name),
        demand,
        lasts=None if duration is None else lasts_of(duration.seconds),
        lasts_on=None if duration is None else duration.device,
        lasts_on_name=None if duration is None else duration.device_name,
        bound=lasts_of(spec.resources.max_runtime_seconds),
        leaves_within=leave_time(None if spec.program is None else spec.program.stop_grace_seconds),
        priority=priority,
        project=spec.project,
        owner_id=principal.actor.owner_id,
        preemptible=spec.is_preemptible,
    )
    expected = forecasts.with_candidate(candidate, key)
    view = WhatIf(
        starts_now=candidate.id not in expected.waiting,
        position=ahead + 1,
        reason=expected.waiting.get(candidate.id),
        expected_start_at=expected.starts.get(candidate.id),
        unknown_because=expected.unknown.get(candidate.id),
    )
    return reply(view)


def _token(context: Context, row: WaitingJob, *, actor: Actor) -> str:
    token = row.key.token
    if actor.scope.sees_all:
        return token
    return context.secrets.seal_text(token, purpose=_purpose(actor))


def _key(context: Context, token: str, *, actor: Actor) -> QueueKey:
    """Return the key in a page token; only callers who see all jobs may give a plain one.

    Raises:
        InvalidRequestError: the token is no plain one, and this server did not encrypt it for a
            page of the caller.
    """
    opened: str | None = token
    if not actor.scope.sees_all:
        opened = context.secrets.open_text(token, purpose=_purpose(actor))
    if opened is None or not re.fullmatch(TOKEN, opened):
        raise InvalidRequestError.at(
            "query/page_token", f"unknown page token {token[:80]!r}: take next_page_token of a page"
        )
    return QueueKey.parse(opened)


def _purpose(actor: Actor) -> str:
    """Return the purpose of an encrypted page token, which no other caller can use."""
    return f"page of /queue for {actor.identity}"


def _hidden(row: WaitingJob, position: int) -> QueueEntry:
    """Return the entry of a job that the caller does not see."""
    return QueueEntry(
        job_id=None,
        name=HIDDEN_JOB,
        project=None,
        position=position,
        priority=None,
        priority_words="",
        world_size=row.world_size,
        layout="",
        queued_at=None,
        reason=None,
        expected_start_at=None,
        unknown_because=None,
    )


def _entry(row: WaitingJob, position: int, expected: Forecast | None) -> QueueEntry:
    """Return the view of a job; jobs far back in the queue have no forecast."""
    start, why, before = None, TOO_FAR_BACK, None
    if row.demand is None:
        why = NOT_CONSIDERED
    elif expected is not None:
        start = expected.starts.get(row.id)
        why = expected.unknown.get(row.id, NOT_YET)
        before = expected.backfilled.get(row.id)
    computed = {
        "job_id": row.id,
        "position": position,
        "priority_words": priority_words(row.priority),
        "expected_start_at": start,
        "unknown_because": None if start is not None else why,
        "backfilled_before": before,
    }
    return QueueEntry(**row.values_for(QueueEntry) | computed)
