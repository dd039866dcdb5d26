"""`/jobs`: submit, list, read and control jobs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from server.api.accounts.queries import names_of
from server.api.auth.dependencies import may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.group_commit import answer_or_error, served_together
from server.api.http.paging import PageRequest, page_by
from server.api.http.path_params import CheckpointId, JobId
from server.api.http.request_body import JsonBody
from server.api.http.responses import reply, reply_page
from server.core.context import Context
from server.core.database.rows import Job
from server.core.visibility.scope import Scope
from server.jobs.attempts.queries import list_requests, read_request
from server.jobs.jobs import fork as forks
from server.jobs.jobs import resume as resumes
from server.jobs.jobs import service
from server.jobs.jobs.listing import JobFilter, count_jobs, list_jobs
from server.jobs.jobs.planning import plan_job
from server.jobs.jobs.queries import job_view, list_attempts, list_events, view_after, view_of
from server.jobs.jobs.submission import SubmittedSpec, submit_all
from server.jobs.operations.queries import read_operation
from trainyard.base.names import MEMBER_NAME, NAME
from trainyard.planner.results import AnyPlan
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.attempts import AttemptView
from trainyard.protocol.rest.checkpoints import ForkReply, ForkRequest, JobDeletedView
from trainyard.protocol.rest.common import Page
from trainyard.protocol.rest.events import EventView
from trainyard.protocol.rest.jobs import (
    CancelReply,
    JobCounts,
    JobOrder,
    JobRequest,
    JobRequestView,
    JobSummary,
    JobView,
    PriorityRequest,
    StopRequest,
)
from trainyard.protocol.rest.resume import ResumeOptions, ResumeReply, ResumeRequest
from trainyard.protocol.states import JobState
from trainyard.run.records import Request as TrainerRequest
from trainyard.spec.job import JobSpec, Tag

JobsRead = Annotated[Principal, may(Permission.JOBS_READ)]
JobsWrite = Annotated[Principal, may(Permission.JOBS_WRITE)]

router = APIRouter(tags=["jobs"])

Spec = Annotated[JobSpec, Depends(JsonBody(JobSpec))]
StopBody = Annotated[StopRequest, Depends(JsonBody(StopRequest, default=StopRequest()))]
ResumeBody = Annotated[ResumeRequest, Depends(JsonBody(ResumeRequest, default=ResumeRequest()))]
ForkBody = Annotated[ForkRequest, Depends(JsonBody(ForkRequest, default=ForkRequest()))]
PriorityBody = Annotated[PriorityRequest, Depends(JsonBody(PriorityRequest))]
RequestBody = Annotated[JobRequest, Depends(JsonBody(JobRequest))]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="A key of the caller's choice: the same key with the same body returns the "
        "same job, so that a repeat is harmless; with another body it is refused.",
    ),
]


@router.post("/jobs", status_code=201, response_model=JobView, summary="Submit a job")
async def submit(
    request: Request, principal: JobsWrite, spec: Spec, idempotency_key: IdempotencyKey = None
) -> Response:
    """Check the whole spec and queue the job. A queued job shows the reason why it waits."""
    submission = SubmittedSpec(spec, principal.actor, idempotency_key)
    return await served_together(request, _submitted, submission, key=submission.key)


def _submitted(
    context: Context, submissions: Sequence[SubmittedSpec]
) -> list[Response | Exception]:
    """Store concurrent submissions, and return a response or an error for each."""
    return [
        job
        if isinstance(job, Exception)
        else answer_or_error(partial(_created, context, job, scope=each.actor.scope))
        for job, each in zip(submit_all(context, submissions), submissions, strict=True)
    ]


def _created(context: Context, job: Job, *, scope: Scope) -> Response:
    headers = {"location": f"/api/v1/jobs/{job.id}"}
    return reply(view_of(context, job, scope=scope), status=201, headers=headers)


JOB_KEY = r"^[012][0-9a-hjkmnp-tv-z]{26}-?[0-9]{1,3}$"
"""Pattern of `ListedJob.key`: rank of the group, id, and the priority."""


async def job_filter(
    principal: JobsRead,
    state: Annotated[
        list[JobState] | None, Query(max_length=8, description="In one of these states.")
    ] = None,
    tag: Annotated[
        list[Tag] | None, Query(max_length=8, description="With all of these tags.")
    ] = None,
    name: Annotated[
        str | None, Query(pattern=NAME, max_length=80, description="With this name.")
    ] = None,
    project: Annotated[
        str | None, Query(pattern=NAME, max_length=80, description="Of this project.")
    ] = None,
    search: Annotated[
        str | None,
        Query(
            pattern=r"^[^\x00-\x1f\x7f]+$",
            max_length=200,
            description="Words in any order, each in the name, in a tag, or at the beginning of "
            "the id; or `name=value` of the configuration. Case does not matter.",
        ),
    ] = None,
    imported: Annotated[
        bool | None, Query(description="Recorded by another tool (`true`), or run here (`false`).")
    ] = None,
    owner: Annotated[
        str | None, Query(pattern=MEMBER_NAME, description="Owned by the user of this name.")
    ] = None,
    mine: Annotated[bool, Query(description="Owned by the caller's user.")] = False,
) -> JobFilter:
    """Return the filter from the query parameters."""
    return JobFilter(
        tuple(state or ()),
        tuple(tag or ()),
        name,
        project,
        search,
        imported,
        owner=owner,
        owner_id=principal.actor.owner_id if mine else None,
    )


Wanted = Annotated[JobFilter, Depends(job_filter)]


@router.get(
    "/jobs",
    response_model=Page[JobSummary],
    summary="List jobs",
)
def list_(
    context: ServerContext,
    principal: JobsRead,
    page: Annotated[PageRequest[str], Depends(page_by("jobs", str, JOB_KEY))],
    wanted: Wanted,
    order: Annotated[
        JobOrder,
        Query(
            description="`newest`: newest first. `active`: running jobs, then queued ones by "
            "priority, then ended ones."
        ),
    ] = JobOrder.NEWEST,
) -> Response:
    """List jobs, newest first or active jobs first.

    A page token is valid only with the order and the filter of the page that returned the token.
    """
    scope = principal.scope
    rows = list_jobs(context, wanted, order, scope=scope, after=page.after, limit=page.limit)
    shown, next_page_token = page.cut(rows, lambda row: row.key)
    owners = names_of(context, {row.owner_id for row in shown})
    return reply_page([row.summary(owners) for row in shown], next_page_token)


@router.get(
    "/jobs/counts",
    response_model=JobCounts,
    summary="Count jobs by state",
)
def counts(context: ServerContext, principal: JobsRead, wanted: Wanted) -> Response:
    """Count the matching jobs by state; the count of a state without jobs is 0."""
    return reply(JobCounts(by_state=count_jobs(context, wanted, scope=principal.scope)))


@router.post(
    "/jobs/plan",
    response_model=AnyPlan,
    summary="Check a spec and plan it",
)
def plan(context: ServerContext, principal: JobsRead, spec: Spec) -> Response:
    """Check a spec as a submission does, and return the plan without storing a job."""
    return reply(plan_job(context, spec, actor=principal.actor))


@router.get(
    "/schema/job",
    dependencies=[may(Permission.JOBS_READ)],
    summary="The JSON Schema of the job spec",
)
def schema() -> dict[str, object]:
    """Return the JSON schema of a spec, from which the submit form is generated."""
    return JobSpec.model_json_schema()


@router.get(
    "/jobs/{job_id}",
    response_model=JobView,
    summary="One job, whole",
)
def get(context: ServerContext, principal: JobsRead, job_id: JobId) -> Response:
    """Return a job with its spec, its newest attempt and the currently legal commands."""
    return reply(job_view(context, job_id, scope=principal.scope))


@router.delete(
    "/jobs/{job_id}",
    status_code=204,
    responses={202: {"model": JobDeletedView, "description": "Its checkpoints are deleted too."}},
    summary="Remove a finished job",
)
def delete(
    context: ServerContext,
    principal: Annotated[Principal, may(Permission.JOBS_DELETE)],
    job_id: JobId,
    checkpoints: Annotated[
        Literal["keep", "delete"], Query(description="Whether its checkpoints stay on storage.")
    ] = "keep",
) -> Response:
    """Remove a job and its rows; 409 if the job has not ended, or if a guard forbids the removal.

    If requested, operations also delete the job's checkpoints on storage. The response is then a
    202 with the ids of these operations.
    """
    operations = service.delete(context, job_id, actor=principal.actor, checkpoints=checkpoints)
    if not operations:
        return Response(status_code=204)
    with context.database.read() as connection:
        views = [read_operation(connection, each, scope=principal.scope) for each in operations]
    return reply(JobDeletedView(operations=views), status=202)


@router.post("/jobs/{job_id}/stop", response_model=JobView, summary="Save, then leave")
def stop(context: ServerContext, principal: JobsWrite, job_id: JobId, body: StopBody) -> Response:
    """Order a job to save a checkpoint and end."""
    service.stop(context, job_id, actor=principal.actor, reason=body.reason)
    return reply(view_after("stopped", context, job_id, scope=principal.scope))


@router.post("/jobs/{job_id}/cancel", response_model=CancelReply, summary="Leave now")
def cancel(context: ServerContext, principal: JobsWrite, job_id: JobId, body: StopBody) -> Response:
    """Order a job to end without a save; the response describes the lost steps."""
    lost = service.cancel(context, job_id, actor=principal.actor, reason=body.reason)
    done = f"cancelled, which loses {lost}"
    view = view_after(done, context, job_id, scope=principal.scope)
    return reply(CancelReply(job=view, lost=lost))


@router.post("/jobs/{job_id}/priority", response_model=JobView, summary="Change the priority")
def set_priority(
    context: ServerContext, principal: JobsWrite, job_id: JobId, body: PriorityBody
) -> Response:
    """Change the priority of a queued or running job.

    From its next round on, the scheduler uses the new priority for the order of the queue and for
    preemption. A running job keeps its slots unless another job preempts it.
    """
    service.set_priority(context, job_id, body.priority, actor=principal.actor)
    return reply(view_after("changed", context, job_id, scope=principal.scope))


@router.post(
    "/jobs/{job_id}/resume",
    response_model=ResumeReply,
    summary="Resume, optionally with a different layout",
)
def resume(
    context: ServerContext, principal: JobsWrite, job_id: JobId, body: ResumeBody
) -> Response:
    """Resume a job from a checkpoint, optionally with a changed world size or layout."""
    preview = resumes.resume(context, job_id, body, actor=principal.actor)
    view = job_view(context, job_id, scope=principal.scope)
    return reply(ResumeReply(preview=preview, job=view))


@router.post(
    "/checkpoints/{checkpoint_id}/fork",
    status_code=201,
    response_model=ForkReply,
    responses={200: {"model": ForkReply, "description": "A dry run: nothing was stored."}},
    summary="A new job from a checkpoint",
)
def fork(
    context: ServerContext,
    principal: JobsWrite,
    checkpoint_id: CheckpointId,
    body: ForkBody,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Start a new job from a checkpoint, with changed settings.

    The response lists what stays exact.
    """
    if body.dry_run:
        seen = forks.preview(context, checkpoint_id, body, actor=principal.actor)
        return reply(ForkReply(preview=seen, job=None))
    preview, job_id = forks.fork(
        context, checkpoint_id, body, actor=principal.actor, idempotency_key=idempotency_key
    )
    view = ForkReply(preview=preview, job=job_view(context, job_id, scope=principal.scope))
    return reply(view, status=201, headers={"location": f"/api/v1/jobs/{job_id}"})


@router.get(
    "/jobs/{job_id}/resume-options",
    response_model=ResumeOptions,
    summary="World sizes on which the job could resume",
)
def resume_options(context: ServerContext, principal: JobsRead, job_id: JobId) -> Response:
    """List the legal layouts for each world size, or the reason why no layout is legal."""
    return reply(resumes.options(context, job_id, scope=principal.scope))


@router.post(
    "/jobs/{job_id}/requests",
    status_code=201,
    response_model=JobRequestView,
    summary="Send a request to a running job",
)
def post_request(
    context: ServerContext, principal: JobsWrite, job_id: JobId, body: RequestBody
) -> Response:
    """Request a save, a profile or a memory snapshot from a running trainer."""
    request, scope = TrainerRequest(**body.model_dump()), principal.scope
    request_id = service.add_request(context, job_id, request, actor=principal.actor)
    with context.database.read() as connection:
        return reply(read_request(connection, request_id, scope=scope), status=201)


@router.get(
    "/jobs/{job_id}/requests",
    response_model=Page[JobRequestView],
    summary="Requests to a job, with their answers",
)
def get_requests(
    context: ServerContext,
    principal: JobsRead,
    job_id: JobId,
    page: Annotated[PageRequest[str], Depends(page_by("requests", str))],
) -> Response:
    """List the requests to a job's trainer, newest first."""
    scope = principal.scope
    with context.database.read() as connection:
        views = list_requests(connection, job_id, scope=scope, before=page.after, limit=page.limit)
    shown, next_page_token = page.cut(views, lambda view: view.id)
    return reply(Page[JobRequestView](items=tuple(shown), next_page_token=next_page_token))


@router.get(
    "/jobs/{job_id}/attempts",
    response_model=Page[AttemptView],
    summary="The launches of a job",
)
def get_attempts(
    context: ServerContext,
    principal: JobsRead,
    job_id: JobId,
    page: Annotated[PageRequest[int], Depends(page_by("attempts", int))],
) -> Response:
    """List the attempts of a job, newest first."""
    scope = principal.scope
    with context.database.read() as connection:
        views = list_attempts(connection, job_id, scope=scope, before=page.after, limit=page.limit)
    shown, next_page_token = page.cut(views, lambda view: view.number)
    return reply(Page[AttemptView](items=tuple(shown), next_page_token=next_page_token))


@router.get(
    "/jobs/{job_id}/events",
    response_model=Page[EventView],
    summary="What happened to a job",
)
def get_events(
    context: ServerContext,
    principal: JobsRead,
    job_id: JobId,
    page: Annotated[PageRequest[int], Depends(page_by("events", int))],
) -> Response:
    """List the events of a job, newest first."""
    rows = list_events(context, job_id, scope=principal.scope, before=page.after, limit=page.limit)
    shown, next_page_token = page.cut(rows, lambda row: row["id"])
    return reply_page(shown, next_page_token)
