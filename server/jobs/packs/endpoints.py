"""`/packs` for people and `/workers/attempts/{id}/pack` for nodes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from server.api.auth.dependencies import lasting_requests, may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.responses import reply
from server.core.errors import (
    InvalidRequestError,
    UnauthenticatedError,
    UnsupportedMediaTypeError,
)
from server.core.visibility.scope import Scope
from server.jobs.attempts.reports import AuthenticatedShare
from server.jobs.packs.store import BLOCK_BYTES, PackUpload, content_of, read_pack
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.jobs import PackView
from trainyard.spec.code_pack import PACK_DIGEST

ARCHIVE = "application/gzip"
BYTES = {"content": {ARCHIVE: {"schema": {"type": "string", "format": "binary"}}}}
PACKS_PATH = "/packs"
NO_CODE = (
    "this server takes no code that jobs bring; TRAINYARD_ALLOW_CODE=true, for the server and its "
    "workers, allows it"
)

JobsRead = Annotated[Principal, may(Permission.JOBS_READ)]

router = APIRouter(tags=["packs"])
worker_router = APIRouter(prefix="/workers", tags=["workers"])

Digest = Annotated[str, Query(pattern=PACK_DIGEST, description="SHA-256 of the body.")]


@router.post(
    PACKS_PATH,
    status_code=201,
    response_model=PackView,
    summary="Upload a pack",
    openapi_extra={"requestBody": {"required": True, **BYTES}},
)
async def upload_pack(
    request: Request,
    context: ServerContext,
    principal: Annotated[Principal, may(Permission.CODE_RUN)],
    digest: Digest,
) -> Response:
    """Store the code of programs as a gzipped tar archive; jobs name the archive by its digest."""
    if not context.settings.allow_code:
        raise InvalidRequestError.at("", NO_CODE)
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != ARCHIVE:
        raise UnsupportedMediaTypeError(f"the body must be {ARCHIVE}, not {given or 'untyped'}")
    upload = await run_in_threadpool(PackUpload, context, actor=principal.actor)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as limit:
            lasting, on_end = lasting_requests(request), partial(_end, loop, limit)
            with lasting.watched(principal, on_end, allows=_may_upload):
                view = await _stored(request, upload, digest)
    except TimeoutError:
        raise UnauthenticatedError("the access has ended during the upload") from None
    return reply(view, status=201)


def _may_upload(scope: Scope) -> bool:
    return scope.within(Permission.CODE_RUN) != frozenset()


def _end(loop: asyncio.AbstractEventLoop, limit: asyncio.Timeout) -> None:
    """End an upload from another thread."""

    def expire() -> None:
        with suppress(RuntimeError):  # the upload has just ended
            limit.reschedule(loop.time())

    loop.call_soon_threadsafe(expire)


async def _stored(request: Request, upload: PackUpload, digest: str) -> PackView:
    try:
        block = bytearray()
        async for part in request.stream():
            block += part
            while len(block) >= BLOCK_BYTES:
                await run_in_threadpool(upload.add, bytes(block[:BLOCK_BYTES]))
                del block[:BLOCK_BYTES]
        if block:
            await run_in_threadpool(upload.add, bytes(block))
        return await run_in_threadpool(upload.finish, digest)
    except BaseException:  # even if the client disconnects
        await run_in_threadpool(upload.give_up)
        raise


@router.get(
    f"{PACKS_PATH}/{{digest}}",
    response_model=PackView,
    summary="Whether a pack is stored",
)
def get_pack(
    context: ServerContext,
    principal: JobsRead,
    digest: Annotated[str, Path(pattern=PACK_DIGEST, description="SHA-256 of the archive.")],
) -> Response:
    """Return the metadata of a pack, and keep the pack for another day."""
    return reply(read_pack(context, digest, actor=principal.actor))


@worker_router.get(
    "/attempts/{attempt_id}/pack",
    response_class=Response,
    responses={200: BYTES},
    summary="The pack of the attempt's job",
)
def fetch_pack(context: ServerContext, share: AuthenticatedShare) -> Response:
    """Return the job's pack as an archive; the node compares the archive's digest with the spec."""
    return StreamingResponse(content_of(context, share.job_id), media_type=ARCHIVE)
