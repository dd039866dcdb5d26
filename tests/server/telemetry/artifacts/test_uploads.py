"""Content of artifacts: stored block by block, completed once, within the quota of the job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import Table, update

from server.core.context import Context
from server.core.database.engine import Database
from server.core.database.metric_and_log_tables import artifact_contents
from server.core.database.tables import attempt_nodes
from server.core.errors import ConflictError, InvalidRequestError
from server.telemetry.artifacts import uploads
from server.telemetry.artifacts.uploads import store_block
from tests.server.clock import FakeClock
from tests.server.harness import Supervisor
from tests.server.telemetry.artifacts.uploading import (
    counts,
    digest_of,
    line,
    released,
    report,
    share_of,
    upload,
)
from trainyard.protocol.job_artifacts.messages import BLOCK_BYTES, UploadReply


def test_an_upload_continues_where_it_was_cut_off_and_a_repeat_changes_nothing(
    context: Context, launched: tuple[str, Supervisor]
) -> None:
    _, supervisor = launched
    share, content = share_of(context, supervisor), os.urandom(2 * BLOCK_BYTES + 1)
    digest, size = digest_of(content), len(content)

    def put(offset: int) -> int:
        block = content[offset : offset + BLOCK_BYTES]
        return store_block(context, share, digest, offset=offset, size=size, block=block).stored

    assert put(BLOCK_BYTES) == 0  # a gap: nothing is stored
    assert put(0) == BLOCK_BYTES
    assert put(0) == BLOCK_BYTES  # the answer was lost
    assert put(BLOCK_BYTES) == 2 * BLOCK_BYTES
    assert put(2 * BLOCK_BYTES) == size
    assert put(0) == size
    assert counts(context) == (0, 1, 3)


def test_uploads_of_one_content_at_once_are_one(
    context: Context, launched: tuple[str, Supervisor]
) -> None:
    _, supervisor = launched
    content = os.urandom(3 * BLOCK_BYTES)
    with ThreadPoolExecutor() as threads:
        replies = list(threads.map(lambda _: upload(context, supervisor, content), range(4)))
    assert {reply.stored for reply in replies} == {len(content)}
    assert counts(context) == (0, 1, 3)


def test_a_repeat_completes_what_the_server_had_stored_alone(
    context: Context, launched: tuple[str, Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, supervisor = launched

    def stop(*_: object, **__: object) -> UploadReply:
        raise RuntimeError("stopped between the last block and its comparison")

    with monkeypatch.context() as patch:
        patch.setattr(uploads, "_complete", stop)
        with pytest.raises(RuntimeError, match="stopped between"):
            upload(context, supervisor, b"x")
    assert upload(context, supervisor, b"x").stored == 1
    report(context, supervisor, line("a", b"x"))
    assert counts(context) == (1, 1, 1)


def test_content_that_goes_while_it_is_compared_is_not_acknowledged(
    context: Context, launched: tuple[str, Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    share, blocks = share_of(context, launched[1]), Database.blocks

    def read_and_release(of: Database, table: Table, owner_id: str) -> Iterator[bytes]:
        yield from blocks(of, table, owner_id)
        with of.write() as connection:
            connection.execute(update(artifact_contents).values(job_id=None))

    monkeypatch.setattr(Database, "blocks", read_and_release)
    reply = store_block(context, share, digest_of(b"a"), offset=0, size=1, block=b"a")
    assert (reply.stored, reply.refused) == (0, None)


@pytest.mark.parametrize("lost", [False, True])
def test_a_share_that_is_over_uploads_nothing(
    context: Context, launched: tuple[str, Supervisor], lost: bool
) -> None:
    _, supervisor = launched
    if lost:
        with context.database.write() as connection:
            connection.execute(update(attempt_nodes).values(lost_at=context.now()))
    else:
        supervisor.end("succeeded")
    with pytest.raises(ConflictError, match="the share is over"):
        upload(context, supervisor, b"x")
    assert counts(context) == (0, 0, 0)


def test_uploads_at_once_keep_the_quota_together(
    context: Context, launched: tuple[str, Supervisor]
) -> None:
    settings = context.settings.model_copy(update={"artifact_quota_bytes": 10})
    small = replace(context, settings=settings)
    contents = [b"%04d" % number for number in range(16)]
    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda each: upload(small, launched[1], each), contents))
    refused = [reply.refused for reply in replies]
    assert (refused.count(None), refused.count("quota")) == (2, 14)


def test_content_that_does_not_have_its_digest_is_refused_and_released(
    context: Context, launched: tuple[str, Supervisor]
) -> None:
    share = share_of(context, launched[1])
    reply = store_block(context, share, digest_of(b"a"), offset=0, size=1, block=b"b")
    assert reply.refused == "unreadable"
    assert released(context) == 1


def test_the_quota_and_the_size_of_a_file_are_those_of_the_settings(
    context: Context, launched: tuple[str, Supervisor]
) -> None:
    _, supervisor = launched
    settings = context.settings.model_copy(
        update={"artifact_quota_bytes": 10, "artifact_file_bytes": 6}
    )
    small = replace(context, settings=settings)
    assert upload(small, supervisor, b"1234567").refused == "too_large"
    assert upload(small, supervisor, b"123456").stored == 6
    assert upload(small, supervisor, b"12345").refused == "quota"
    assert upload(small, supervisor, b"1234").stored == 4
    assert upload(small, supervisor, b"123456").stored == 6  # already stored


def test_an_upload_that_was_given_up_makes_room_after_an_hour(
    context: Context, launched: tuple[str, Supervisor], clock: FakeClock
) -> None:
    _, supervisor = launched
    share, content = share_of(context, supervisor), bytes(2 * BLOCK_BYTES)
    block = content[:BLOCK_BYTES]
    store_block(context, share, digest_of(content), offset=0, size=len(content), block=block)
    clock.advance(3601)
    upload(context, supervisor, b"other")
    assert released(context) == 1
    assert counts(context) == (0, 2, 2)


@pytest.mark.parametrize(("offset", "size", "block"), [(1, 9, 8), (0, 9, 8), (0, 9, 0), (0, 0, 1)])
def test_blocks_of_another_size_are_refused(
    context: Context, launched: tuple[str, Supervisor], offset: int, size: int, block: int
) -> None:
    share = share_of(context, launched[1])
    with pytest.raises(InvalidRequestError, match="legal are blocks"):
        store_block(context, share, digest_of(b""), offset=offset, size=size, block=bytes(block))
