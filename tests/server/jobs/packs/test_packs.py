"""Packs: uploaded once and completely, kept while jobs name them, fetched by attempts."""

from __future__ import annotations

import hashlib
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import event, func, select
from sqlalchemy.exc import OperationalError

from server.api.auth.service import create_token
from server.api.auth.tokens import hash_token
from server.core.context import Context
from server.core.database.metric_and_log_tables import pack_blocks, packs
from server.core.errors import ConflictError, InvalidRequestError, NotFoundError
from server.jobs.attempts.reports import authenticate_share
from server.jobs.jobs.planning import plan_job
from server.jobs.jobs.service import cancel, delete
from server.jobs.packs import store
from server.jobs.packs.store import (
    BLOCK_BYTES,
    MAX_UPLOADS,
    PackUpload,
    content_of,
    delete_unnamed,
    read_pack,
)
from tests.actors import ADA, EVE
from tests.server.api.in_process import TestClient
from tests.server.api.serving import serving, until
from tests.server.clock import FakeClock
from tests.server.harness import Harness
from trainyard.client.sdk import Client
from trainyard.protocol.rest.access import TokenRequest
from trainyard.protocol.rest.jobs import PackView
from trainyard.spec.job import parse_job_spec

DAY = 86_400.0


@pytest.fixture
def allow_code() -> bool:
    """The server accepts jobs that bring code."""
    return True


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def upload(context: Context, content: bytes = b"code") -> PackView:
    made = PackUpload(context, actor=ADA)
    made.add(content)
    return made.finish(digest_of(content))


def rows(context: Context) -> tuple[int, int]:
    """Return the numbers of packs and of blocks, of uploads too."""
    with context.database.read() as connection:
        numbers = [
            connection.scalar(select(func.count()).select_from(table))
            for table in (packs, pack_blocks)
        ]
    return numbers[0] or 0, numbers[1] or 0


def program(digest: str) -> dict[str, Any]:
    return {"program": {"command": ["train.py"], "code": {"pack": digest}}}


def test_an_upload_comes_back_byte_by_byte(context: Context, harness: Harness) -> None:
    content = bytes(range(256)) * 50_000
    with serving(context) as url:
        _, token = create_token(context, TokenRequest(name="ada"))
        with Client(url, token) as yard:
            view = yard.upload_pack(content)
            assert yard.upload_pack(content) == view
    assert (view.digest, view.size) == (digest_of(content), len(content))
    assert rows(context) == (1, -(-len(content) // BLOCK_BYTES))
    harness.add_node()
    job_id, (supervisor,) = harness.launched(**program(view.digest))
    share = authenticate_share(
        context, supervisor.attempt_id, hash_token(supervisor.reply.attempt_token)
    )
    assert b"".join(content_of(context, share.job_id)) == content
    assert share.job_id == job_id


def test_a_pack_is_fetched_with_the_token_of_the_attempt_alone(
    context: Context, harness: Harness, client: TestClient, anonymous: TestClient
) -> None:
    harness.add_node()
    _, (supervisor,) = harness.launched(**program(upload(context).digest))
    path = f"/api/v1/workers/attempts/{supervisor.attempt_id}/pack"
    assert client.get(path).status_code == 401
    own = {"authorization": f"Bearer {supervisor.reply.attempt_token}"}
    found = anonymous.get(path, headers=own)
    assert (found.status_code, found.content) == (200, b"code")
    assert found.headers["content-type"] == "application/gzip"


def test_what_does_not_have_its_digest_is_refused_and_forgotten(
    context: Context, client: TestClient
) -> None:
    headers = {"content-type": "application/gzip"}
    path = f"/api/v1/packs?digest={digest_of(b'x')}"
    refusal = client.post(path, content=b"other", headers=headers)
    assert refusal.status_code == 422
    assert digest_of(b"other") in refusal.text
    assert client.post(path, content=b"", headers=headers).status_code == 422
    assert client.post(path, content=b"x", headers={"content-type": "a/b"}).status_code == 415
    assert client.post("/api/v1/packs?digest=x", content=b"x", headers=headers).status_code == 422
    assert client.get(f"/api/v1/packs/{digest_of(b'x')}").status_code == 404
    assert rows(context) == (0, 0)


def test_a_pack_over_the_limit_is_refused_before_it_is_read(client: TestClient) -> None:
    headers = {"content-type": "application/gzip", "content-length": str(64 * 2**20 + 1)}
    path = f"/api/v1/packs?digest={digest_of(b'x')}"
    assert client.post(path, content=b"x", headers=headers).status_code == 413


@pytest.mark.parametrize("allow_code", [False])
def test_a_server_that_takes_no_code_takes_no_pack(client: TestClient) -> None:
    headers = {"content-type": "application/gzip"}
    path = f"/api/v1/packs?digest={digest_of(b'x')}"
    refusal = client.post(path, content=b"x", headers=headers)
    assert refusal.status_code == 422
    assert "TRAINYARD_ALLOW_CODE" in refusal.text


def test_an_upload_that_is_cut_off_leaves_nothing(context: Context) -> None:
    _, token = create_token(context, TokenRequest(name="ada"))
    head = (
        f"POST /api/v1/packs?digest={digest_of(b'x')} HTTP/1.1\r\nhost: x\r\n"
        f"authorization: Bearer {token}\r\ncontent-type: application/gzip\r\n"
        f"content-length: {4 * BLOCK_BYTES}\r\n\r\n"
    )
    with serving(context) as url:
        address = urlsplit(url)
        with socket.create_connection((address.hostname or "", address.port or 0)) as line:
            line.sendall(head.encode() + bytes(2 * BLOCK_BYTES))
            until(lambda: rows(context) == (1, 2))
        until(lambda: rows(context) == (0, 0))


def test_an_upload_whose_server_died_is_deleted_after_an_hour(
    context: Context, clock: FakeClock
) -> None:
    died = PackUpload(context, actor=ADA)
    died.add(b"half")
    clock.advance(3599)
    delete_unnamed(context)
    assert rows(context) == (1, 1)
    clock.advance(2)
    delete_unnamed(context)
    assert rows(context) == (0, 0)
    with pytest.raises(ConflictError, match="send it again"):
        died.add(b"rest")


def test_two_uploads_of_one_content_at_once_are_one_pack(context: Context) -> None:
    uploads = [PackUpload(context, actor=ADA) for _ in range(4)]
    for one in uploads:
        one.add(b"same")
    with ThreadPoolExecutor() as threads:
        views = list(threads.map(lambda one: one.finish(digest_of(b"same")), uploads))
    assert len({view.digest for view in views}) == 1
    assert rows(context) == (1, 1)


def test_a_full_disk_leaves_no_part_of_a_pack(context: Context, client: TestClient) -> None:
    def fill(*given: Any) -> None:
        if "INSERT INTO pack_blocks" in given[2] and given[3]:
            blocks.append(given)
            if len(blocks) == 2:
                raise OperationalError("INSERT", None, Exception("database or disk is full"))

    blocks: list[Any] = []
    content = bytes(3 * BLOCK_BYTES)
    headers = {"content-type": "application/gzip"}
    engine = context.database.engine
    event.listen(engine, "before_cursor_execute", fill)
    try:
        path = f"/api/v1/packs?digest={digest_of(content)}"
        assert client.post(path, content=content, headers=headers).status_code == 503
    finally:
        event.remove(engine, "before_cursor_execute", fill)
    assert rows(context) == (0, 0)
    assert client.post(path, content=content, headers=headers).status_code == 201


def test_a_pack_is_kept_while_a_job_names_it_and_a_day_after_an_upload(
    context: Context, harness: Harness, clock: FakeClock
) -> None:
    named, other = upload(context, b"named").digest, upload(context, b"other").digest
    job_id = harness.submit(**program(named))
    clock.advance(DAY - 1)
    delete_unnamed(context)
    assert rows(context)[0] == 2
    clock.advance(2)
    delete_unnamed(context)  # the job waits
    assert read_pack(context, named, actor=ADA).digest == named
    with pytest.raises(NotFoundError):
        read_pack(context, other, actor=ADA)
    cancel(context, job_id, actor=ADA, reason="")
    clock.advance(2 * DAY)
    delete_unnamed(context)  # it can be resumed
    assert rows(context)[0] == 1
    delete(context, job_id, actor=ADA, checkpoints="keep")
    delete_unnamed(context)
    assert rows(context) == (0, 0)


def test_a_spec_that_names_no_stored_pack_is_refused(context: Context, harness: Harness) -> None:
    sections = program(digest_of(b"absent"))
    spec = parse_job_spec({"name": "tiny"} | sections)
    for refuse in (lambda: harness.submit(**sections), lambda: plan_job(context, spec, actor=ADA)):
        with pytest.raises(InvalidRequestError) as refusal:
            refuse()
        (problem,) = refusal.value.problems
        assert problem.pointer == "/program/code/pack"
        assert "trainyard submit" in problem.detail


def test_the_forecast_of_a_job_whose_pack_is_missing_is_refused(client: TestClient) -> None:
    spec = {"name": "tiny", **program(digest_of(b"never uploaded"))}
    refused = client.post("/api/v1/queue/what-if", json=spec)
    assert refused.status_code == 422
    assert "/program/code/pack" in refused.text


def test_number_and_bytes_of_a_person_are_bounded(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_PACKS", 1)
    view = upload(context)
    with pytest.raises(ConflictError, match="has 1 packs of 4 bytes"):
        upload(context, b"other")
    monkeypatch.setattr(store, "MAX_PACKS", 2)
    monkeypatch.setattr(store, "MAX_BYTES", 4)
    with pytest.raises(ConflictError, match="legal: fewer than 2 of 4 bytes"):
        upload(context, b"other")
    assert json.loads(view.model_dump_json())["size"] == 4


def test_a_person_has_few_uploads_at_once(context: Context) -> None:
    begun = [PackUpload(context, actor=ADA) for _ in range(MAX_UPLOADS)]
    with pytest.raises(ConflictError, match="ada has 8 unfinished uploads"):
        PackUpload(context, actor=ADA)
    PackUpload(context, actor=EVE)
    begun[0].give_up()
    PackUpload(context, actor=ADA)
