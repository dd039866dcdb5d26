"""The rotation of the admin token: ended sessions, kept tokens, and revoked ones."""

from __future__ import annotations

import argparse
import io
import threading
from datetime import timedelta

import pytest
from sqlalchemy import insert, select, update

from server.api.auth.admin import ADMIN_ID
from server.api.auth.browser_sessions import authenticate_session, open_session
from server.api.auth.permissions import ALL
from server.api.auth.principals import hold_token
from server.api.auth.service import create_token, replace_token_of
from server.api.auth.tokens import TokenKind
from server.app.admin_command import add_options, rotate_admin_token
from server.core.context import Context
from server.core.database.metric_and_log_tables import shells
from server.core.database.tables import jobs, tokens
from server.core.errors import UnauthenticatedError
from server.core.subject import Actor
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.shells.service import open_shell
from tests.actors import authenticate_token
from tests.server.api.in_process import TestClient
from tests.server.clock import FakeClock
from tests.server.harness import BRINGS_CODE, Harness
from trainyard.protocol.rest.access import TokenRequest
from trainyard.protocol.shell_sessions.views import ShellRequest

API, SESSION = "/api/v1", "/api/v1/auth/session"


class Terminal(io.StringIO):
    """A terminal with a person's answers."""

    def isatty(self) -> bool:
        return True


def rotate(context: Context, *options: str, answers: io.StringIO | None = None) -> int:
    parser = argparse.ArgumentParser()
    add_options(parser)
    given = parser.parse_args(options)
    return rotate_admin_token(context, given, answers=answers or io.StringIO())


def made(admin: TestClient, name: str, **values: object) -> str:
    reply = admin.post(f"{API}/tokens", json={"name": name, **values})
    assert reply.status_code == 201, reply.text
    return str(reply.json()["secret"])


def works(client: TestClient, token: str) -> bool:
    headers = {"authorization": f"Bearer {token}"}
    return client.get(f"{API}/jobs", headers=headers).status_code == 200


def test_tokens_that_create_tokens_end_before_a_person_reads_the_list(
    admin: TestClient, context: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    maker = made(admin, "maker", scopes=["jobs:read", "tokens:admin"])
    reader = made(admin, "reader", scopes=["jobs:read"])
    cookie = open_session(context, token=maker, code=None).cookie
    assert rotate(context) == 0
    assert not works(admin, maker)
    with pytest.raises(UnauthenticatedError):
        authenticate_session(context, cookie)
    assert works(admin, reader)
    told = capsys.readouterr().err
    (ended,) = [line for line in told.splitlines() if line.startswith("ended, as it could create")]
    assert ended.endswith("jobs:read tokens:admin")
    (kept,) = [line for line in told.splitlines() if " reader " in line]
    assert kept.endswith(", jobs:read")


@pytest.mark.parametrize("seconds", [601, 365 * 86_400])
def test_a_login_code_lives_ten_minutes_at_most(admin: TestClient, seconds: int) -> None:
    body = {"name": "link", "kind": "login", "expires_in_seconds": seconds}
    refused = admin.post(f"{API}/tokens", json=body)
    assert refused.status_code == 422
    (error,) = refused.json()["errors"]
    assert error["pointer"] == "/expires_in_seconds"
    assert f"{seconds} is more than a login code may live; legal: 60 to 600" in error["detail"]
    assert made(admin, "link", kind="login", expires_in_seconds=600)


def test_a_long_code_of_a_former_version_lives_no_longer(
    admin: TestClient, context: Context, clock: FakeClock
) -> None:
    code = made(admin, "link", kind="login")
    with context.database.write() as connection:
        long = context.now() + timedelta(days=365)
        of_code = update(tokens).where(tokens.c.kind == TokenKind.LOGIN)
        connection.execute(of_code.values(expires_at=long))
    clock.advance(601)
    with pytest.raises(UnauthenticatedError):
        open_session(context, token=None, code=code)


def test_the_rotation_ends_codes_and_sessions_and_lists_what_was_made(
    admin: TestClient,
    anonymous: TestClient,
    context: Context,
    clock: FakeClock,
    capsys: pytest.CaptureFixture[str],
) -> None:
    session, code = (made(admin, f"link-{n}", kind="login") for n in (1, 2))
    assert anonymous.post(SESSION, json={"code": session}).status_code == 201
    clock.advance(60)
    mine, join = made(admin, "mine"), made(admin, "node-2", kind="join")
    assert rotate(context) == 0
    out = capsys.readouterr()
    assert out.out.strip().startswith("ty_admin_")
    assert len(out.out.splitlines()) == 1
    assert "1 browser sessions, 1 login codes, 0 invitations and 0 commands" in out.err
    assert {"mine", "node-2"} <= set(out.err.split())
    assert mine not in out.err + out.out
    assert anonymous.get(f"{API}/jobs").status_code == 401
    assert anonymous.post(SESSION, json={"code": code}).status_code == 401
    assert works(anonymous, mine), "what it made is listed, and stays"
    with context.database.read() as connection:
        kept = connection.scalars(select(tokens.c.kind).where(tokens.c.revoked_at.is_(None)))
        assert sorted(kept) == ["admin", "api", "join"]
    assert join


def test_tokens_are_revoked_after_a_confirmation_and_those_of_nodes_by_name(
    admin: TestClient,
    anonymous: TestClient,
    context: Context,
    clock: FakeClock,
    capsys: pytest.CaptureFixture[str],
) -> None:
    old = made(admin, "old")
    clock.advance(120)
    assert rotate(context) == 0
    fresh = {"authorization": f"Bearer {capsys.readouterr().out.strip()}"}
    clock.advance(120)
    reply = anonymous.post(f"{API}/tokens", json={"name": "leaked"}, headers=fresh)
    leaked = reply.json()["secret"]
    with context.database.write() as connection:
        for node in ("gpu-1", "gpu-2"):
            replace_token_of(context, connection, kind=TokenKind.NODE, name=node)
    assert rotate(context, "--revoke-tokens", "--node=gpu-1", answers=Terminal("n\n")) == 1
    assert works(anonymous, leaked)
    assert "No token was revoked" in capsys.readouterr().err
    clock.advance(120)
    again = ("--revoke-tokens=all", "--node=gpu-1")
    assert rotate(context, *again, answers=Terminal("y\n")) == 0
    assert not works(anonymous, leaked)
    assert not works(anonymous, old)
    with context.database.read() as connection:
        valid = select(tokens.c.node).where(
            tokens.c.revoked_at.is_(None), tokens.c.kind == TokenKind.NODE
        )
        assert connection.scalars(valid).all() == ["gpu-2"]


def test_only_what_the_former_token_made_is_revoked_by_default(
    admin: TestClient, anonymous: TestClient, context: Context, clock: FakeClock
) -> None:
    old = made(admin, "old")
    clock.advance(120)
    rotate(context)
    clock.advance(120)
    assert rotate(context, "--revoke-tokens", "--yes") == 0
    assert works(anonymous, old)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--revoke-tokens",), "needs a terminal for the confirmation, or --yes"),
        (("--node=gpu-1",), "need --revoke-tokens"),
        (("--revoke-tokens", "--yes", "--node=gpu-9"), "node gpu-9 has no valid token"),
    ],
)
def test_what_cannot_be_done_changes_nothing(
    admin: TestClient,
    context: Context,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    words: str,
) -> None:
    assert rotate(context, *options) == 2
    assert words in capsys.readouterr().err
    assert admin.get(f"{API}/tokens").status_code == 200


@BRINGS_CODE
def test_commands_of_a_token_end_with_it(
    admin: TestClient, context: Context, harness: Harness
) -> None:
    harness.add_node()
    job_id, _ = harness.running()
    reply = admin.post(f"{API}/tokens", json={"name": "ada"}).json()
    with context.database.write() as connection:
        connection.execute(update(jobs).values(token_id=reply["id"]))
    ada = Actor("ada", reply["id"], permissions=ALL, scope=SYSTEM_SCOPE)
    for actor in (
        Actor("admin", ADMIN_ID, is_admin=True, permissions=ALL, scope=SYSTEM_SCOPE),
        ada,
    ):
        open_shell(context, job_id, ShellRequest(argv=("sleep", "900")), actor=actor)
    admin.delete(f"{API}/tokens/{reply['id']}")
    closed = select(shells.c.created_by).where(shells.c.closed)
    with context.database.read() as connection:
        assert connection.scalars(closed).all() == ["ada"]
    rotate(context)
    with context.database.read() as connection:
        assert sorted(connection.scalars(closed)) == ["ada", "admin"]


@BRINGS_CODE
def test_what_outlives_a_request_is_refused_where_its_token_has_ended_meanwhile(
    admin_token: str, context: Context, harness: Harness
) -> None:
    harness.add_node()
    job_id, _ = harness.running()
    held = authenticate_token(context, admin_token).actor
    link = create_token(context, TokenRequest(name="link", kind="login"), actor=held)[1]
    opened = open_session(context, token=None, code=link).principal.actor
    assert opened.credential_hash == held.credential_hash, (
        "a session holds the token that opened it"
    )
    rotate(context)
    for actor in (held, opened):
        with pytest.raises(UnauthenticatedError, match="has ended since the request began"):
            create_token(context, TokenRequest(name="late"), actor=actor)
        with pytest.raises(UnauthenticatedError, match="has ended since the request began"):
            open_shell(context, job_id, ShellRequest(argv=("ls",)), actor=actor)
    with context.database.read() as connection:
        assert connection.scalars(select(shells.c.id)).all() == []


def test_a_rotation_waits_for_what_its_token_is_making(
    admin_token: str, context: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    held = authenticate_token(context, admin_token).actor
    thread = threading.Thread(target=rotate, args=(context,))
    with context.database.write() as connection:
        hold_token(connection, held, context.now())
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        # Created in the same transaction, so the rotation finds it.
        row = {"id": context.new_id(), "name": "late", "kind": TokenKind.API, "hash": "late"}
        connection.execute(insert(tokens).values(row | {"created_at": context.now()}))
    thread.join(60)
    assert "  api     late  " in capsys.readouterr().err
