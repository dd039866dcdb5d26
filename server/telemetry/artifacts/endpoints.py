"""`/jobs/{id}/artifacts` for people and `/workers/attempts/{id}/artifacts` for supervisors."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from server.api.auth.dependencies import lasting_requests, may
from server.api.auth.principals import Principal
from server.api.http.dependencies import ServerContext
from server.api.http.paging import PageRequest, page_by
from server.api.http.path_params import JobId
from server.api.http.responses import reply
from server.core.database.metric_and_log_tables import artifact_blocks
from server.core.errors import InvalidRequestError
from server.core.lifecycle import still_sees
from server.jobs.attempts.reports import AuthenticatedShare
from server.telemetry.artifacts.store import list_artifacts, read_artifact
from server.telemetry.artifacts.uploads import store_block
from trainyard.base.ids import ID_PATTERN
from trainyard.protocol.job_artifacts.messages import ARTIFACT_DIGEST, BLOCK_BYTES, UploadReply
from trainyard.protocol.job_artifacts.views import ArtifactView
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.common import Page
from trainyard.run.artifacts.artifact_records import LONGEST_KIND, LONGEST_NAME, MAX_FILE_BYTES

OCTETS = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
SAFE_HEADERS = {
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    # The content of an id never changes. Only the person's browser caches it.
    "Cache-Control": "private, max-age=31536000, immutable",
}

JobsRead = Annotated[Principal, may(Permission.JOBS_READ)]

router = APIRouter(tags=["artifacts"])
worker_router = APIRouter(prefix="/workers", tags=["workers"])

ArtifactId = Annotated[str, Path(pattern=ID_PATTERN, description="Id of the artifact.")]
Digest = Annotated[str, Path(pattern=ARTIFACT_DIGEST, description="SHA-256 of the content.")]
Kind = Annotated[str, Field(min_length=1, max_length=LONGEST_KIND)]
Offset = Annotated[int, Query(ge=0, le=MAX_FILE_BYTES, description="Offset of the body in it.")]
Size = Annotated[int, Query(ge=0, le=MAX_FILE_BYTES, description="Bytes of the whole content.")]


@router.get(
    "/jobs/{job_id}/artifacts",
    response_model=Page[ArtifactView],
    summary="Images, histograms and files of a job",
)
def get_artifacts(
    context: ServerContext,
    principal: JobsRead,
    job_id: JobId,
    page: Annotated[PageRequest[str], Depends(page_by("artifacts", str))],
    kind: Annotated[
        str | None,
        Query(
            min_length=1, max_length=LONGEST_KIND, description="Only this kind, such as `image`."
        ),
    ] = None,
    without: Annotated[
        tuple[Kind, ...], Query(max_length=8, description="Kinds to leave out.")
    ] = (),
    name: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=LONGEST_NAME,
            description="Only this name, and names below it as a folder.",
        ),
    ] = None,
) -> Response:
    """List artifacts, histograms included, the newest first."""
    views = list_artifacts(
        context,
        job_id,
        scope=principal.scope,
        kind=kind,
        without=without,
        name=name,
        after=page.after,
        limit=page.limit,
    )
    shown, next_page_token = page.cut(views, lambda view: view.id)
    return reply(Page[ArtifactView](items=tuple(shown), next_page_token=next_page_token))


@router.get(
    "/jobs/{job_id}/artifacts/{artifact_id}/content",
    response_class=Response,
    responses={200: {"content": OCTETS}},
    summary="Content of an image or a file",
)
def get_content(
    request: Request,
    context: ServerContext,
    principal: JobsRead,
    job_id: JobId,
    artifact_id: ArtifactId,
) -> Response:
    """Return an artifact's content: an image with its media type, any other file as a download."""
    found = read_artifact(context, job_id, artifact_id, scope=principal.scope)
    assert found.content_id is not None
    headers = {
        **SAFE_HEADERS,
        "Content-Length": str(found.size),
        "Content-Disposition": _disposition(found.name, shown=found.image_type is not None),
    }
    blocks = context.database.blocks(artifact_blocks, found.content_id)
    sees = still_sees(context, job_id, scope=principal.scope)
    guarded = lasting_requests(request).guarded(principal, blocks, allows=sees)
    return StreamingResponse(guarded, media_type=found.media_type, headers=headers)


@worker_router.put(
    "/attempts/{attempt_id}/artifacts/{digest}",
    response_model=UploadReply,
    openapi_extra={"requestBody": {"required": True, "content": OCTETS}},
    summary="A block of the content of an artifact",
)
async def upload_block(
    request: Request,
    context: ServerContext,
    share: AuthenticatedShare,
    digest: Digest,
    offset: Offset,
    size: Size,
) -> Response:
    """Store a block of at most 1 MiB, once; the response gives the offset of the next block."""
    block = bytearray()
    async for part in request.stream():
        block += part
        if len(block) > BLOCK_BYTES:
            raise InvalidRequestError.at("", f"the body has more than {BLOCK_BYTES:,} bytes")
    stored = await run_in_threadpool(
        store_block, context, share, digest, offset=offset, size=size, block=bytes(block)
    )
    return reply(stored)


def _disposition(name: str, *, shown: bool) -> str:
    """Return the header with two forms of the file's name: plain ASCII, and the name encoded."""
    last = name.rpartition("/")[2]
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", last)
    kind = "inline" if shown else "attachment"
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(last, safe='')}"
