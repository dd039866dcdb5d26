"""Streams, uploads and waiting requests end within seconds after their access."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest
from sqlalchemy import select, update

from server.api.auth.admin import ensure_admin_token, replace_admin_token
from server.api.auth.browser_sessions import authenticate_session, close_session, open_session
from server.api.auth.lasting_requests import CHECK_SECONDS, LastingRequests
from server.api.auth.principals import Principal
from server.api.auth.service import create_token, revoke_token
from server.core.context import Context
from server.core.database.metric_and_log_tables import packs
from server.core.database.tables import jobs, tokens
from server.core.errors import UnauthenticatedError
from server.jobs.packs.store import PackUpload
from tests.actors import authenticate_token
from tests.server.api.serving import PATIENCE, serving
from tests.server.api.test_stream import listening
from tests.server.clock import FakeClock
from tests.server.harness import BRINGS_CODE, Launched
from tests.server.statements import statements
from trainyard.protocol.rest.access import TokenRequest


def made(context: Context, name: str) -> tuple[str, str]:
    """Store an API token; return its id and its secret."""
    row, secret = create_token(context, TokenRequest(name=name))
    return row.id, secret


def test_one_query_ends_all_requests_without_access(context: Context, clock: FakeClock) -> None:
    ended: list[str] = []
    lasting = LastingRequests(context)

    def opened(principal: Principal, name: str) -> Iterator[object]:
        with lasting.watched(principal, lambda: ended.append(name)) as request:
            yield request

    some: list[Iterator[object]] = []
    ids = {}
    for name in ("kept", "revoked", "expired"):
        seconds = 60 if name == "expired" else None
        row, secret = create_token(context, TokenRequest(name=name, expires_in_seconds=seconds))
        ids[name] = row.id
        some.append(opened(authenticate_token(context, secret), name))
    cookies = {}
    for name in ("session", "left"):
        cookies[name] = open_session(context, token=made(context, name)[1], code=None).cookie
        principal, _ = authenticate_session(context, cookies[name])
        some.append(opened(principal, name))
    for each in some:
        next(each)
    assert lasting.end_invalid() == 0
    revoke_token(context, ids["revoked"])
    close_session(context, cookies["left"])
    clock.advance(60)
    with statements(context) as seen:
        assert lasting.end_invalid() == 3
    assert len([each for each in seen if not each.startswith("BEGIN")]) == 1, seen
    assert sorted(ended) == ["expired", "left", "revoked"]
    assert lasting.end_invalid() == 0, "each once"
    for each in some:
        next(each, None)
    with statements(context) as seen:
        assert lasting.end_invalid() == 0
    assert seen == [], "no query without requests"


def test_a_new_admin_token_ends_requests_of_the_former_one(context: Context) -> None:
    path = ensure_admin_token(context)
    assert path is not None
    principal = authenticate_token(context, path.read_text().strip())
    lasting = LastingRequests(context)
    with lasting.watched(principal) as request:
        replace_admin_token(context)
        assert lasting.end_invalid() == 1
        assert request.has_ended


def within_seconds(is_done: Callable[[], bool]) -> float:
    """Return the seconds until a condition holds, at most five."""
    begin = time.monotonic()
    while not is_done():
        assert time.monotonic() - begin < 5, "not within five seconds"
        time.sleep(0.02)
    return time.monotonic() - begin


@contextmanager
def served(context: Context) -> Iterator[str]:
    with serving(context) as url:
        yield url


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_stream_ends_when_its_token_is_revoked(context: Context) -> None:
    assert CHECK_SECONDS < 4
    (id_, secret), (_, other) = made(context, "ada"), made(context, "bob")
    with (
        served(context) as url,
        listening(url, secret) as heard,
        listening(url, other) as kept,
    ):
        assert heard.opened.wait(PATIENCE)
        assert kept.opened.wait(PATIENCE)
        revoke_token(context, id_)
        within_seconds(heard.closed.is_set)
        assert not kept.closed.is_set()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("allow_code", [True])
def test_an_upload_ends_when_its_token_is_revoked(context: Context) -> None:
    id_, secret = made(context, "ada")
    sent, go_on = threading.Event(), threading.Event()

    def slowly() -> Iterator[bytes]:
        yield b"x" * 2**20
        sent.set()
        go_on.wait(PATIENCE)
        yield b"y"

    digest = f"sha256:{hashlib.sha256(b'x' * 2**20 + b'y').hexdigest()}"
    headers = {"authorization": f"Bearer {secret}", "content-type": "application/gzip"}
    statuses: list[int | str] = []

    def upload(url: str) -> None:
        try:
            reply = httpx.post(
                f"{url}/api/v1/packs",
                params={"digest": digest},
                content=slowly(),
                headers=headers,
                timeout=PATIENCE,
            )
            statuses.append(reply.status_code)
        except httpx.TransportError:  # the server closed the connection
            statuses.append("closed")

    def stored() -> int:
        with context.database.read() as connection:
            return len(connection.execute(select(packs.c.id)).all())

    with served(context) as url:
        thread = threading.Thread(target=upload, args=(url,))
        thread.start()
        assert sent.wait(PATIENCE)
        within_seconds(lambda: stored() == 1)
        revoke_token(context, id_)
        within_seconds(lambda: stored() == 0)
        go_on.set()
        thread.join(PATIENCE)
    assert statuses in ([401], ["closed"])
    with context.database.read() as connection:
        assert connection.scalar(select(tokens.c.revoked_at).where(tokens.c.id == id_))


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@BRINGS_CODE
@pytest.mark.parametrize("end", ["expired", "revoked"])
def test_a_wait_for_output_ends_with_its_token(
    context: Context, launched: Launched, clock: FakeClock, end: str
) -> None:
    job_id, supervisor = launched
    supervisor.train()
    row, secret = create_token(context, TokenRequest(name="ada", expires_in_seconds=60))
    id_ = row.id
    clock.advance(30)
    with context.database.write() as connection:
        connection.execute(update(jobs).values(token_id=id_))
    headers = {"authorization": f"Bearer {secret}"}
    with served(context) as url:
        path = f"{url}/api/v1/jobs/{job_id}/shells"
        opened = httpx.post(path, json={"argv": ["sleep", "60"]}, headers=headers)
        assert opened.status_code == 201, opened.text
        statuses: list[int] = []

        def wait() -> None:
            output, query = f"{path}/{opened.json()['id']}/output", {"wait_seconds": 20}
            reply = httpx.get(output, params=query, headers=headers, timeout=PATIENCE)
            statuses.append(reply.status_code)

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        if end == "revoked":
            revoke_token(context, id_)
        else:
            clock.advance(31)
        within_seconds(lambda: not thread.is_alive())
    # A revocation also ends the command, which the reply shows.
    assert statuses == ([200] if end == "revoked" else [401])


def test_an_upload_is_not_stored_after_the_end_of_its_token(context: Context) -> None:
    id_, secret = made(context, "ada")
    upload = PackUpload(context, actor=authenticate_token(context, secret).actor)
    upload.add(b"x")
    revoke_token(context, id_)
    with pytest.raises(UnauthenticatedError):
        upload.finish(f"sha256:{hashlib.sha256(b'x').hexdigest()}")
