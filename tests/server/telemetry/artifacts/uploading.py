"""Shared by tests of artifacts: a share that uploads and reports, and counts of stored rows."""

from __future__ import annotations

import hashlib
from typing import Any

from sqlalchemy import func, select

from server.api.auth.tokens import hash_token
from server.core.context import Context
from server.core.database.metric_and_log_tables import artifact_blocks, artifact_contents, artifacts
from server.jobs.attempts.reports import ReportedShare, authenticate_share
from server.telemetry.artifacts.uploads import store_block
from tests.server.harness import Supervisor
from tests.server.reports import chunk, send
from trainyard.protocol.job_artifacts.messages import BLOCK_BYTES, UploadReply
from trainyard.run.artifacts.artifact_records import ArtifactLine, ArtifactRecord
from trainyard.run.record_base import to_json


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def share_of(context: Context, supervisor: Supervisor) -> ReportedShare:
    token = hash_token(supervisor.reply.attempt_token)
    return authenticate_share(context, supervisor.attempt_id, token)


def upload(context: Context, supervisor: Supervisor, content: bytes) -> UploadReply:
    """Send all blocks of a content, like a supervisor."""
    share, offset = share_of(context, supervisor), 0
    while True:
        block = content[offset : offset + BLOCK_BYTES]
        reply = store_block(
            context, share, digest_of(content), offset=offset, size=len(content), block=block
        )
        if reply.refused is not None or reply.stored == len(content):
            return reply
        offset = reply.stored


def line(name: str, content: bytes | None = None, **given: Any) -> ArtifactLine:
    kind = given.pop("kind", "file")
    about = {key: given.pop(key) for key in ("step", "caption", "histogram") if key in given}
    return ArtifactLine(
        process=0,
        end=1,
        record=ArtifactRecord(time=1000.0, kind=kind, name=name, **about),
        digest=None if content is None else digest_of(content),
        size=len(content or b""),
        **given,
    )


def report(context: Context, supervisor: Supervisor, *lines: ArtifactLine, start: int = 0) -> int:
    content = b"".join(to_json(each).encode() + b"\n" for each in lines)
    reply = send(context, supervisor, chunk("artifacts", content, start=start))
    return reply.acknowledged["artifacts"]


def counts(context: Context) -> tuple[int, ...]:
    with context.database.read() as connection:
        return tuple(
            connection.scalar(select(func.count()).select_from(table)) or 0
            for table in (artifacts, artifact_contents, artifact_blocks)
        )


def released(context: Context) -> int:
    """Return the number of contents without a job that wait for deletion."""
    query = select(func.count()).where(artifact_contents.c.job_id.is_(None))
    with context.database.read() as connection:
        return connection.scalar(query) or 0
