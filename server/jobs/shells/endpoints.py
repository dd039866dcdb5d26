"""`/jobs/{id}/shells` for people and `/workers/attempts/{id}/shells` for supervisors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from server.api.auth.dependencies import lasting_requests, may
from server.api.auth.lasting_requests import LastingRequest
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.path_params import JobId
from server.api.http.request_body import JsonBody
from server.api.http.responses import reply
from server.core.errors import UnauthenticatedError
from server.core.events.shares import Waits
from server.core.subject import Actor
from server.jobs.attempts.reports import AuthenticatedShare
from server.jobs.shells import service, worker_api
from trainyard.base.ids import ID_PATTERN
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.shell_sessions.messages import (
    ShellInputReply,
    ShellInputRequest,
    ShellOutputMessage,
    ShellOutputReply,
    Wait,
)
from trainyard.protocol.shell_sessions.views import (
    ShellInput,
    ShellInputStored,
    ShellOutput,
    ShellRequest,
    ShellView,
)

ShellRun = Annotated[Principal, may(Permission.SHELL_RUN)]

router = APIRouter(tags=["shells"])
worker_router = APIRouter(prefix="/workers", tags=["workers"])

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.03, 0.25
"""Shortest and longest pause between the polls of a waiting request, in seconds. During a pause the
request holds no thread and no database connection."""

WAITS = Waits(16)
"""Limits a process to 16 waiting requests per person or attempt, because these requests poll the
database."""

ShellId = Annotated[str, Path(pattern=ID_PATTERN, description="Id of the command.")]
Answer = TypeVar("Answer")


@router.post(
    "/jobs/{job_id}/shells",
    status_code=201,
    response_model=ShellView,
    summary="Run a command in the current attempt",
)
def open_shell(
    context: ServerContext,
    principal: ShellRun,
    job_id: JobId,
    body: Annotated[ShellRequest, Depends(JsonBody(ShellRequest))],
) -> Response:
    """Start a command on a node of the attempt, with environment and slots of the ranks there."""
    return reply(service.open_shell(context, job_id, body, actor=principal.actor), status=201)


@router.get(
    "/jobs/{job_id}/shells/{shell_id}/output",
    response_model=ShellOutput,
    summary="Output of a command",
)
async def get_output(
    context: ServerContext,
    request: Request,
    principal: ShellRun,
    job_id: JobId,
    shell_id: ShellId,
    start: Annotated[
        int, Query(ge=0, lt=2**62, description="Offset up to which the output was read.")
    ] = 0,
    wait_seconds: Annotated[
        Wait, Query(description="Longest wait while there is nothing new.")
    ] = 0.0,
) -> Response:
    """Return output as soon as there is new output, the command has ended, or the wait is over.

    Only a few requests of the same person wait at a time; a further request returns without a
    wait.
    """
    with (
        WAITS.turn(principal.actor.identity) as may_wait,
        lasting_requests(request).watched(principal) as access,
    ):
        output = await _first(
            lambda: service.read_output(
                context, job_id, shell_id, start=start, actor=_present(principal, access)
            ),
            lambda found: (
                access.has_ended or bool(found.content) or found.shell.ended_at is not None
            ),
            seconds=wait_seconds if may_wait else 0.0,
        )
    if access.has_ended:
        raise UnauthenticatedError("the token has ended while the request waited")
    return reply(output)


def _present(principal: Principal, access: LastingRequest) -> Actor:
    """Return the actor of a request that waits, with the present scope."""
    return replace(principal.actor, scope=access.scope)


@router.put(
    "/jobs/{job_id}/shells/{shell_id}/input",
    response_model=ShellInputStored,
    summary="Input of a command",
)
def put_input(
    context: ServerContext,
    principal: ShellRun,
    job_id: JobId,
    shell_id: ShellId,
    body: Annotated[ShellInput, Depends(JsonBody(ShellInput))],
) -> Response:
    """Store input for a command."""
    return reply(
        service.store_input(context, job_id, shell_id=shell_id, given=body, actor=principal.actor)
    )


@router.post(
    "/jobs/{job_id}/shells/{shell_id}/close", response_model=ShellView, summary="End a command"
)
def close_shell(
    context: ServerContext, principal: ShellRun, job_id: JobId, shell_id: ShellId
) -> Response:
    """End a command with SIGHUP, then with SIGKILL."""
    return reply(service.close_shell(context, job_id, shell_id, actor=principal.actor))


@worker_router.post(
    "/attempts/{attempt_id}/shells/{shell_id}/output",
    response_model=ShellOutputReply,
    summary="Output and end of a command",
)
def report_output(
    context: ServerContext,
    share: AuthenticatedShare,
    shell_id: ShellId,
    body: Annotated[ShellOutputMessage, Depends(JsonBody(ShellOutputMessage))],
) -> Response:
    """Store output of a command; repeated output is ignored."""
    return reply(worker_api.store_output(context, share, shell_id=shell_id, message=body))


@worker_router.post(
    "/attempts/{attempt_id}/shells/{shell_id}/input",
    response_model=ShellInputReply,
    summary="Long poll for input of a command",
)
async def poll_input(
    context: ServerContext,
    share: AuthenticatedShare,
    shell_id: ShellId,
    body: Annotated[ShellInputRequest, Depends(JsonBody(ShellInputRequest))],
) -> Response:
    """Return input as soon as there is new input, the command is over, or the wait is over."""
    with WAITS.turn(share.attempt_id) as may_wait:
        found = await _first(
            lambda: worker_api.read_input(context, share, shell_id=shell_id, request=body),
            lambda answer: worker_api.is_news(answer, body),
            seconds=body.wait_seconds if may_wait else 0.0,
        )
    return reply(found)


async def _first(
    look: Callable[[], Answer], is_news: Callable[[Answer], bool], *, seconds: float
) -> Answer:
    """Poll until there is a new result or the wait is over, and return the last result.

    A shutdown of the server ends the wait.
    """
    deadline, pause = time.monotonic() + seconds, FIRST_PAUSE_SECONDS
    while True:
        answer = await run_in_threadpool(look)
        left = deadline - time.monotonic()
        if left <= 0 or is_news(answer):
            return answer
        try:
            await asyncio.sleep(min(pause, left))
        except asyncio.CancelledError:
            return answer
        pause = min(1.3 * pause, LONGEST_PAUSE_SECONDS)
